"""How far a row's claimed log-probabilities may be off, in nats, before the row is rejected.

`muster.verification.statistics` measures claims in expected errors of log-odds. A trainer that uses them needs the same
in nats per token, because its clip is in nats. Everything here is an upper bound: over the tokens of a model, over
their probabilities, and over what a worker makes its own activation proof show.

The largest expected error of a token of probability p = 1 - x, in log-odds, is

    e(x) = e0 + least / x        e0 = hypot(s · S, u · M); x of the recomputed or the claimed one, the larger
    s    hypot(the profile's state error, its licence): no proof explains more than that
    S, M the largest |h| · |w| / (sqrt(H) · T) and the largest |logit| / T of the model; u and least as in `statistics`

A claim that is k expected errors too low is off by log(1 + x · (exp(k · e(x)) - 1)) nats. What the logarithm is taken
of is convex in x, and the whole is convex in k, so both are largest at an end: at x = 1, where that is
k · (e0 + least), or at x = SURE. Tokens with x below SURE are bounded apart. The least sure claim that passes for one
of them grows with x, so none is further off than that for x = SURE is from certainty. A claim that is too high is off
by no more than one that is too low.

Pure: numbers in, numbers out. The trainer (`trainer.old_logprobs`) compares them with its clip.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Self

from muster.verification.profiles import Profile
from muster.verification.statistics import FLOAT32, LEAST

SURE: Final = 1e-3
"""Tokens whose probability is above 1 - SURE have gradients below a thousandth of an unsure token's: the derivative of
a log-probability is at most 1 - p for each logit."""


@dataclass(frozen=True)
class ModelSizes:
    """What decides how far an error of the last state moves a logit, at most."""

    state_scale: float
    """Largest |h| · |w| / (sqrt(H) · T): what a relative state error of 1 makes of a logit over the temperature."""
    magnitude: float
    """Largest |logit| / T."""

    @classmethod
    def bounded_by(cls, *, gain: float, row_norm: float, hidden: int, temperature: float) -> Self:
        """Return bounds from the final norm's largest gain, in size, and the largest norm of the head's rows.

        The norm makes states of root mean square 1 before its gain, so |h| ≤ gain · sqrt(hidden).
        """
        scale = gain * row_norm / temperature
        return cls(state_scale=scale, magnitude=math.sqrt(hidden) * scale)


@dataclass(frozen=True)
class ToleratedError:
    """Upper bounds of the errors that a row's limits do not reject, in nats per token."""

    worst: float
    """Of one token with a probability of at most 1 - SURE."""
    sure: float
    """Of one token with a larger probability."""


def tolerated_error(profile: Profile, sizes: ModelSizes) -> ToleratedError:
    """Return what the profile's limits tolerate in a token of a model of these sizes."""
    k = profile.logprob_worst.reject
    state_error = math.hypot(profile.state_error, profile.licence)
    e0 = math.hypot(state_error * sizes.state_scale, profile.logit_rounding * sizes.magnitude)
    least = LEAST + FLOAT32 * sizes.magnitude
    at_sure = _nats_too_low(k, e0, least, max(SURE, least))
    # An exact claim may be 0 where -least is taken.
    return ToleratedError(worst=max(k * (e0 + least), at_sure), sure=at_sure + max(SURE, least) + least)


def _nats_too_low(k: float, e0: float, least: float, x: float) -> float:
    """Return by how many nats a claim k expected errors too low is off, for a token of probability 1 - x."""
    x = min(1.0, x)
    odds = k * (e0 + least / x)
    # log(1 + x · (e^odds - 1)), without overflow where logits are large.
    return odds + math.log(x + (1 - x) * math.exp(-odds))
