"""Pay of a worker's hours and when it matures, by the rules of the contract."""

from __future__ import annotations

import pytest

from explorer.hours import Account, HourLine, PayClock, pay_by_hour
from muster.constants import HOUR_SECONDS
from muster.ledger.read_model import Counts
from muster.protocol.windows import end_of, matures_at, payable_at

PAY = 7


def hours(settled: int = 0, voided: int = 0, now: int = 0, sealed_through: int = 0, phases: int = 0) -> list[HourLine]:
    """Three hours, 10, 12 and 13, of 2, 3 and 1 commitments; 4 more were made before them."""
    account = Account(PAY, 10, settled, voided)
    return pay_by_hour(
        {13: Counts(total=1), 10: Counts(total=2), 12: Counts(total=3)}, account, PayClock(now, sealed_through, phases)
    )


def test_the_window_is_the_contracts() -> None:
    assert end_of(0) == 3600
    assert matures_at(10, 10) == (11 + 24) * HOUR_SECONDS
    assert matures_at(10, 9) == (11 + 72) * HOUR_SECONDS
    assert payable_at(10, 10, 0) == matures_at(10, 10)
    assert (
        payable_at(10, 10, 120) == (11 + 72 + 24) * HOUR_SECONDS + 120
    )  # an open case may concern it, so it is frozen


def test_settled_hours_follow_from_one_index() -> None:
    assert [(one.hour, one.unsettled, one.pay, one.state) for one in hours(settled=4)] == [
        (10, 2, 14, "maturing"),
        (12, 3, 21, "maturing"),
        (13, 1, 7, "maturing"),
    ]
    # A claim may end at any index, which settles an hour in part.
    assert [(one.hour, one.unsettled, one.pay, one.state) for one in hours(settled=7)] == [
        (10, 0, 14, "settled"),
        (12, 2, 14, "maturing"),
        (13, 1, 7, "maturing"),
    ]
    assert {one.state for one in hours(settled=10)} == {"settled"}


def test_conviction_voids_the_last_commitments() -> None:
    assert [(one.hour, one.unsettled, one.pay, one.state) for one in hours(settled=10, voided=3)] == [
        (10, 0, 14, "settled"),
        (12, 0, 14, "void"),  # one of three was claimed before
        (13, 0, 7, "void"),
    ]
    assert [(one.pay, one.state) for one in hours(settled=10, voided=10)] == [(14, "void"), (21, "void"), (7, "void")]


@pytest.mark.parametrize(
    ("now", "states"),
    [
        ((11 + 24) * HOUR_SECONDS - 1, ["maturing", "maturing", "maturing"]),
        ((11 + 24) * HOUR_SECONDS, ["claimable", "maturing", "maturing"]),
        ((13 + 24) * HOUR_SECONDS, ["claimable", "claimable", "maturing"]),
        ((14 + 72) * HOUR_SECONDS - 1, ["claimable", "claimable", "maturing"]),
        ((14 + 72) * HOUR_SECONDS, ["claimable", "claimable", "claimable"]),
    ],
)
def test_a_sealed_hour_matures_after_a_day_and_another_after_three(now: int, states: list[str]) -> None:
    found = hours(settled=4, now=now, sealed_through=12)
    assert [one.state for one in found] == states
    assert [one.sealed for one in found] == [True, True, False]
    assert [one.matures_at for one in found] == [
        (11 + 24) * HOUR_SECONDS,
        (13 + 24) * HOUR_SECONDS,
        (14 + 72) * HOUR_SECONDS,
    ]
    assert [one.if_sealed for one in found] == [(hour + 25) * HOUR_SECONDS for hour in (10, 12, 13)]
    assert [one.pay for one in found] == [2 * PAY, 3 * PAY, PAY]


def test_open_case_freezes_hours_it_may_concern() -> None:
    frozen = (11 + 72 + 24) * HOUR_SECONDS + 100
    before, after = (hours(settled=4, now=now, sealed_through=13, phases=100) for now in (frozen - 1, frozen))
    assert [one.state for one in before] == ["frozen", "frozen", "frozen"]
    assert [one.state for one in after] == ["claimable", "frozen", "frozen"]
    assert after[0].matures_at == frozen


def test_without_work_there_are_no_hours() -> None:
    assert pay_by_hour({}, Account(PAY, 0, 0, 0), PayClock(0, 0, 0)) == []
