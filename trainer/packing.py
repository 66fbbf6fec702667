"""Pack a batch's rollouts into tensors: end to end in rows without padding, by first fit.

A micro-batch is one row of whole sequences (prompt and completion). Positions restart at each sequence, attention
never crosses a boundary (trainer/policy.py), and only tokens that the policy sampled get logits. So a packed batch has
the same loss as its rollouts one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch

from muster.rollouts.schema import Rollout


@dataclass(frozen=True)
class Sample:
    """The part of a rollout that an update needs."""

    prompt: np.ndarray
    """int32 [prompt tokens]"""
    completion: np.ndarray
    """int32 [completion tokens]"""
    logprobs: np.ndarray
    """float32 [sampled tokens]: the sampler's"""
    advantage: float
    file: str = ""
    """Hash of the file that the rollout is from."""
    position: int = 0
    """Its row in the file."""
    spans: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    """int32 [spans]: as a rollout's; without any, all of the completion was sampled."""

    @classmethod
    def from_rollout(cls, rollout: Rollout, advantage: float, file: str = "") -> Self:
        tokens = rollout.prompt_tokens, rollout.completion_tokens, rollout.logprobs
        return cls(*tokens, float(advantage), file, rollout.position, rollout.spans)

    @property
    def length(self) -> int:
        """Prompt and completion, in tokens."""
        return len(self.prompt) + len(self.completion)

    @property
    def mask(self) -> np.ndarray:
        """Which tokens of the completion are trained on, since the policy sampled them: bool [completion tokens].

        It has the completion's length whatever the spans say.
        """
        return np.searchsorted(self.spans, np.arange(len(self.completion)), side="right") % 2 == 0

    @property
    def completion_length(self) -> int:
        """Return how many tokens of the completion the policy sampled."""
        return int(self.mask.sum())

    @property
    def given_length(self) -> int:
        """Return how many tokens of the completion the policy was given."""
        return len(self.completion) - self.completion_length


@dataclass(frozen=True)
class MicroBatch:
    """Sequences end to end. `places` picks the states that predict the tokens that the policy sampled."""

    ids: torch.Tensor
    """int64 [1, width]"""
    positions: torch.Tensor
    """int64 [1, width]: place of each token in its own sequence"""
    boundaries: tuple[int, ...]
    """Where each sequence begins, and the width: ascending, one more than there are sequences"""
    places: torch.Tensor
    """int64 [tokens + given tokens]: index of the state whose logits predict each sampled token, then each given one"""
    targets: torch.Tensor
    """int64 [tokens + given tokens]: the sampled tokens, rollout after rollout, then the given ones"""
    behaviour_logprobs: torch.Tensor
    """float32 [tokens]"""
    advantages: torch.Tensor
    """float32 [tokens]"""
    weights: torch.Tensor
    """float32 [tokens]: share of each token in the global batch"""
    rollouts: torch.Tensor
    """int64 [tokens]: which sequence each sampled token belongs to"""
    given_rollouts: torch.Tensor
    """int64 [given tokens]: which sequence each given token belongs to; empty where given tokens are not trained on"""
    members: tuple[int, ...]
    """Which samples of the batch these are, by place in it"""

    def to(self, device: torch.device) -> MicroBatch:
        moved = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, torch.Tensor)}
        return replace(self, **moved)


def completion_tokens(samples: Sequence[Sample]) -> int:
    """Return the sampled tokens of a batch: what `token_weight` calls its tokens."""
    return sum(sample.completion_length for sample in samples)


def first_fit(lengths: Sequence[int], width: int) -> list[list[int]]:
    """Return places of `lengths` by row, each row at most `width` long or one sequence, longest first.

    First fit decreasing needs at most 11/9 of the fewest rows possible, and one more (D. Johnson, 1973). Depends on
    the lengths alone, so equal batches give equal updates.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[place]
        row = next((row for row, left in enumerate(room) if left >= length), None)
        if row is None:
            row = len(rows)
            rows.append([])
            room.append(width)
        rows[row].append(place)
        room[row] -= length
    return rows


def share_out(rows: Sequence[Sequence[int]], lengths: Sequence[int], ranks: int) -> list[list[list[int]]]:
    """Deal rows to ranks, the same number to each: the longest row first, to the rank with the fewest tokens so far.

    Ranks that would have fewer get rows without sequences: under sharded training all must compute equally often.
    """
    shares: list[list[list[int]]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    most = -(-len(rows) // ranks)
    totals = [sum(lengths[place] for place in row) for row in rows]
    for row in sorted(range(len(rows)), key=lambda i: (-totals[i], i)):
        rank = min((r for r in range(ranks) if len(shares[r]) < most), key=lambda r: (loads[r], r))
        shares[rank].append(list(rows[row]))
        loads[rank] += totals[row]
    for share in shares:
        share += [[] for _ in range(most - len(share))]
    return shares


def collate(
    samples: Sequence[Sample], weights: Sequence[float], members: Sequence[int], *, given: bool = False
) -> MicroBatch:
    """Return a micro-batch of the samples at `members`, whose tokens have their sample's weight.

    given: whether given tokens are trained on as well. Of no members it is one token that trains nothing.
    """
    chosen = [samples[place] for place in members]
    if not chosen:
        return _empty()
    ids, positions, places, answers, boundaries = [], [], [], [], [0]
    for sample in chosen:
        start, begin = boundaries[-1], len(sample.prompt)
        ids += [sample.prompt, sample.completion]
        positions.append(np.arange(sample.length))
        predicting = np.arange(start + begin - 1, start + sample.length - 1)
        places.append(predicting[sample.mask])
        answers.append(predicting[~sample.mask])
        boundaries.append(start + sample.length)
    counts, given_counts = [len(row) for row in places], [len(row) if given else 0 for row in answers]
    predicted = _int64([*places, *(answers if given else [])])
    advantages = np.asarray([sample.advantage for sample in chosen], dtype=np.float32)
    return MicroBatch(
        ids=(row := _int64(ids))[None],
        positions=_int64(positions)[None],
        boundaries=tuple(boundaries),
        places=predicted,
        targets=row[predicted + 1],
        behaviour_logprobs=torch.from_numpy(np.concatenate([sample.logprobs for sample in chosen])),
        advantages=torch.from_numpy(np.repeat(advantages, counts)),
        weights=torch.from_numpy(np.repeat(np.asarray([weights[place] for place in members], np.float32), counts)),
        rollouts=torch.from_numpy(np.repeat(np.arange(len(chosen)), counts)),
        given_rollouts=torch.from_numpy(np.repeat(np.arange(len(chosen)), given_counts)),
        members=tuple(members),
    )


def _empty() -> MicroBatch:
    one, none = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    empty = torch.zeros(0)
    return MicroBatch(one, one, (0, 1), none, none, empty, empty, empty, none, none, ())


def _int64(parts: Sequence[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))
