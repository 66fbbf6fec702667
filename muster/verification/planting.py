"""What a trap is: in some rows of a commitment the sampler takes the runner-up once, and all else is true. Pure.

Who replays such a row finds one token whose gap lies beyond the limit that accuses; who does not, finds nothing. For
without a forward pass a token's noise and its log-probability are all that tells of its gap, and in honest work their
sum, the token's *height*, has one distribution whatever the model says: the standard Gumbel distribution. A runner-up
is lower, as e^(-2h) against e^(-h). So a place is taken in proportion to e^h of its runner-up, which makes up for just
that, and never one that is lower than LOWEST. Without this the lowest token of a file would tell nearly every trap.
And what is taken away was higher than what comes, by the gap: so small gaps are taken first, as e^(-gap / CLOSE).

Rows are drawn in proportion to their tokens, the prompt's included: a chance per row would pay validators for
replaying the shortest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
"""Height up to which a taller runner-up is taken more often: one sampled token in twenty is taller."""

CLOSE: Final = 0.1
"""Gap beyond which a place is taken less often. Each false token lowers a file's heights by its gap."""

MARGIN: Final = 1.25
"""Times the accusing limit that a gap is here: another machine measures it a little smaller."""

STATES: Final = 0.25
"""Share of the limit on a pool's distances that another machine's states are expected to be off, all of them. Honest
rows are further off once in a hundred times, and only by that is a gap licensed."""


@dataclass(frozen=True, eq=False)
class Rivals:
    """The runners-up of one completion: what the sampler would have taken in each token's stead. float32 [T] each.

    Zeros where a token was given: its gap of 0 is never planted.
    """

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
    def from_bytes(cls, columns: bytes, sampled: np.ndarray) -> Rivals:
        """Return what the engine recorded of the sampled tokens: the fields in order, little-endian.

        sampled: which tokens were, bool [T].
        """
        fields = np.zeros((6, len(sampled)), np.float32)
        fields[:, sampled] = np.frombuffer(columns, dtype="<f4").reshape(6, -1)
        return cls(*fields)


@dataclass(frozen=True, order=True)
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
    near = np.minimum(found, TALL) - rivals.gaps / CLOSE
    return np.where(beyond & (found >= LOWEST), np.exp(near), 0.0)


def draw_plants(lengths: Sequence[float], proportions: Callable[[int], np.ndarray], random: Random) -> Iterator[Plant]:
    """Draw false tokens, in rows that differ, until no row is left that has a place for one.

    lengths: each row's tokens, prompt included: rows are drawn in proportion to them, and to the mean chance of their
    places. proportions: what `chances` returns for a row; asked once. Places race: the first of an exponential time at
    each one's rate is the first drawn.
    """
    arrivals: list[tuple[float, Plant]] = []
    for row, length in enumerate(lengths):
        found = proportions(row)
        rates = found * length / max(1, len(found))
        places = np.flatnonzero(rates)
        times = [random.expovariate(float(rates[place])) for place in places]
        if times:
            arrivals.append(min((time, Plant(row, int(place))) for time, place in zip(times, places, strict=True)))
    return (plant for _, plant in sorted(arrivals))
