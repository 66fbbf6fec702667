"""Draw a synthetic run: who takes part, and which commitment was made when, by whom, and what became of it.

Everything follows from the shape's seed and the chain's time. Workers come and go: at each step some hundred of them
work, and each of these for a few thousand steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from muster.constants import HOUR_SECONDS

Numbers = NDArray[np.int64]
STATUSES: Final = ("accepted", "pending", "rejected", "void")
ACCEPTED, PENDING, REJECTED, VOID = range(len(STATUSES))
REASONS: Final = (
    "activation_mismatch",
    "wrong_reward",
    "sampling_mismatch",
    "wrong_logprobs",
    "wrong_termination",
    "data_missing",
)
HEAD_SECONDS: Final = 20
"""How long ago the newest step was published."""
PENDING_SECONDS: Final = 60
"""Commitments that are younger are pending."""
CHEATER_EVERY: Final = 97
"""One in so many workers is convicted."""
CHEATS: Final = 0.4
"""Share of a cheater's commitments that are rejected."""
DOUBTED: Final = 0.004
"""Share of all other commitments whose first verdict is a rejection."""
CLEARED: Final = 0.1
"""Share of these whose validator opened a case about it and lost."""
DAY_SECONDS: Final = 86_400


@dataclass(frozen=True)
class Shape:
    """How large a synthetic run is."""

    steps: int = 100_000
    nodes: int = 5_000
    commitments: int = 1_600_000
    step_seconds: int = 60
    at_work: int = 250
    """Workers that commit at one step or another of the same few."""
    moot: int = 0
    """Cases that ended for nothing, beside those that the work gives rise to, and as many such proofs."""
    seed: int = 7

    @property
    def validators(self) -> int:
        return max(3, min(50, self.nodes // 20))

    @property
    def workers(self) -> int:
        return self.nodes - self.validators


class Work:
    """All commitments of a run, oldest first, as arrays of equal length."""

    def __init__(self, shape: Shape, now: int, block: int) -> None:
        """Draw them. now, block: the chain's newest second and block, behind which the run lies."""
        self.shape, self.now, self.block = shape, now, block
        rng = np.random.default_rng(shape.seed)
        many = np.arange(shape.commitments, dtype=np.int64)
        # 1. When: equally many at each policy step, and equally far apart.
        self.step: Numbers = many * (shape.steps + 1) // shape.commitments
        first = -(-self.step * shape.commitments // (shape.steps + 1))
        share = (many - first + 0.5) * (shape.steps + 1) / shape.commitments
        length = np.where(self.step == shape.steps, HEAD_SECONDS, shape.step_seconds)
        self.time: Numbers = self.published(self.step) + (np.clip(share, 0, 0.99) * length).astype(np.int64)
        # 2. By whom: a window over the workers that moves with the steps; each one's indices count up.
        at_work = min(shape.at_work, shape.workers)
        begin = self.step * (shape.workers - at_work) // max(1, shape.steps)
        self.worker: Numbers = begin + rng.integers(at_work, size=shape.commitments)
        self.index = counted(self.worker, shape.workers)
        # 3. What its first verdict is, and what became of it: a lost case clears an honest one.
        self.validator: Numbers = rng.integers(shape.validators, size=shape.commitments)
        cheater, chance = self.is_cheater[self.worker], rng.random(shape.commitments)
        self.refused = (chance < np.where(cheater, CHEATS, DOUBTED)) | (cheater & (self.index == 0))
        self.cleared = self.refused & ~cheater & (chance < DOUBTED * CLEARED) & (now - self.time > DAY_SECONDS)
        habit = np.where(cheater, self.worker // CHEATER_EVERY % 4, rng.integers(4, len(REASONS), shape.commitments))
        self.reason: Numbers = np.where(self.refused, habit, -1)
        pending = (now - self.time < PENDING_SECONDS) & ~self.refused & ~cheater
        rejected = self.refused & ~self.cleared
        self.status: Numbers = np.select([rejected, cheater, pending], [REJECTED, VOID, PENDING], ACCEPTED)
        self.tokens: Numbers = rng.integers(20_000, 90_000, shape.commitments)
        self.size: Numbers = self.tokens * 14
        # 4. Names: roots and hashes of files.
        self.root = hashes(rng, shape.commitments)
        self.file_hash = hashes(rng, shape.commitments)

    @cached_property
    def is_cheater(self) -> NDArray[np.bool_]:
        """By worker. Bool [workers]."""
        return np.arange(self.shape.workers) % CHEATER_EVERY == CHEATER_EVERY // 3

    @cached_property
    def count(self) -> Numbers:
        """Commitments of each worker. Int64 [workers]."""
        return np.bincount(self.worker, minlength=self.shape.workers)

    @cached_property
    def first_at(self) -> Numbers:
        """Each worker's first commitment, as its place in the arrays; their length for none. Int64 [workers]."""
        return self._of_worker(np.minimum, self.shape.commitments)

    @cached_property
    def last_at(self) -> Numbers:
        """Each worker's last commitment, as its place in the arrays; -1 for none. Int64 [workers]."""
        return self._of_worker(np.maximum, -1)

    def _of_worker(self, keep: Callable[..., Numbers], nothing: int) -> Numbers:
        found = np.full(self.shape.workers, nothing, dtype=np.int64)
        keep.at(found, self.worker, np.arange(self.shape.commitments))  # type: ignore[attr-defined]
        return found

    @cached_property
    def hour(self) -> Numbers:
        return self.time // HOUR_SECONDS

    def published(self, step: Numbers) -> Numbers:
        """Return the chain's seconds at which steps were published."""
        return self.now - HEAD_SECONDS - (self.shape.steps - step) * self.shape.step_seconds

    @cached_property
    def begun(self) -> int:
        """Return the chain's second at which the first step was published."""
        return int(self.published(np.int64(0)))

    def block_at(self, time: Numbers) -> Numbers:
        """Return the blocks of these seconds: all that there are, spread evenly over the run."""
        return np.maximum(1, self.block * (time - self.begun) // (self.now - self.begun))

    def block_of(self, second: int) -> int:
        return int(self.block_at(np.int64(second)))


def counted(group: Numbers, groups: int) -> Numbers:
    """Return how many earlier members each member's group has. Both int64 [members]."""
    order = np.argsort(group, kind="stable")
    begins = np.concatenate([[0], np.cumsum(np.bincount(group, minlength=groups))[:-1]])
    found = np.empty(len(group), dtype=np.int64)
    found[order] = np.arange(len(group)) - begins[group[order]]
    return found


def rows_of(*columns: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of some columns, as Python's own numbers."""
    return zip(*(column.tolist() for column in columns), strict=True)


def hashes(rng: np.random.Generator, count: int) -> list[str]:
    """Return random hashes as 0x-hex."""
    text = rng.bytes(32 * count).hex()
    return ["0x" + text[at : at + 64] for at in range(0, len(text), 64)]
