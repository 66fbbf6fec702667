"""What every codec of activation proofs offers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch


@dataclass(frozen=True)
class Comparison:
    """How far a proof is from the states it claims to be of."""

    error: float
    """Relative distance over the whole completion: 0 for the same states, about 1 or more for unrelated ones, infinite
    for a proof that has a `problem`. What "relative" means is the codec's own, and so are the limits of a profile."""
    worst: float
    """The largest relative distance of the smallest part that the codec tells apart: a token or a chunk of tokens."""
    tokens: np.ndarray | None = field(default=None, compare=False)
    """Squared relative distance of each token's state, beyond what the proof's own rounding makes: float32 [T]. None
    where the codec cannot tell tokens apart, or the proof has a `problem`."""
    problem: str | None = None
    """Why the proof cannot be compared at all, in words; None for a well-formed one."""

    @classmethod
    def malformed(cls, problem: str) -> Comparison:
        return cls(error=math.inf, worst=math.inf, problem=problem)


class Codec(Protocol):
    """Makes and compares proofs. `states` are float32 or bfloat16 [T, H], on any device; a seed is 0 ≤ seed < 2^63."""

    @property
    def name(self) -> str: ...

    def encode_batch(self, states: Sequence[torch.Tensor], seeds: Sequence[int]) -> list[bytes]:
        """Make the proofs of completions of different lengths, in order. Raises ValueError on states not finite."""
        ...

    def compare_batch(
        self, proofs: Sequence[bytes], states: Sequence[torch.Tensor], seeds: Sequence[int]
    ) -> list[Comparison]:
        """Compare strangers' proofs with recomputed states, one by one. Never raises on any proof."""
        ...
