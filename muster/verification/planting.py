"""What a trap is: in some rows of a commitment the sampler takes the runner-up once. Pure.

Who replays such a row finds one token whose gap lies beyond the limit that accuses; who does not, finds next to
nothing. For without a forward pass a token's noise and its log-probability are all that tells of its gap. In honest
work their sum, the token's *height*, has one distribution whatever the model says, the standard Gumbel distribution,
and says nothing of the log-probability.

A runner-up is lower than the token that it replaces, by its gap. So the row's claims are too high, the false token's
by most: until the heights are in sum what they were, or FALSE_SHARE of a limit for log-probabilities is used up. By
more the row could be accused of its claims, for which no ticket answers. In float32 gaps are so small that this is
nothing.

And places are drawn so that false tokens are neither lower nor less likely than those that they replace. That a token
of probability p is sampled at height h, and one of q is the next at k, has the density

    p q exp(-h - k - p e^-h - (1 - p) e^-k)

where both nearly tie. A chance in inverse proportion leaves p and q alike; times e^(-c/2) exp(-e^-c), c the claimed
height, what heights still lack tells the least. Small gaps are taken first, as e^(-gap / CLOSE).

Rows are drawn in proportion to their tokens, the prompt's included: a chance per row would pay validators for
replaying the shortest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

import numpy as np
import torch

from muster.proofs.seeded_sampling import noise_at
from muster.verification.profiles import Profile
from muster.verification.statistics import TokenErrors, lift, scaled_errors

LOWEST: Final = -1.6
"""Height below which no false token is claimed: one sampled token in 140 is lower."""

CLOSE: Final = 0.1
"""Gap beyond which a place is taken less often: what claims cannot make up for lowers a file's heights."""

FALSE_SHARE: Final = 0.5
"""Share of the limits that accuse for log-probabilities which a false row's claims may take. Honest errors, which come
on top, are at most the other half in calibrations; where one is larger, jurors still name the gap, which is first."""

MARGIN: Final = 1.25
"""Times the accusing limit that a gap is here: another machine measures it a little smaller."""

STATES: Final = 0.25
"""Share of the limit on a pool's distances that another machine's states are expected to be off, all of them. Honest
rows are further off once in a hundred times, and only by that is a gap licensed."""


HALVINGS: Final = 12
"""Of the range in which the size of a row's false claims is searched."""

_MEANS: Final = ("logprob_rms", "logprob_drift")


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
    largest: np.ndarray
    """The largest logit, in size, over temperature: what magnitudes are at least, whatever is claimed."""

    @classmethod
    def from_bytes(cls, columns: bytes, sampled: np.ndarray) -> Rivals:
        """Return what the engine recorded of the sampled tokens: the fields in order, little-endian.

        sampled: which tokens were, bool [T].
        """
        fields = np.zeros((len(cls.__dataclass_fields__), len(sampled)), np.float32)
        fields[:, sampled] = np.frombuffer(columns, dtype="<f4").reshape(len(fields), -1)
        return cls(*fields)

    def at(self, places: np.ndarray) -> Rivals:
        """Return those at some places."""
        return Rivals(*(column[places] for column in vars(self).values()))


@dataclass(frozen=True, eq=False)
class HeadRows:
    """Of the head's rows w, a of each sampled token and b of its runner-up: float32 [T] each."""

    apart: np.ndarray
    """|w_a - w_b|"""
    sampled: np.ndarray
    """|w_a|"""
    rivals: np.ndarray
    """|w_b|"""


@dataclass(frozen=True, order=True)
class Plant:
    """One false token: the row's place in the commitment, and the token's in the completion."""

    row: int
    token: int


def noise_of(tokens: np.ndarray, seed: int) -> np.ndarray:
    """Return the noise of the tokens of a completion: float32 [T]."""
    seeds = torch.full((len(tokens),), seed, dtype=torch.int64)
    return noise_at(seeds, torch.arange(len(tokens)), torch.from_numpy(tokens.astype(np.int64))).numpy()


def expected_gaps(rivals: Rivals, apart: np.ndarray, profile: Profile) -> np.ndarray:
    """Return each runner-up's gap as another machine measures it, in expected errors: float64 [T].

    apart: as in `HeadRows`.
    """
    errors = _token_errors(rivals, rivals.logprobs, np.zeros_like(apart))
    states = np.full_like(rivals.gaps, (STATES * profile.pool.activation) ** 2)
    scales = rivals.sizes * apart
    return scaled_errors(replace(errors, states=states, gap_scales=scales, magnitudes=rivals.magnitudes), profile).gaps


def chances(rivals: Rivals, rows: HeadRows, seed: int, profile: Profile) -> np.ndarray:
    """Return in what proportion each token of a row may be the false one: float64 [T], 0 where it may not."""
    second = (rivals.logprobs + noise_of(rivals.tokens, seed)).astype(np.float64)
    first = second + rivals.gaps
    claimed = second + (_own_claims(rivals, rows, profile) - rivals.logprobs)
    sure = np.exp(np.minimum(first - noise_of(rivals.sampled, seed), 0.0))
    tie = first + second + sure * np.exp(-first) + (1.0 - sure) * np.exp(-second)
    near = tie - claimed / 2 - np.exp(-claimed) - rivals.gaps / CLOSE
    beyond = expected_gaps(rivals, rows.apart, profile) > MARGIN * profile.gap_worst.accuse
    return np.where(beyond & (claimed >= LOWEST), np.exp(near), 0.0)


def false_claims(rivals: Rivals, rows: HeadRows, logprobs: np.ndarray, place: int, profile: Profile) -> np.ndarray:
    """Return what a row claims that has the runner-up at a place, so that its heights are in sum what they were.

    Or as near to that as FALSE_SHARE of the judges' limits lets it come. rivals, rows, logprobs: of the sampled
    tokens; logprobs as the model has them. float32 [T].
    """
    norms = np.where(np.arange(len(logprobs)) == place, rows.rivals, rows.sampled)
    errors = _token_errors(rivals, logprobs, norms)

    def claims(units: float) -> np.ndarray:
        found = lift(errors, units, profile)
        found[place] = _own_claims(rivals, rows, profile)[place]
        return found

    def fits(units: float) -> bool:
        claimed = claims(units)
        found = scaled_errors(replace(errors, claimed=claimed), profile).statistics()
        within = all(getattr(found, name) <= FALSE_SHARE * getattr(profile, name).accuse for name in _MEANS)
        return within and float((claimed - logprobs).sum()) <= rivals.gaps[place]

    low, high = 0.0, FALSE_SHARE * profile.logprob_worst.accuse
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return claims(low)


def _own_claims(rivals: Rivals, rows: HeadRows, profile: Profile) -> np.ndarray:
    """Return what each runner-up claims for itself: at most what makes it as high as the sampled token."""
    errors = _token_errors(rivals, rivals.logprobs, rows.rivals)
    return np.minimum(lift(errors, FALSE_SHARE * profile.logprob_worst.accuse, profile), rivals.logprobs + rivals.gaps)


def _token_errors(rivals: Rivals, logprobs: np.ndarray, norms: np.ndarray) -> TokenErrors:
    """Return true claims, and the least that may scale their errors on another machine."""
    nothing = np.zeros_like(logprobs)
    return TokenErrors(
        gaps=rivals.gaps,
        claimed=logprobs,
        logprobs=logprobs,
        states=nothing,
        gap_scales=nothing,
        logprob_scales=rivals.sizes * norms,
        magnitudes=rivals.largest,
    )


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
