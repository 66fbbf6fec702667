"""How a batch's rollouts lie in tensors: padded micro-batches of rollouts of similar length.

Rollouts are sorted by length and cut into micro-batches of a bounded area, so little of it is padding. Padding is on
the right, where causal attention never looks, so no mask is needed, and only completion tokens get logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from muster.rollouts.schema import Rollout


@dataclass(frozen=True)
class Sample:
    """A rollout and its advantage."""

    rollout: Rollout
    advantage: float

    @property
    def length(self) -> int:
        """Prompt and completion, in tokens."""
        return len(self.rollout.prompt_tokens) + len(self.rollout.completion_tokens)


@dataclass(frozen=True)
class MicroBatch:
    """Rollouts side by side. `places` picks, from the flattened [rows × width], the states that predict completions."""

    ids: torch.Tensor
    """int64 [rows, width], padded on the right"""
    places: torch.Tensor
    """int64 [tokens]: flat index of the state whose logits predict each completion token"""
    targets: torch.Tensor
    """int64 [tokens]: the completion tokens, rollout after rollout"""
    behaviour_logprobs: torch.Tensor
    """float32 [tokens]"""
    advantages: torch.Tensor
    """float32 [tokens]"""
    rollouts: torch.Tensor
    """int64 [tokens]: row of each completion token"""


def completion_tokens(samples: Sequence[Sample]) -> int:
    """Number of tokens the loss is normalised by."""
    return sum(len(sample.rollout.completion_tokens) for sample in samples)


def micro_batches(samples: Sequence[Sample], *, area: int, pad: int) -> Iterator[MicroBatch]:
    """Cut `samples` into micro-batches of at most `area` tokens, padding included (at least one rollout each).

    The order depends only on the samples, so equal batches give equal updates.
    """
    ordered = sorted(samples, key=lambda sample: sample.length)
    chunk: list[Sample] = []
    for sample in ordered:
        if chunk and (len(chunk) + 1) * sample.length > area:
            yield _collate(chunk, pad)
            chunk = []
        chunk.append(sample)
    if chunk:
        yield _collate(chunk, pad)


def _collate(samples: list[Sample], pad: int) -> MicroBatch:
    width = max(sample.length for sample in samples)
    ids = np.full((len(samples), width), pad, dtype=np.int64)
    places, counts = [], []
    for row, sample in enumerate(samples):
        start, end = len(sample.rollout.prompt_tokens), sample.length
        ids[row, :start] = sample.rollout.prompt_tokens
        ids[row, start:end] = sample.rollout.completion_tokens
        places.append(np.arange(row * width + start - 1, row * width + end - 1))
        counts.append(end - start)
    advantages = np.asarray([sample.advantage for sample in samples], dtype=np.float32)
    return MicroBatch(
        ids=torch.from_numpy(ids),
        places=torch.from_numpy(np.concatenate(places)),
        targets=torch.from_numpy(np.concatenate([s.rollout.completion_tokens for s in samples]).astype(np.int64)),
        behaviour_logprobs=torch.from_numpy(np.concatenate([s.rollout.logprobs for s in samples])),
        advantages=torch.from_numpy(np.repeat(advantages, counts)),
        rollouts=torch.from_numpy(np.repeat(np.arange(len(samples)), counts)),
    )
