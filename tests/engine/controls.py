"""Ways to be wrong, one at a time. What they do to rollouts or weights is pure; the engine that runs them is real."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from muster.model_files import load_tokenizer
from muster.models import load_model, save_model
from muster.prompts import pad_token
from muster.rollouts.schema import Rollout
from muster.weights import read_weights
from trainer.layout import Sample
from trainer.update import UpdateTerms, make_optimizer, update
from worker.engine import Engine, Generation, GenerationRequest

GROUP = 4

# --- Honest work


def rollouts_of(requests: Sequence[GenerationRequest], generations: Sequence[Generation]) -> list[Rollout]:
    """Rows as a worker would write them, as far as replay reads them."""
    return [
        Rollout(
            run=1,
            step=0,
            position=position,
            group=0,
            sample=0,
            task=0,
            seed=request.seed,
            budget=8,
            prompt_tokens=request.prompt_tokens,
            completion_tokens=generation.tokens,
            logprobs=generation.logprobs,
            task_reward=0,
            length_reward=0,
            finish_reason=generation.finish_reason,
            proof=generation.proof,
        )
        for position, (request, generation) in enumerate(zip(requests, generations, strict=True))
    ]


# --- Other weights


def with_noise(fraction: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Add noise of this fraction of the tensor's standard deviation."""
    generator = torch.Generator().manual_seed(7)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(tensor.shape, generator=generator)
        return (tensor.float() + fraction * tensor.float().std() * noise).to(tensor.dtype)

    return change


def rounded_to_int8(tensor: torch.Tensor) -> torch.Tensor:
    """Round matrices to 8 bits with a scale per row."""
    if tensor.dim() < 2:
        return tensor
    scale = tensor.float().abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / 127
    return ((tensor.float() / scale).round() * scale).to(tensor.dtype)


def save_changed(source: Path, target: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> Path:
    """A checkpoint folder like `source`, every tensor changed."""
    shutil.copytree(source, target)
    tensors = {name: change(tensor).contiguous() for name, tensor in read_weights(source)}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def train_on(source: Path, folder: Path, rollouts: Sequence[Rollout], steps: int) -> list[Path]:
    """The checkpoints after each of `steps` updates by the real trainer at its defaults, advantages being noise."""
    model, tokenizer = load_model(source), load_tokenizer(source)
    terms, generator = UpdateTerms(), np.random.default_rng(3)
    optimizer = make_optimizer(model, terms)
    paths = []
    for step in range(1, steps + 1):
        batch = [Sample(rollout, float(generator.standard_normal())) for rollout in rollouts]
        update(model, optimizer, batch, terms, step=step, pad=pad_token(tokenizer))
        paths.append(folder / f"step-{step}")
        save_model(model, tokenizer, paths[-1])
    return paths


# --- Other sampling


@contextmanager
def tempered(engine: Engine, temperature: float) -> Iterator[None]:
    """Let the engine sample at a temperature that is not the run's."""

    def set_temperature(value: float) -> None:
        def change(worker: Any) -> None:
            worker._muster_sampler().temperature = value

        engine._engine.collective_rpc(change)

    set_temperature(temperature)
    try:
        yield
    finally:
        set_temperature(engine.limits.temperature)


# --- Other claims


def edit_one_token(rollouts: Sequence[Rollout], vocabulary: int) -> list[Rollout]:
    """One token of each completion replaced by another."""
    generator = np.random.default_rng(11)
    edited = []
    for rollout in rollouts:
        tokens = rollout.completion_tokens.copy()
        place = int(generator.integers(len(tokens)))
        tokens[place] = (tokens[place] + int(generator.integers(1, vocabulary))) % vocabulary
        edited.append(replace(rollout, completion_tokens=tokens))
    return edited


def claim_another_seed(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Completions drawn with another seed than the one they are claimed for, as best-of-n and borrowing do."""
    return [replace(rollout, seed=rollout.seed ^ 1 << 33) for rollout in rollouts]


def claim_another_prompt(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Completions of the next group's prompt."""
    return [
        replace(rollout, prompt_tokens=rollouts[(i + GROUP) % len(rollouts)].prompt_tokens)
        for i, rollout in enumerate(rollouts)
    ]


def scale_logprobs(rollouts: Sequence[Rollout]) -> list[Rollout]:
    return [replace(rollout, logprobs=rollout.logprobs * np.float32(0.9)) for rollout in rollouts]


def shift_one_logprob(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The last log-probability a hundredth lower: 1% on the ratio of one token."""
    shifted = []
    for rollout in rollouts:
        logprobs = rollout.logprobs.copy()
        logprobs[-1] -= 0.01
        shifted.append(replace(rollout, logprobs=logprobs))
    return shifted


def zero_proofs(rollouts: Sequence[Rollout]) -> list[Rollout]:
    return [replace(rollout, proof=bytes(len(rollout.proof))) for rollout in rollouts]


def constant_proofs(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The same four numbers for every token of every completion."""
    constant = np.array([0.5, -0.5, 0.5, -0.5], "<f2").tobytes()
    return [replace(rollout, proof=constant * len(rollout.completion_tokens)) for rollout in rollouts]


def random_proofs(rollouts: Sequence[Rollout]) -> list[Rollout]:
    generator = np.random.default_rng(13)
    return [
        replace(rollout, proof=generator.standard_normal(len(rollout.proof) // 2).astype("<f2").tobytes())
        for rollout in rollouts
    ]


def shuffled_proofs(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Each completion's numbers in reverse."""
    return [
        replace(rollout, proof=np.frombuffer(rollout.proof, "<f2")[::-1].astype("<f2").tobytes())
        for rollout in rollouts
    ]


def short_proofs(rollouts: Sequence[Rollout]) -> list[Rollout]:
    return [replace(rollout, proof=rollout.proof[:-8]) for rollout in rollouts]
