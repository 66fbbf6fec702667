"""What is left of a row's finding where honest machines differ: the tokens they agree on are judged, and no others."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from muster.verification.judging import Measurement, judge, judge_stable
from muster.verification.profiles import CPU_FP32, PROFILES, Profile
from muster.verification.statistics import TokenErrors

TOKENS = 24
BOTH = pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)


def row(**changes: np.ndarray) -> TokenErrors:
    """Return a row whose claims are exact, but for these changes."""
    zeros = np.zeros(TOKENS, np.float32)
    logprobs = np.full(TOKENS, math.log(0.5), np.float32)
    exact = TokenErrors(
        gaps=zeros,
        claimed=logprobs,
        logprobs=logprobs,
        states=zeros,
        gap_scales=zeros + 5,
        logprob_scales=zeros + 5,
        magnitudes=zeros + 20,
    )
    return replace(exact, **changes)


def at(*places: int, value: float) -> np.ndarray:
    values = np.zeros(TOKENS, np.float32)
    values[list(places)] = value
    return values


def reason(errors: TokenErrors, draws: list[TokenErrors], profile: Profile) -> str:
    found = judge_stable(errors, draws, profile, 3)
    assert found is None or found.position == 3
    return "" if found is None else f"{found.reason}{'!' if found.accuse else ''}"


@BOTH
def test_a_row_on_which_machines_agree_is_judged_as_ever(profile: Profile) -> None:
    for wrong in (row(gaps=at(2, value=9.0)), row(states=at(*range(TOKENS), value=1.0)), row()):
        assert judge_stable(wrong, [row()], profile, 3) == judge([Measurement.of(wrong, profile, 3)], profile)


@BOTH
def test_only_the_tokens_on_which_some_machine_differs_are_left_out(profile: Profile) -> None:
    unsure = [row(gaps=at(2, value=9.0)), row(gaps=at(7, value=np.inf)), row()]
    assert reason(row(gaps=at(2, 7, value=9.0)), unsure, profile) == ""
    assert reason(row(gaps=at(2, 3, 7, value=9.0)), unsure, profile) == "sampling_mismatch!"
    assert reason(row(states=at(*range(TOKENS), value=1.0)), unsure, profile) == "activation_mismatch!"
    assert reason(row(gaps=at(2, value=9.0)), [row(gaps=at(*range(TOKENS), value=9.0))], profile) == ""


@BOTH
def test_a_token_is_left_out_where_its_claim_or_state_differs(profile: Profile) -> None:
    lie = row(gaps=at(2, value=9.0))
    near = profile.activation.reject
    assert reason(lie, [row(states=at(2, value=(1.01 * near) ** 2))], profile) == ""
    assert reason(lie, [row(states=at(2, value=(0.99 * near) ** 2))], profile) == "sampling_mismatch!"
    assert reason(lie, [row(claimed=row().logprobs - at(2, value=9.0))], profile) == ""
    assert reason(lie, [row(claimed=row().logprobs + at(2, value=np.nan))], profile) == ""
    assert reason(lie, [row(claimed=row().logprobs - at(3, value=9.0))], profile) == "sampling_mismatch!"


def test_the_level_of_a_row_is_that_of_the_tokens_that_are_left() -> None:
    """A proof that is spoilt at unstable tokens licenses nothing at others."""
    spoilt = at(*range(18), value=1.0)
    lie = row(gaps=at(20, value=0.008), states=spoilt)
    assert judge([Measurement.of(replace(lie, states=at(value=0.0)), CPU_FP32, 3)], CPU_FP32) is not None
    with_licence = Measurement.of(lie, CPU_FP32, 3)
    assert with_licence.gap_worst < CPU_FP32.gap_worst.accuse
    assert reason(lie, [row(states=spoilt)], CPU_FP32) == "sampling_mismatch!"


def test_a_mean_that_machines_reach_together_blames_nobody_and_others_do() -> None:
    """Each token's error is below what rejects one, and their mean is above what rejects a row."""
    off = row(claimed=(row().logprobs - np.float32(0.0006)).astype(np.float32))
    wrong = row(claimed=off.claimed - np.float32(0.00005))
    assert judge([Measurement.of(off, CPU_FP32, 3)], CPU_FP32) is not None
    assert reason(wrong, [row()], CPU_FP32) == "wrong_logprobs!"
    assert reason(wrong, [off], CPU_FP32) == ""
    assert reason(replace(wrong, gaps=at(4, value=9.0)), [off], CPU_FP32) == "sampling_mismatch!"
