"""Row statistics: claims are measured in the errors that honest arithmetic lets expect, for any model and length."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.verification.profiles import BF16, CPU_FP32, PROFILES, STATISTICS, Profile
from muster.verification.statistics import (
    CLIP,
    LICENCE,
    PRIOR_OUTLIERS,
    PRIOR_TOKENS,
    RowStatistics,
    TokenErrors,
    log_odds,
    scaled_errors,
)

LEAST = np.full(1, 1e-5)


def row(tokens: int, *, probability: float = 0.5, scale: float = 5.0, magnitude: float = 20.0) -> TokenErrors:
    """Return a row whose claims equal the recomputed values."""
    logprobs = np.full(tokens, math.log(probability), dtype=np.float32)
    zeros, scales = np.zeros(tokens, dtype=np.float32), np.full(tokens, scale, dtype=np.float32)
    return TokenErrors(
        gaps=zeros,
        claimed=logprobs,
        logprobs=logprobs,
        states=zeros,
        gap_scales=scales,
        logprob_scales=scales,
        magnitudes=np.full(tokens, magnitude, dtype=np.float32),
    )


def row_statistics(errors: TokenErrors, profile: Profile) -> RowStatistics:
    return scaled_errors(errors, profile).statistics()


def at(values: np.ndarray, token: int, value: float) -> np.ndarray:
    changed = values.copy()
    changed[token] = value
    return changed


def rejected_by(errors: TokenErrors, profile: Profile) -> set[str]:
    found = row_statistics(errors, profile)
    return {name for name in STATISTICS if getattr(found, name) > getattr(profile, name).reject}


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize("tokens", [1, 4, 4096])
def test_exact_claims_have_no_error(profile: Profile, tokens: int) -> None:
    assert astuple(row_statistics(row(tokens), profile)) == (0, 0, 0, 0, 0, 0)


def test_one_gap_is_measured_in_the_error_that_state_and_rounding_let_expect() -> None:
    """0.01 of a scale of 5 is 0.05, 2^-9 of a logit of 20 is 0.039: together 0.0635, and a gap of 0.3 is 4.7 of it."""
    expected = math.hypot(BF16.state_error * 5, BF16.logit_rounding * 20) + 1e-5
    found = row_statistics(replace(row(3), gaps=np.array([0, 0.3, 0], dtype=np.float32)), BF16)
    assert found.gap_worst == pytest.approx(0.3 / expected)
    assert found.gap_worst == pytest.approx(4.73, abs=0.01)
    assert found.gap_mean == pytest.approx(found.gap_worst / (3 + PRIOR_OUTLIERS))


def test_one_log_probability_is_measured_by_its_log_odds() -> None:
    """From 0.5 to 0.6 the odds go from 1 to 1.5."""
    errors = row(2)
    found = row_statistics(replace(errors, claimed=at(errors.claimed, 1, math.log(0.6))), BF16)
    expected = math.hypot(BF16.state_error * 5, BF16.logit_rounding * 20) + (1e-5 + 20 * 2**-22) / 0.5
    assert found.logprob_worst == pytest.approx(math.log(1.5) / expected, rel=1e-5)
    assert found.logprob_rms == pytest.approx(found.logprob_worst / math.sqrt(2 + PRIOR_TOKENS))


@given(times=st.floats(1, 500), probability=st.floats(0.01, 0.99), shift=st.floats(-3, 3))
def test_larger_logits_change_nothing(times: float, probability: float, shift: float) -> None:
    """A model whose logits are so many times as large has errors that are as many times as large."""

    def worst(factor: float) -> float:
        odds = math.log(probability / (1 - probability)) + shift * 0.1 * factor
        errors = row(1, probability=probability, scale=5 * factor, magnitude=20 * factor)
        claimed = np.array([-np.logaddexp(0, -odds)], dtype=np.float64)
        return row_statistics(replace(errors, claimed=claimed, gaps=errors.gaps + abs(shift) * factor), BF16).gap_worst

    assert worst(times) == pytest.approx(worst(1), rel=1e-3)


def test_the_log_odds_of_a_sure_token_move_as_its_logit_does() -> None:
    for odds in (-20.0, -1.0, 0.0, 3.0, 9.0):
        logprob = np.array([-np.logaddexp(0, -odds)])
        assert log_odds(logprob, LEAST)[0] == pytest.approx(odds, abs=1e-9)
    assert log_odds(np.zeros(1), LEAST)[0] == pytest.approx(math.log((1 - 1e-5) / 1e-5), abs=1e-4)


def test_a_collapsed_policy_may_differ_by_nats_where_its_logits_differ_by_as_much() -> None:
    """Logits of 2,000: bfloat16 rounds them to steps of 8, and a token that is sure here is unlikely there."""
    errors = row(32, probability=1 - 1e-7, scale=400.0, magnitude=2000.0)
    claimed = at(errors.claimed, 3, -6.0)
    assert rejected_by(replace(errors, claimed=claimed, gaps=at(errors.gaps, 3, 6.0)), BF16) == set()
    assert "logprob_worst" in rejected_by(replace(row(32, probability=1 - 1e-4), claimed=claimed), BF16)


@pytest.mark.parametrize("profile", [CPU_FP32, BF16], ids=lambda profile: profile.name)
def test_a_row_s_proof_licenses_errors_in_proportion_and_never_more_than_the_profile_s_licence(
    profile: Profile,
) -> None:
    errors = replace(row(64), gaps=at(np.zeros(64, dtype=np.float32), 7, 3.0))

    def gap(distance: float) -> float:
        states = np.full(64, distance**2, dtype=np.float32)
        return row_statistics(replace(errors, states=states), profile).gap_worst

    limit = profile.licence
    assert gap(0) > gap(limit / 2) > gap(limit)
    assert gap(limit) == pytest.approx(gap(1.0), rel=1e-6)


@pytest.mark.parametrize("profile", [CPU_FP32, BF16], ids=lambda profile: profile.name)
@pytest.mark.parametrize("tokens", [1, 8, 64])
def test_a_token_s_own_proof_licenses_nothing_that_the_rest_of_its_row_does_not_show(
    profile: Profile, tokens: int
) -> None:
    """An edited token, 9 expected errors off: spoiling its proof lifts no limit."""
    expected = math.hypot(profile.state_error * 5, profile.logit_rounding * 20) + 1e-5
    edited = replace(row(tokens), gaps=at(np.zeros(tokens, dtype=np.float32), 0, 9 * expected))
    assert "gap_worst" in rejected_by(edited, profile)
    for spoiled in (profile.activation.reject, 1.0):
        found = replace(edited, states=at(edited.states, 0, spoiled**2))
        assert row_statistics(found, profile).gap_worst == row_statistics(edited, profile).gap_worst
        assert "gap_worst" in rejected_by(found, profile)


def test_the_log_probability_of_a_row_of_one_token_is_licensed_by_its_own_proof() -> None:
    """Of 512 such rows of a model with outlier channels the worst was 8 errors off without: honest, and rejected."""
    lie = replace(row(1), claimed=-np.logaddexp(0, np.array([-0.5])), states=np.full(1, 0.03**2, dtype=np.float32))
    expected = math.hypot(5 * math.hypot(BF16.state_error, 0.03), BF16.logit_rounding * 20)
    assert row_statistics(lie, BF16).logprob_worst == pytest.approx(0.5 / expected, rel=1e-3)


def test_gaps_are_licensed_by_the_row_s_others_and_log_probabilities_by_twice_their_level_at_most() -> None:
    """States of 65 other tokens, 2 of them exact, are 0.012 off: a level of 0.0118."""
    states = np.full(64, 0.012**2, dtype=np.float32)
    claimed = at(np.full(64, math.log(0.5)), 7, math.log(0.6))
    errors = replace(row(64), gaps=at(np.zeros(64, dtype=np.float32), 7, 0.5), claimed=claimed)
    level = 0.012 * math.sqrt(63 / 65)

    def found(own: float) -> RowStatistics:
        return row_statistics(replace(errors, states=at(states, 7, own**2)), BF16)

    def expected(licence: float) -> float:
        return math.hypot(5 * math.hypot(BF16.state_error, licence), BF16.logit_rounding * 20)

    most = LICENCE * math.hypot(level, BF16.licence * math.sqrt(2 / 65))
    for own, licence in ((0.0, level), (0.02, 0.02), (0.05, most), (0.6, most)):
        assert found(own).gap_worst == pytest.approx(0.5 / (expected(math.sqrt(2) * level) + 1e-5), rel=1e-5)
        blur = (1e-5 + 20 * 2**-22) / 0.5
        assert found(own).logprob_worst == pytest.approx(math.log(1.5) / (expected(licence) + blur), rel=1e-4)


def test_single_state_outlier_does_not_accuse() -> None:
    """One wrong state, as in models with outlier channels, does not accuse. A shift of all states does."""
    for tokens in (1, 16, 512):
        errors = row(tokens)
        one = row_statistics(replace(errors, states=at(errors.states, 0, 0.6**2)), BF16).activation
        assert one < BF16.activation.accuse
        assert one == pytest.approx(math.sqrt(BF16.activation_cap**2 / (tokens + PRIOR_OUTLIERS)))
    two = replace(row(4), states=np.array([0.6**2, 0, 0.6**2, 0], dtype=np.float32))
    assert row_statistics(two, BF16).activation < BF16.activation.accuse / 2
    everywhere = row_statistics(replace(errors, states=errors.states + 0.15**2), BF16).activation
    assert everywhere > BF16.activation.accuse


def test_an_answer_that_wavers_at_two_digits_is_honest_and_another_sampling_is_not() -> None:
    """Two such gaps stood in 16 tokens of SmolLM2-135M as a swarm had trained it, honestly made and replayed."""
    expected = math.hypot(BF16.state_error * 5, BF16.logit_rounding * 20) + 1e-5
    errors = row(16)
    wavering = at(at(errors.gaps, 10, 4.62 * expected), 11, 5.03 * expected)
    found = row_statistics(replace(errors, gaps=wavering), BF16)
    assert found.gap_mean == pytest.approx(9.65 / 48, rel=1e-5)
    assert found.gap_mean < BF16.gap_mean.reject / 1.9
    every_other = np.where(np.arange(16) % 2, 5 * expected, 0).astype(np.float32)
    assert rejected_by(replace(errors, gaps=every_other), BF16) == {"gap_mean"}


def test_a_small_lie_on_every_token_shows_in_the_signed_sum() -> None:
    """Half an expected error more on each of 512 tokens is below every other limit."""
    errors = row(512)
    step = 0.5 * math.hypot(BF16.state_error * 5, BF16.logit_rounding * 20)
    odds = log_odds(errors.logprobs, np.full(512, 1e-5)) + step
    lie = replace(errors, claimed=-np.logaddexp(0, -odds))
    assert rejected_by(lie, BF16) == {"logprob_drift"}
    signs = np.where(np.arange(512) % 2, 1, -1)
    mixed = log_odds(errors.logprobs, np.full(512, 1e-5)) + step * signs
    assert rejected_by(replace(errors, claimed=-np.logaddexp(0, -mixed)), BF16) == set()


def test_one_huge_error_counts_in_the_worst_and_not_much_in_the_means() -> None:
    errors = replace(row(1000), gaps=at(np.zeros(1000, dtype=np.float32), 5, 1e6))
    found = row_statistics(errors, BF16)
    assert found.gap_worst > 1e6
    assert found.gap_mean == pytest.approx(CLIP / (1000 + PRIOR_OUTLIERS))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_claims_that_are_no_numbers_are_infinitely_wrong(value: float) -> None:
    errors = row(4)
    found = row_statistics(replace(errors, claimed=at(errors.claimed, 2, value)), CPU_FP32)
    assert (found.logprob_rms, found.logprob_worst, found.logprob_drift) == (math.inf, math.inf, math.inf)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_proof_that_cannot_be_compared_is_infinitely_wrong_and_licenses_nothing(
    profile: Profile, value: float
) -> None:
    edited = replace(row(4), gaps=at(np.zeros(4, dtype=np.float32), 1, 3.0))
    unproven = replace(edited, states=np.full(4, value, dtype=np.float32))
    found = scaled_errors(unproven, profile)
    assert found.statistics().activation == math.inf
    assert found.statistics().gap_worst == row_statistics(edited, profile).gap_worst
    assert found.sums(profile).states == 4, "in a pool it is as far off as unrelated states"


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize("lie", [0.05, 0.5, 3.0])
def test_a_token_that_is_sure_cannot_be_claimed_to_be_less_sure(profile: Profile, lie: float) -> None:
    """Where the model is sure to the last bit, honest claims are as well, whatever their last bits: a lie is seen."""
    sure = row(64, probability=1 - 1e-7)
    assert rejected_by(replace(sure, claimed=at(sure.logprobs, 3, -5e-6)), profile) == set()
    assert "logprob_worst" in rejected_by(replace(sure, claimed=at(sure.logprobs, 3, -lie)), profile)
