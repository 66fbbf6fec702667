"""What row limits tolerate, in nats: exact values, and no claim that passes the limits is further off."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.verification.profiles import BF16, CPU_FP32, PROFILES, STATISTICS, Profile
from muster.verification.statistics import FLOAT32, LEAST, TokenErrors, scaled_errors
from muster.verification.tolerance import SURE, ModelSizes, tolerated_error
from testbed.suite.examples import up_to

DEMO = ModelSizes.bounded_by(gain=1.0, row_norm=0.87168, hidden=128, temperature=1.0)


def row(logprobs: np.ndarray, sizes: ModelSizes, distance: float) -> TokenErrors:
    """Return an exact row of a model at its bounds, whose proof is off by `distance` at every token."""
    count = len(logprobs)
    return TokenErrors(
        gaps=np.zeros(count),
        claimed=logprobs,
        logprobs=logprobs,
        states=np.full(count, distance**2),
        gap_scales=np.full(count, sizes.state_scale),
        logprob_scales=np.full(count, sizes.state_scale),
        magnitudes=np.full(count, sizes.magnitude),
    )


def passes(errors: TokenErrors, profile: Profile) -> bool:
    found = scaled_errors(errors, profile).statistics()
    return all(getattr(found, name) <= getattr(profile, name).reject for name in STATISTICS)


def largest_lie(honest: TokenErrors, claim: Callable[[float], np.ndarray], profile: Profile) -> np.ndarray:
    """Return the claims of the largest size that pass, by bisection."""
    low, high = 0.0, 64.0
    for _ in range(50):
        middle = (low + high) / 2
        kept = passes(replace(honest, claimed=claim(middle)), profile)
        low, high = (middle, high) if kept else (low, middle)
    return claim(low)


def expected(profile: Profile, sizes: ModelSizes) -> float:
    """Return the largest expected error of an unsure token, by hand."""
    state_error = math.hypot(profile.state_error, profile.licence)
    return math.hypot(state_error * sizes.state_scale, profile.logit_rounding * sizes.magnitude)


def test_bounds_of_a_model_follow_from_its_gain_and_its_heads_rows() -> None:
    sizes = ModelSizes.bounded_by(gain=2.0, row_norm=3.0, hidden=16, temperature=0.5)
    assert (sizes.state_scale, sizes.magnitude) == (12.0, 48.0)


@pytest.mark.parametrize(("profile", "worst"), [(CPU_FP32, 0.001215), (BF16, 0.5814)], ids=["cpu-fp32", "bf16"])
def test_the_demos_tolerance(profile: Profile, worst: float) -> None:
    """Another value means that the limits and docs/understand/verification.md have changed."""
    found = tolerated_error(profile, DEMO)
    assert found.worst == pytest.approx(worst, rel=2e-3)
    assert found.worst == pytest.approx(12 * (expected(profile, DEMO) + LEAST + FLOAT32 * DEMO.magnitude))


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_the_worst_is_reached(profile: Profile) -> None:
    """A rare token of a model at its bounds, whose proof is as far off as it may be, in a row that is exact besides."""
    odds = np.full(64, -12.0)
    honest = row(-np.logaddexp(0, -odds), DEMO, profile.licence)
    one = np.arange(64) == 3
    claims = largest_lie(honest, lambda size: -np.logaddexp(0, -(odds - size * one)), profile)
    reached = float(np.abs(claims - honest.logprobs).max())
    assert reached == pytest.approx(tolerated_error(profile, DEMO).worst, rel=0.02)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize("sureness", [7.0, 11.0, 14.0])
def test_a_sure_token_cannot_be_claimed_to_be_unsure(profile: Profile, sureness: float) -> None:
    odds = np.full(64, sureness)
    honest = row(-np.logaddexp(0, -odds), DEMO, profile.licence)
    one = np.arange(64) == 3
    claims = largest_lie(honest, lambda size: -np.logaddexp(0, -(odds - size * one)), profile)
    reached, bound = float(np.abs(claims - honest.logprobs).max()), tolerated_error(profile, DEMO).sure
    assert reached <= bound < 0.003


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@settings(max_examples=up_to(150), deadline=None)
@given(
    tokens=st.integers(1, 600),
    seed=st.integers(0, 2**32 - 1),
    scale=st.floats(0.01, 50),
    spread=st.floats(0, 6),
    centre=st.floats(-12, 14),
    kind=st.sampled_from(["shift down", "shift up", "signs", "few", "one", "nats"]),
    distance=st.floats(0, 1),
)
def test_no_claim_that_passes_is_further_off_than_said(
    profile: Profile, tokens: int, seed: int, scale: float, spread: float, centre: float, kind: str, distance: float
) -> None:
    random = np.random.default_rng(seed)
    sizes = ModelSizes.bounded_by(gain=1.0, row_norm=scale, hidden=256, temperature=1.0)
    odds = random.normal(centre, spread, tokens)
    honest = row(-np.logaddexp(0, -odds), sizes, distance * profile.activation.reject)
    direction = {
        "shift down": -np.ones(tokens),
        "shift up": np.ones(tokens),
        "signs": random.choice([-1.0, 1.0], tokens),
        "few": -(random.random(tokens) < 0.06).astype(float),
        "one": -(np.arange(tokens) == random.integers(tokens)).astype(float),
        "nats": -np.ones(tokens),
    }[kind]

    def claim(size: float) -> np.ndarray:
        if kind == "nats":
            return honest.logprobs - size
        return -np.logaddexp(0, -(odds + size * direction))

    claims = largest_lie(honest, claim, profile)
    errors = claims - honest.logprobs
    surer = honest.logprobs > math.log1p(-SURE)
    bound = tolerated_error(profile, sizes)
    slack = 1 + 1e-6
    assert np.abs(errors[surer]).max(initial=0.0) <= bound.sure * slack
    unsure = np.where(surer, 0.0, errors)
    assert np.abs(unsure).max() <= bound.worst * slack


@given(scale=st.floats(1e-3, 1e4), more=st.floats(1, 10))
def test_larger_models_are_tolerated_more(scale: float, more: float) -> None:
    def bound(times: float) -> tuple[float, ...]:
        sizes = ModelSizes.bounded_by(gain=times, row_norm=scale, hidden=4096, temperature=1.0)
        found = tolerated_error(BF16, sizes)
        return found.worst, found.sure

    one = bound(1.0)
    assert all(map(math.isfinite, one))
    assert all(a <= b * (1 + 1e-9) for a, b in zip(one, bound(more), strict=True))
