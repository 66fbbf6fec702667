"""The statistics of the replay checks: how far a row's claims are off, in units of what honest arithmetic leaves open.

Two machines that compute the same model differ in the last bits, and how much that moves a logit depends on the model:
on how far apart their last hidden states are, on the size of the states and of the head's rows, and on the rounding of
the logits themselves. So each token's error is divided by the error that these let expect, and the statistics of honest
work then lie on top of each other whatever the model's logits are and however long its rows.

A log-probability l is compared as log-odds, l - log(1 - e^l): these are the token's logit less the logsumexp of all
others, so that they move in proportion to the logits, also where the model is sure. For a token a, a state h of H
entries with a relative error s, head rows w and temperature T, the expected errors are

    log-odds    hypot(s · |h| · |w_a| / sqrt(H), u · m) / T            sum of the others' rows: small beside w_a
    gap to b    hypot(s · |h| · |w_a - w_b| / sqrt(H), u · m) / T

    u, m        relative rounding of a logit; the larger of |logit of a| and |largest logit|
    s           hypot(the profile's state error, a licence)

The activation proof says how far the worker's states are from the validator's: claims may differ by what that distance
explains, and by no more. A gap's licence follows from the row's *other* tokens: the square is OTHERS times their mean
square distance, each and all at most the profile's licence. So a node that spoils the proof of a token that it edits
gains nothing, and one that spoils whole rows shows it by them. A log-probability's licence is the token's own distance,
at least the others' level, and at most LICENCE times that: it is off at every token, in models with outlier channels at
some by much. There PRIOR_STATES more stand beside the others that are as far off as a licence goes, because a row of
one token has no others: its log-probability would be rejected in honest work.

Pure: arrays in, numbers out. The replay checks (`muster.verification.replay`) compute the arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import add
from typing import Final, Self

import numpy as np

from muster.verification.profiles import Profile

CLIP: Final = 8.0
"""Largest error of one token, in expected errors, that counts in a mean: what is beyond shows in the worst."""

PRIOR_TOKENS: Final = 8
"""Tokens without any error that stand beside each row's: a mean over very few tokens says little."""

PRIOR_OUTLIERS: Final = 32
"""The same for gaps and for distances of states, of which two outliers in a short row are honest: a trained model that
wavers between two digits amplifies rounding where it decides, and decides by it twice."""

PRIOR_STATES: Final = 2
"""The same for the level of a row's states: one other token alone licenses little."""

OTHERS: Final = 2.0
"""Times the mean square distance of a row's other tokens that licenses a gap. Honest tokens that waver are off by more
than their row: with 1 the largest gap of 32,768 tokens of a model with outlier channels is 6.2 of 8, with 2 it is 4.6.
"""

LICENCE: Final = 2.0
"""How many times as far off as the rest of its row a token's own proof may license its log-probability to be."""

DRIFT: Final = 0.1
"""Signed mean, in expected errors, that honest rows may have: sampling favours tokens whose logits rounding lifted."""

FLOAT32: Final = 2.0**-22
"""Relative error of a log-probability through float32's exponentials and sums."""

LEAST: Final = 1e-5
"""Nats below which two log-probabilities, or two noised logits, count as equal."""


@dataclass(frozen=True, eq=False)
class TokenScores:
    """What the model says of each token, for one row or several: float32 [T] each."""

    gaps: np.ndarray
    """How far the token is from the one its seed samples, in logits over temperature; 0 where it is that token."""
    logprobs: np.ndarray
    """Recomputed log-probabilities."""
    gap_scales: np.ndarray
    """|h| · |w_a - w_b| / (sqrt(H) · T): what a relative state error of 1 makes of the gap."""
    logprob_scales: np.ndarray
    """|h| · |w_a| / (sqrt(H) · T)"""
    magnitudes: np.ndarray
    """The larger of the token's logit and the largest one, in size, over temperature."""


@dataclass(frozen=True, eq=False)
class TokenErrors(TokenScores):
    """The same, and what the worker claims of each token."""

    claimed: np.ndarray
    """Claimed log-probabilities."""
    states: np.ndarray
    """Squared relative distance of each state by the activation proof; infinite where that cannot be compared."""

    def at(self, places: np.ndarray) -> Self:
        """Return the errors of the tokens at these places: a mask, or indices."""
        return type(self)(**{name: values[places] for name, values in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class RowStatistics:
    """What the profile's limits judge. All are 0 for claims that are exactly the recomputed values.

    Infinite where a claim is missing, or is no number.
    """

    gap_mean: float
    """Mean gap, in expected errors, each at most CLIP."""
    gap_worst: float
    """The largest gap, in expected errors."""
    activation: float
    """Root of the mean squared relative distance of the states, each at most the profile's cap."""
    logprob_rms: float
    """Root of the mean squared error of the log-probabilities, in expected errors, each at most CLIP."""
    logprob_worst: float
    """The largest error of a log-probability, in expected errors."""
    logprob_drift: float
    """How far the signed sum of these errors is beyond DRIFT a token, in standard deviations of such a sum."""


@dataclass(frozen=True)
class RowSums:
    """What rows are added up by: over the tokens of one row, each in expected errors as in `RowStatistics`."""

    tokens: int
    gaps: float
    """Of gaps, each at most CLIP."""
    states: float
    """Of squared relative distances, each at most the square of the profile's cap."""
    squares: float
    """Of squared errors of log-probabilities, each at most CLIP in size."""
    signed: float
    """Of these errors with their signs."""
    gaps_beyond: int = 0
    """Rows whose largest gap rejects them."""
    logprobs_beyond: int = 0
    """Rows whose largest error of a log-probability rejects them."""

    def __add__(self, other: RowSums) -> RowSums:
        return RowSums(*map(add, vars(self).values(), vars(other).values()))


NOTHING: Final = RowSums(0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, eq=False)
class ScaledErrors:
    """Each token's errors in expected errors, for one row: float64 [T] each."""

    gaps: np.ndarray
    logprobs: np.ndarray
    """Signed; not finite where a claim is no number."""
    states: np.ndarray
    """Squared relative distances, each at most the square of the profile's cap; infinite where there is none."""

    def statistics(self) -> RowStatistics:
        tokens, outliers = len(self.gaps) + PRIOR_TOKENS, len(self.gaps) + PRIOR_OUTLIERS
        sound = bool(np.isfinite(self.logprobs).all())
        clipped = np.clip(self.logprobs, -CLIP, CLIP)
        drift = max(0.0, abs(_sum(clipped)) - DRIFT * len(clipped)) / math.sqrt(tokens) if sound else math.inf
        return RowStatistics(
            gap_mean=_sum(np.minimum(self.gaps, CLIP)) / outliers,
            gap_worst=float(self.gaps.max()),
            activation=math.sqrt(_sum(self.states) / outliers),
            logprob_rms=math.sqrt(_sum(np.square(clipped)) / tokens) if sound else math.inf,
            logprob_worst=float(np.abs(self.logprobs).max()) if sound else math.inf,
            logprob_drift=drift,
        )

    def sums(self, profile: Profile) -> RowSums:
        """Return the row's sums. A claim that is no number counts as one that is CLIP too high, a proof as 1 off."""
        clipped = np.clip(np.nan_to_num(self.logprobs, nan=CLIP), -CLIP, CLIP)
        return RowSums(
            tokens=len(self.gaps),
            gaps=_sum(np.minimum(self.gaps, CLIP)),
            states=_sum(np.nan_to_num(self.states, posinf=1.0)),
            squares=_sum(np.square(clipped)),
            signed=_sum(clipped),
            gaps_beyond=int(not self.gaps.max() <= profile.gap_worst.reject),
            logprobs_beyond=int(not np.abs(self.logprobs).max() <= profile.logprob_worst.reject),
        )


def scaled_errors(errors: TokenErrors, profile: Profile) -> ScaledErrors:
    """Divide the errors of one row of T ≥ 1 tokens by those to expect of it."""
    # 1. How far the states are off, by the proof: each token's share is bounded, so that one outlier decides nothing.
    states = errors.states.astype(np.float64)
    states = np.where(np.isfinite(states), np.minimum(states, profile.activation_cap**2), np.inf)

    # 2. Errors in units of those that this lets expect.
    expected_gaps, expected_odds = expected_errors(errors, profile)
    least = LEAST + FLOAT32 * errors.magnitudes
    logprobs = (log_odds(errors.claimed, least) - log_odds(errors.logprobs, least)) / expected_odds
    logprobs[~np.isfinite(errors.claimed)] = np.nan
    return ScaledErrors(errors.gaps / expected_gaps, logprobs, states)


def expected_errors(errors: TokenErrors, profile: Profile) -> tuple[np.ndarray, np.ndarray]:
    """Return the errors to expect of each token's gap and of its log-odds, by its row's others: float64 [T] each."""
    states = errors.states.astype(np.float64)
    own = np.where(np.isfinite(states), np.minimum(states, profile.licence**2), 0.0)  # without a proof no licence
    level = (own.sum() - own) / (len(own) - 1 + PRIOR_STATES)
    most = level + profile.licence**2 * PRIOR_STATES / (len(own) - 1 + PRIOR_STATES)
    licences = (np.minimum(OTHERS * level, profile.licence**2), np.clip(own, level, LICENCE**2 * most))
    state_errors = [np.sqrt(profile.state_error**2 + one) for one in licences]
    rounding = profile.logit_rounding * errors.magnitudes
    gaps = np.hypot(state_errors[0] * errors.gap_scales, rounding) + LEAST
    least = LEAST + FLOAT32 * errors.magnitudes
    # LEAST in log-odds, by the less sure of the two: a claim far from sure still differs from sure ones.
    less_sure = np.minimum(errors.logprobs, np.where(np.isfinite(errors.claimed), errors.claimed, 0.0)).astype(
        np.float64
    )
    blur = least / np.maximum(-np.expm1(less_sure), least)
    return gaps, np.hypot(state_errors[1] * errors.logprob_scales, rounding) + blur


def lift(errors: TokenErrors, units: np.ndarray | float, profile: Profile) -> np.ndarray:
    """Return claims that `scaled_errors` finds so many expected errors too high, never above 0: float32 [T]."""
    odds = log_odds(errors.logprobs, LEAST + FLOAT32 * errors.magnitudes) + units * expected_errors(errors, profile)[1]
    return np.maximum(errors.logprobs, -np.logaddexp(0.0, -odds)).astype(np.float32)


def log_odds(logprobs: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Return log(p / (1 - p)) for log-probabilities [T], each taken to be below zero by `least` [T]: float64 [T]."""
    below = np.minimum(logprobs.astype(np.float64), -least)
    return below - np.log(-np.expm1(below))


def _sum(values: np.ndarray) -> float:
    return float(values.sum(dtype=np.float64))
