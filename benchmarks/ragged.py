"""What an update of the trainer is measured on: a model with random weights and one ragged batch, the same for a peer.

`make` writes FOLDER/model, a Qwen2 checkpoint with a tokenizer, and FOLDER/batch.npz, all from one seed:

    group_size            int64 []                  rollouts g·size to (g+1)·size − 1 are group g's
    prompt_lengths        int64 [groups]
    prompt_tokens         int32 [sum of them]       one prompt per group, one after the other
    completion_lengths    int64 [rollouts]
    completion_tokens     int32 [sum of them]       one after the other; the last is EOS unless the cap was reached
    behaviour_logprobs    float32 [sum of them]     at temperature 1, nats
    advantages            float32 [rollouts]        of random rewards, 0 or 1, in groups that differ

Lengths are as ragged as those of reasoning: completions log-normal around a median of 200 tokens with σ 0.7, capped at
1,024, so half of them are shorter than a fifth of the longest. The sampler's log-probabilities are the model's own with
a little noise, so that ratios are near 1 and some are clipped. The head has about as large a share of the model's
parameters as in Qwen2.5-0.5B; what the model says means nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from muster.models.files import model_hash, tokenizer_hash
from muster.models.init import ModelShape, make_model, make_tokenizer, save_model
from muster.protocol.prompts import end_token
from muster.protocol.terms import Terms
from muster.rollouts.schema import Rollout
from muster.swarm import plan
from testbed.samples.rollouts import make_row
from testbed.samples.terms import made_terms

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SEED = 20_260
MEDIAN_LENGTH, SIGMA, LONGEST = 200, 0.7, 1024
"""Of completions, in tokens."""
PROMPT_LENGTHS = (32, 96)
GROUP_SIZE = 8
GROUPS_PER_FILE = 8
NODE = "0x" + "11" * 20
NOISE = 0.1
"""Standard deviation of the sampler's log-probabilities around the model's: one ratio in twenty is outside 1 ± 0.2."""


@dataclass(frozen=True)
class Shape:
    """Shape of a Qwen2 model with heads of 64 dimensions, at least two for each of keys and values.

    Small, so that a peer's update of 512 rollouts takes two minutes on one thread.
    """

    vocabulary: int = 2048
    hidden: int = 192
    layers: int = 3

    @property
    def full(self) -> ModelShape:
        heads = self.hidden // 64
        return ModelShape(
            *(self.hidden, self.layers, heads, 2 * self.hidden, 0.02),
            key_value_heads=max(1, heads // 2),
            vocabulary=self.vocabulary,
            context=2048,
        )


@dataclass(frozen=True)
class RaggedBatch:
    """The arrays of batch.npz."""

    group_size: np.ndarray
    prompt_lengths: np.ndarray
    prompt_tokens: np.ndarray
    completion_lengths: np.ndarray
    completion_tokens: np.ndarray
    behaviour_logprobs: np.ndarray
    advantages: np.ndarray

    @classmethod
    def load(cls, file: Path) -> RaggedBatch:
        with np.load(file, allow_pickle=False) as arrays:
            return cls(**{field.name: arrays[field.name] for field in fields(cls)})

    def save(self, file: Path) -> None:
        np.savez(file, **{field.name: getattr(self, field.name) for field in fields(self)})

    def rollouts(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, float]]:
        """Prompt tokens, completion tokens, behaviour log-probabilities and advantage of each rollout."""
        prompts = _split(self.prompt_tokens, self.prompt_lengths)
        completions = _split(self.completion_tokens, self.completion_lengths)
        behaviour = _split(self.behaviour_logprobs, self.completion_lengths)
        size = int(self.group_size)
        return [
            (prompts[i // size], completions[i], behaviour[i], float(self.advantages[i]))
            for i in range(len(completions))
        ]


def make(folder: Path, shape: Shape = Shape(), groups: int = 64) -> tuple[Path, Path]:
    """Write a model's folder and a batch, and return their paths. Equal arguments give equal ones."""
    model_folder, file = folder / "model", folder / "batch.npz"
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, shape.full, SEED)
    save_model(model, tokenizer, model_folder)
    make_batch(model, tokenizer, groups).save(file)
    return model_folder, file


def make_batch(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, groups: int) -> RaggedBatch:
    rng = np.random.default_rng(SEED)
    rollouts = groups * GROUP_SIZE
    drawn = MEDIAN_LENGTH * np.exp(SIGMA * rng.standard_normal(rollouts))
    lengths = np.clip(np.rint(drawn), 1, LONGEST).astype(np.int64)
    prompt_lengths = rng.integers(PROMPT_LENGTHS[0], PROMPT_LENGTHS[1], groups, endpoint=True)
    first, vocabulary = len(tokenizer), model.config.vocab_size  # the tokenizer's own tokens appear nowhere else
    prompts = rng.integers(first, vocabulary, prompt_lengths.sum(), dtype=np.int32)
    completions = rng.integers(first, vocabulary, lengths.sum(), dtype=np.int32)
    ends = np.cumsum(lengths) - 1
    completions[ends[lengths < LONGEST]] = end_token(tokenizer)
    own = _own_logprobs(model, _split(prompts, prompt_lengths), _split(completions, lengths))
    return RaggedBatch(
        group_size=np.array(GROUP_SIZE),
        prompt_lengths=prompt_lengths,
        prompt_tokens=prompts,
        completion_lengths=lengths,
        completion_tokens=completions,
        behaviour_logprobs=(own + NOISE * rng.standard_normal(len(own))).astype(np.float32),
        advantages=_advantages(rng, groups),
    )


@torch.inference_mode()
def _own_logprobs(model: PreTrainedModel, prompts: list[np.ndarray], completions: list[np.ndarray]) -> np.ndarray:
    rows = []
    for i, completion in enumerate(completions):
        prompt = prompts[i // GROUP_SIZE]
        ids = torch.from_numpy(np.concatenate([prompt, completion])).long()
        logits = model(input_ids=ids[None, :-1], logits_to_keep=len(completion)).logits[0].float()
        targets = ids[len(prompt) :, None]
        rows.append(torch.log_softmax(logits, -1).gather(-1, targets)[:, 0].numpy())
    return np.concatenate(rows)


def _advantages(rng: np.random.Generator, groups: int) -> np.ndarray:
    """(r − mean) / (std + 1e-6) of each group; between one and all but one of a group are rewarded."""
    solved = rng.integers(1, GROUP_SIZE, groups)
    rewards = rng.permuted(np.arange(GROUP_SIZE) < solved[:, None], axis=1).astype(np.float64)
    rewards -= rewards.mean(1, keepdims=True)
    return (rewards / (rewards.std(1, keepdims=True) + 1e-6)).astype(np.float32).ravel()


def _split(values: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    return np.split(values, np.cumsum(lengths)[:-1])


# --- The same as accepted work


def terms_of(model: Path) -> Terms:
    """Return the terms of a run of this model whose commitments are files of this batch."""
    return made_terms(
        plan.LOCAL_TERMS,
        task_count=1,
        model_hash=model_hash(model),
        tokenizer_hash=tokenizer_hash(model),
        group_size=GROUP_SIZE,
        groups_per_commitment=GROUPS_PER_FILE,
        max_prompt_tokens=PROMPT_LENGTHS[1],
        max_completion_tokens=LONGEST,
    )


def rollouts_by_file(file: Path) -> list[list[Rollout]]:
    """Return the batch's rollouts as workers send them, one list for each file, with proofs of random bytes."""
    batch = RaggedBatch.load(file)
    size, rows = int(batch.group_size), batch.rollouts()
    per_file = size * GROUPS_PER_FILE
    return [
        [_rollout(position, size, *row) for position, row in enumerate(rows[start : start + per_file])]
        for start in range(0, len(rows), per_file)
    ]


def _rollout(
    position: int, size: int, prompt: np.ndarray, completion: np.ndarray, logprobs: np.ndarray, advantage: float
) -> Rollout:
    reward = 1_000_000 if advantage > 0 else 0
    return replace(
        make_row(position, len(completion)),
        step=0,
        group=position // size,
        sample=position % size,
        task=position // size,
        seed=position,
        budget=MEDIAN_LENGTH,
        prompt_tokens=prompt,
        completion_tokens=completion,
        logprobs=logprobs,
        task_reward=reward,
        parts=np.array([reward], np.int64),
        length_reward=0,
    )
