"""A tiny run for tests of the trainer on disk: its checkpoint, terms, learner and batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from muster.models.files import model_hash, tokenizer_hash
from muster.models.init import ModelShape, make_model, make_tokenizer, save_model
from muster.protocol.terms import Terms
from muster.settings.schema import MatmulSetting, TrainerSettings
from muster.swarm import plan
from testbed.samples.work import NODE, work_file
from trainer.batches import Batch, WorkFile
from trainer.distributed import Ranks
from trainer.learner import Learner, Recipe
from trainer.packing import Sample
from trainer.policy import Policy


def tiny_checkpoint(folder: Path, *, layers: int = 1) -> Path:
    """Write a Qwen2 of a few thousand parameters to `folder`."""
    tokenizer = make_tokenizer()
    shape = ModelShape(hidden=32, layers=layers, heads=1, intermediate=32)
    save_model(make_model(tokenizer, shape, seed=1), tokenizer, folder)
    return folder


def terms_of(initial: Path) -> Terms:
    return Terms(
        **plan.LOCAL_TERMS,
        trainer=NODE,
        storage_key=NODE,
        task_count=1,
        task_root=bytes(32),
        model_hash=model_hash(initial),
        tokenizer_hash=tokenizer_hash(initial),
    )


class NarrowRanks(Ranks):
    """One process whose weights and passes are bfloat16, as those of a rank are under `trainer.precision`."""

    dtype = torch.bfloat16

    def shard(self, policy: Policy) -> None:
        policy.to(self.dtype)


def learner_at(
    initial: Path,
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    lora_rank: int = 0,
    lora_alpha: float = 32.0,
    ranks: Ranks | None = None,
    matmul: MatmulSetting = "native",
) -> Learner:
    terms = terms_of(initial)
    settings = TrainerSettings(learning_rate=1e-2, warmup_steps=1, lora_rank=lora_rank, lora_alpha=lora_alpha)
    recipe = Recipe.from_settings(settings, terms)
    return Learner(initial, folder, terms, recipe, dtype, ranks or Ranks(), matmul)


def batch_of(step: int) -> tuple[Batch, list[WorkFile]]:
    """Make a batch whose log-probabilities are near those of an untrained model."""
    file = work_file([1, 0, 0, 1], step=step, index=step)
    even = np.full(4, -np.log(105.0), dtype=np.float32)
    rows = tuple(replace(row, logprobs=even) for row in file.rollouts)
    return Batch(step, (file.ref,)), [replace(file, rollouts=rows)]


def ragged(count: int) -> list[Sample]:
    """Completions of 1 to 60 tokens: more or fewer rows for one rank than for another."""
    random = np.random.default_rng(5)
    samples = []
    for place in range(count):
        prompt, length = int(random.integers(1, 9)), int(random.integers(1, 61))
        tokens = random.integers(9, 105, prompt + length, dtype=np.int32)
        logprobs = random.normal(-4.6, 0.1, length).astype(np.float32)
        samples.append(Sample(tokens[:prompt], tokens[prompt:], logprobs, (-1.0) ** place * (1 + place / 4)))
    return samples
