"""When a worker claims by itself: exact seconds."""

from __future__ import annotations

import pytest

from worker.claimer import is_due

PAYABLE = 1_000_000


@pytest.mark.parametrize(
    ("now", "hours", "due"),
    [
        (PAYABLE + 6 * 3600 - 1, 6.0, False),
        (PAYABLE + 6 * 3600, 6.0, True),
        (PAYABLE, 0.5, False),
        (PAYABLE + 1800, 0.5, True),
        (PAYABLE - 1, 1e-9, False),
        (PAYABLE + 10**6, 0.0, False),
    ],
)
def test_pay_is_claimed_once_it_has_been_payable_for_so_long(now: int, hours: float, due: bool) -> None:
    assert is_due(PAYABLE, now, hours) is due
