"""pass@k, its interval and the band of a filter: values worked out by hand, and what must hold for any counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.authoring.evaluation.pass_at_k import Band, Estimate, mean_of, mean_pass_at_k, pass_at_k, sift
from muster.errors import UsageError


@pytest.mark.parametrize(
    ("samples", "right", "k", "expected"),
    [
        (1, 0, 1, 0.0),
        (1, 1, 1, 1.0),
        (8, 2, 1, 0.25),
        (5, 2, 3, 0.9),  # 1 - C(3,3)/C(5,3) = 1 - 1/10
        (4, 1, 2, 0.5),  # 1 - C(3,2)/C(4,2) = 1 - 3/6
        (8, 3, 4, 65 / 70),  # 1 - C(5,4)/C(8,4) = 1 - 5/70
        (8, 5, 4, 1.0),  # three wrong answers cannot fill four
        (8, 1, 8, 1.0),
        (8, 0, 8, 0.0),
        (200, 1, 100, 0.5),
    ],
)
def test_pass_at_k_is_what_one_works_out_by_hand(samples: int, right: int, k: int, expected: float) -> None:
    assert pass_at_k(samples, right, k) == expected


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_all_choices_that_hold_a_right_answer(case: tuple[int, int, int]) -> None:
    samples, right, k = case
    choices = list(combinations([True] * right + [False] * (samples - right), k))
    assert pass_at_k(samples, right, k) == pytest.approx(sum(map(any, choices)) / len(choices), abs=1e-15)


@given(st.integers(1, 10), st.integers(0, 12), st.data())
def test_pass_at_k_is_unbiased(denominator: int, numerator: int, data: st.DataObject) -> None:
    """Exactly: over all numbers of right answers that a task of pass rate p gives, its mean is 1 - (1-p)^k."""
    rate = Fraction(min(numerator, denominator), denominator)
    samples = data.draw(st.integers(1, 10))
    k = data.draw(st.integers(1, samples))
    chances = [math.comb(samples, c) * rate**c * (1 - rate) ** (samples - c) for c in range(samples + 1)]
    mean = sum(float(chance) * pass_at_k(samples, c, k) for c, chance in enumerate(chances))
    assert mean == pytest.approx(float(1 - (1 - rate) ** k), abs=1e-12)


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n), min_size=1))))
def test_more_tries_never_do_worse_and_the_interval_holds_the_estimate(case: tuple[int, list[int]]) -> None:
    samples, right = case
    estimates = [mean_pass_at_k(right, samples, k) for k in range(1, samples + 1)]
    values = [estimate.value for estimate in estimates]
    assert values == sorted(values)
    assert values[0] == pytest.approx(sum(right) / (samples * len(right)))
    for estimate in estimates:
        assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
        assert estimate.high - estimate.low > 0


@pytest.mark.parametrize(("samples", "right", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0)])
def test_impossible_counts_are_refused(samples: int, right: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(samples, right, k)


def test_with_one_answer_to_a_task_the_interval_is_wilsons() -> None:
    """Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29 (score method without continuity correction)."""
    for right, tasks, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (1, 29, 0.0061, 0.1718)):
        estimate = mean_pass_at_k([1] * right + [0] * (tasks - right), 1, 1)
        assert (estimate.low, estimate.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))
    assert mean_pass_at_k([0] * 20, 1, 1) == Estimate(0.0, 0.0, pytest.approx(0.1611, abs=5e-5))
    assert mean_pass_at_k([1] * 20, 1, 1) == Estimate(1.0, pytest.approx(0.8389, abs=5e-5), 1.0)


def test_tasks_that_are_all_alike_count_as_all_their_answers_and_no_more() -> None:
    """Four of eight right in each of 25 tasks say as much as 100 of 200 single answers."""
    alike = mean_pass_at_k([4] * 25, 8, 1)
    single = mean_pass_at_k([1] * 100 + [0] * 100, 1, 1)
    assert (alike.low, alike.high) == (pytest.approx(single.low), pytest.approx(single.high))


def test_answers_to_a_task_that_are_all_alike_count_as_one() -> None:
    several, single = mean_pass_at_k([8] * 30 + [0] * 70, 8, 1), mean_pass_at_k([1] * 30 + [0] * 70, 1, 1)
    assert (several.low, several.high) == (pytest.approx(single.low), pytest.approx(single.high))


def test_the_effective_number_of_tasks_by_hand() -> None:
    """Values 0, 0.5, 0.5, 1: mean 0.5, variance 0.125, p(1-p) = 0.25, so four tasks count as eight."""
    estimate, eight = mean_of([0, 0.5, 0.5, 1], 8), mean_of([1] * 4 + [0] * 4, 1)
    assert (estimate.low, estimate.high) == (pytest.approx(eight.low), pytest.approx(eight.high))
    assert estimate.low == pytest.approx(0.2152, abs=5e-5)


def test_a_single_task_says_no_more_than_one_answer() -> None:
    estimate = mean_pass_at_k([4], 8, 1)
    assert estimate.value == 0.5
    assert (estimate.low, estimate.high) == (pytest.approx(0.0546, abs=5e-5), pytest.approx(0.9454, abs=5e-5))
    with pytest.raises(ValueError, match="no tasks"):
        mean_of([], 8)


# --- Trials: how often the interval holds the truth

Interval = Callable[[list[float], int, Random], tuple[float, float]]


def ours(values: list[float], samples: int, _: Random) -> tuple[float, float]:
    estimate = mean_of(values, samples)
    return estimate.low, estimate.high


def bootstrap(values: list[float], _: int, rng: Random) -> tuple[float, float]:
    """Percentiles of the means of tasks drawn again."""
    means = sorted(sum(rng.choices(values, k=len(values))) / len(values) for _ in range(200))
    return means[5], means[194]


def coverage(interval: Interval, alpha: float, beta: float, k: int, trials: int) -> float:
    """Return the share of trials in which the interval holds the truth.

    A trial has 64 tasks whose pass rates are of a beta distribution, 8 answers each.
    """
    rng, tasks, samples = Random(0), 64, 8
    truth = 1 - math.exp(
        math.lgamma(beta + k) - math.lgamma(beta) + math.lgamma(alpha + beta) - math.lgamma(alpha + beta + k)
    )
    held = 0
    for _ in range(trials):
        rates = [rng.betavariate(alpha, beta) for _ in range(tasks)]
        right = [sum(rng.random() < rate for _ in range(samples)) for rate in rates]
        low, high = interval([pass_at_k(samples, count, k) for count in right], samples, rng)
        held += low <= truth <= high
    return held / trials


@pytest.mark.parametrize(
    ("alpha", "beta"), [(0.3, 0.3), (1, 1), (5, 5), (0.5, 8), (8, 0.5), (50, 2)], ids=lambda value: f"{value:g}"
)
@pytest.mark.parametrize("k", [1, 4, 8])
def test_the_interval_holds_the_truth_as_often_as_it_says(alpha: float, beta: float, k: int) -> None:
    assert coverage(ours, alpha, beta, k, trials=1000) >= 0.925


def test_a_bootstrap_over_tasks_would_miss_the_truth_where_nearly_all_tasks_pass() -> None:
    assert coverage(bootstrap, 8, 0.5, 8, trials=50) < 0.5
    assert coverage(ours, 8, 0.5, 8, trials=50) > 0.9


# --- The band


def test_both_ends_of_the_band_belong_to_it() -> None:
    sifted = sift([0, 1, 2, 8, 9, 10, 8, 10], 10, Band(0.1, 0.8))
    assert sifted.kept == (1, 2, 3, 6)
    assert (sifted.too_hard, sifted.too_easy) == (1, 3)
    assert sifted.histogram == (1, 1, 1, 0, 0, 0, 0, 0, 2, 1, 2)


@pytest.mark.parametrize("samples", range(1, 65))
def test_a_rate_that_is_the_bound_is_in_whatever_the_number_of_samples(samples: int) -> None:
    """Rates are written as decimals; rounding must put none of them on the wrong side."""
    for right in range(samples + 1):
        exact = Fraction(right, samples)
        for bound in (Fraction(n, 100) for n in range(101)):
            band = Band(float(bound), 1.0)
            assert (right / samples in band) == (exact >= bound)


@given(
    st.integers(1, 16).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n)))),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_every_task_is_kept_too_hard_or_too_easy(case: tuple[int, list[int]], one: float, other: float) -> None:
    samples, right = case
    sifted = sift(right, samples, Band(min(one, other), max(one, other)))
    assert len(sifted.kept) + sifted.too_hard + sifted.too_easy == len(right) == sum(sifted.histogram)
    assert list(sifted.kept) == sorted(set(sifted.kept))


@pytest.mark.parametrize(("low", "high"), [(0.8, 0.1), (-0.1, 0.5), (0.5, 1.1), (math.nan, 0.5)])
def test_a_band_that_is_none_is_refused(low: float, high: float) -> None:
    with pytest.raises(UsageError, match="a band of pass rates") as caught:
        Band(low, high)
    assert "--low" in caught.value.hint


def test_a_band_between_two_rates_is_refused_before_anything_is_asked() -> None:
    Band(0.1, 0.8).check_reachable(2)
    with pytest.raises(UsageError, match="1 samples give no pass rate") as caught:
        Band(0.1, 0.8).check_reachable(1)
    assert "raise --samples" in caught.value.hint
