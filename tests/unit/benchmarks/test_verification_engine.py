"""The statistic behind the worker's figures: a confidence bound that no outlier moves."""

from __future__ import annotations

import pytest

from benchmarks.verification_engine import lower_bound


@pytest.mark.parametrize(("count", "rank"), [(1, 1), (5, 1), (6, 1), (9, 2), (20, 6), (30, 10), (40, 14), (100, 40)])
def test_lower_bound_is_the_order_statistic_of_the_tables(count: int, rank: int) -> None:
    """Ranks as tables of the sign test have them for a two-sided 95% interval of the median."""
    assert lower_bound([float(value) for value in range(count, 0, -1)]) == rank


def test_outliers_do_not_move_the_bound() -> None:
    ratios = [1.0] * 27 + [0.01, 0.02, 90.0]
    assert lower_bound(ratios) == 1.0
