"""The gain from one checkpoint to another: exact numbers, and an interval that holds what it promises."""

from __future__ import annotations

from random import Random

import pytest

from muster.authoring.evaluation.pass_at_k import paired_gain, student_quantile


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(9, 2.26216), (10, 2.22814), (19, 2.09302), (47, 2.01174), (95, 1.98525), (10**6, 1.95997)],
)
def test_the_quantile_is_the_tables(freedom: int, quantile: float) -> None:
    assert student_quantile(freedom) == pytest.approx(quantile, abs=5e-4)


def test_differences_are_taken_task_by_task() -> None:
    gain = paired_gain([0, 4] * 5, [8, 8] * 5, 8)
    assert (gain.before, gain.after, gain.value, gain.tasks, gain.samples) == (0.25, 1.0, 0.75, 10, 8)
    half = 2.2619 * 0.25 / 3  # the deviation of five times 1 and five times 0.5 is 0.25·√(10/9)
    assert (gain.low, gain.high) == (pytest.approx(0.75 - half, abs=1e-4), pytest.approx(0.75 + half, abs=1e-4))
    # How hard the tasks are, which differs more, cancels out.
    same = paired_gain([0, 6] * 5, [2, 8] * 5, 8)
    assert (same.low, same.high) == (0.25, 0.25)


@pytest.mark.parametrize(
    ("before", "after"), [([1] * 9, [1] * 9), ([1] * 10, [1] * 11), ([9] * 10, [1] * 10), ([1] * 10, [-1] * 10)]
)
def test_counts_that_cannot_be_are_refused(before: list[int], after: list[int]) -> None:
    with pytest.raises(ValueError, match=r"tasks before|outside"):
        paired_gain(before, after, 8)


def test_the_interval_holds_the_true_gain_in_about_19_of_20_trials() -> None:
    rng, held, trials = Random(1), 0, 1000
    for _ in range(trials):
        rates = [rng.betavariate(1, 4) for _ in range(48)]
        before = [sum(rng.random() < rate for _ in range(8)) for rate in rates]
        after = [sum(rng.random() < rate + (1 - rate) / 2 for _ in range(8)) for rate in rates]
        gain = paired_gain(before, after, 8)
        held += (
            gain.low <= 0.5 * (1 - 1 / 5) <= gain.high
        )  # the mean rate is 1/5, of which training fills half the rest
    assert 930 <= held <= 970
