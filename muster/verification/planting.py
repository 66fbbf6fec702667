"""What a trap is: in some rows of a commitment the sampler takes the runner-up once, and all else is true. Pure.

Who replays such a row finds one token whose gap lies beyond the limit that accuses; who does not, finds nothing. For
without a forward pass a token's noise and its log-probability are all that tells of its gap, and in honest work their
sum, the token's *height*, has one distribution whatever the model says: the standard Gumbel distribution. A runner-up
is lower, as e^(-2h) against e^(-h). So a place is taken in proportion to e^h of its runner-up, which makes up for just
that, and never one that is lower than LOWEST. Without this the lowest token of a file would tell nearly every trap.

Rows are drawn in proportion to their tokens, the prompt's included: a chance per row would pay validators for
replaying the shortest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Final

import numpy as np
import torch

from muster.proofs.seeded_sampling import noise_at
from muster.verification.profiles import Profile
from muster.verification.statistics import TokenErrors, scaled_errors

LOWEST: Final = -1.0
"""Height below which no runner-up is taken: one sampled token in fifteen is lower."""

TALL: Final = 3.0
"""Height above which a place is always taken: one sampled token in twenty is taller, and few runners-up are."""

TRIES: Final = 64
"""Rows that are tried, for each row of a commitment, before places are taken whatever their height."""

MARGIN: Final = 1.25
"""Times the accusing limit that a gap is here: another machine measures it a little smaller."""

STATES: Final = 0.25
"""Share of the limit on a pool's distances that another machine's states are expected to be off, all of them. Honest
rows are further off once in a hundred times, and only by that is a gap licensed."""


@dataclass(frozen=True, eq=False)
class Rivals:
    """The runners-up of one completion: what the sampler would have taken in each token's stead. float32 [T] each."""

    sampled: np.ndarray
    """The tokens that were sampled."""
    tokens: np.ndarray
    """The runners-up."""
    gaps: np.ndarray
    """How far each is below the sampled one, in logits over temperature."""
    logprobs: np.ndarray
    """Their log-probabilities."""
    sizes: np.ndarray
    """|h| / (sqrt(H) · T) of the states."""
    magnitudes: np.ndarray
    """As in `TokenErrors`, if the runner-up were claimed."""

    @classmethod
    def from_bytes(cls, columns: bytes) -> Rivals:
        """Return what the engine recorded: the fields in order, little-endian."""
        return cls(*np.frombuffer(columns, dtype="<f4").reshape(6, -1))


@dataclass(frozen=True)
class Plant:
    """One false token: the row's place in the commitment, and the token's in the completion."""

    row: int
    token: int


def heights(rivals: Rivals, seed: int) -> np.ndarray:
    """Return the runners-up's log-probabilities with the noise of their seed: float32 [T]."""
    tokens = torch.from_numpy(rivals.tokens.astype(np.int64))
    seeds = torch.full((len(tokens),), seed, dtype=torch.int64)
    return rivals.logprobs + noise_at(seeds, torch.arange(len(tokens)), tokens).numpy()


def expected_gaps(rivals: Rivals, apart: np.ndarray, profile: Profile) -> np.ndarray:
    """Return each runner-up's gap as another machine measures it, in expected errors: float64 [T].

    apart: |w_a - w_b|, the distance of the head's rows of the sampled token and of the runner-up; float32 [T].
    """
    nothing = np.zeros_like(rivals.gaps)
    errors = TokenErrors(
        gaps=rivals.gaps,
        claimed=rivals.logprobs,
        logprobs=rivals.logprobs,
        states=nothing + np.float32((STATES * profile.pool.activation) ** 2),
        gap_scales=rivals.sizes * apart,
        logprob_scales=nothing,
        magnitudes=rivals.magnitudes,
    )
    return scaled_errors(errors, profile).gaps


def chances(rivals: Rivals, seed: int, apart: np.ndarray, profile: Profile) -> np.ndarray:
    """Return in what proportion each token of a row may be the false one: float64 [T], 0 where it may not."""
    found = heights(rivals, seed).astype(np.float64)
    beyond = expected_gaps(rivals, apart, profile) > MARGIN * profile.gap_worst.accuse
    return np.where(beyond & (found >= LOWEST), np.exp(found), 0.0)


def draw_plants(lengths: Sequence[int], proportions: Callable[[int], np.ndarray], random: Random) -> Iterator[Plant]:
    """Draw false tokens, in rows that differ, until no row is left that has a place for one.

    lengths: each row's tokens, prompt included: rows are drawn in proportion to them. proportions: what `chances`
    returns for a row; asked once. One of a row's places is drawn alike, and taken in proportion to its chance: in rows
    of few places the proportion would otherwise be among these few.
    """
    rows, left = range(len(lengths)), list(map(float, lengths))
    known = cache(proportions)
    for row in random.choices(rows, lengths, k=TRIES * len(lengths)):
        places = np.flatnonzero(known(row))
        if not left[row] or not len(places):
            continue
        token = int(random.choice(places))
        if random.random() * math.exp(TALL) < known(row)[token]:
            left[row] = 0.0
            yield Plant(row, token)
    for row in rows:
        if left[row] and known(row).any():
            yield Plant(row, random.choices(range(len(known(row))), known(row).tolist())[0])
