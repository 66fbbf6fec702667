"""An hour's count: what is paid of its looks, what a false row takes with it, who counts no more, where money ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from muster.protocol.counting import Tally, count_hour
from muster.protocol.looks import BARRED_SECONDS, SETTLE_HOURS, VOIDED, PlacedLook, settles_at
from muster.protocol.messages import RowCheck
from muster.protocol.reasons import Why

HOUR, WAGE = 500_000, 10
V, W, NODE, OTHER = "v", "w", "node", "other"
RICH = 10**9


def look(index: int, validator: str = V, *, node: str = NODE, hour: int = HOUR, wage: int = WAGE) -> PlacedLook:
    """A look at a commitment of an hour, as many seconds after it as its index."""
    return PlacedLook(validator, node, index, hour, operator=f"{node}'s", came=hour * 3600 + index, wage=wage)


def check(index: int, outcome: Literal["true", "false", "refuted"], validator: str = V, node: str = NODE) -> RowCheck:
    return RowCheck.model_construct(
        validator=validator, node=node, index=index, root="0x" + "00" * 32, position=0, outcome=outcome
    )


def count(
    tally: Tally, looks: Sequence[PlacedLook], *checks: RowCheck, hour: int = HOUR, left: int = RICH
) -> list[Why | None]:
    return list(count_hour(tally, hour, looks, checks, left).values())


def test_looks_of_the_hour_are_paid_and_those_of_later_ones_wait() -> None:
    tally = Tally()
    looks = [look(0), look(1, W, wage=2 * WAGE), look(2, hour=HOUR + 1)]
    assert count(tally, looks, check(0, "true")) == [None, None]
    assert {who: one.total for who, one in tally.records.items()} == {V: WAGE, W: 2 * WAGE}
    assert tally.total == 3 * WAGE


def test_a_false_row_takes_the_nearest_looks_of_its_validator_with_it() -> None:
    tally = Tally()
    looks = [look(index) for index in range(10)] + [look(5, W)]
    whys = count(tally, looks, check(0, "false"))
    assert whys == ["false", *["voided"] * 5, None, *["voided"] * 2, None, None], (
        "in order of arrival, W's is the sixth"
    )
    assert whys.count("voided") == VOIDED
    assert tally.record(V).total == 2 * WAGE
    assert tally.record(V).barred_until == 0
    assert tally.void == {}


def test_a_false_row_of_a_later_hour_takes_looks_that_are_counted_now_and_stays_false() -> None:
    tally = Tally()
    looks = [look(3500), look(0, hour=HOUR + 1), look(1, hour=HOUR + 1)]
    assert count(tally, looks, check(0, "false")) == ["voided"]
    assert tally.void == {(V, NODE, 0): "false", (V, NODE, 1): "voided"}
    assert count(tally, looks[1:], hour=HOUR + 1) == ["false", "voided"]
    assert tally.void == {}
    assert tally.total == 0


def test_what_is_void_already_is_taken_no_second_time() -> None:
    """Each false row costs seven looks more."""
    tally, later = Tally(), [look(index, hour=HOUR + 1) for index in range(2 * VOIDED + 3)]
    count(tally, later, check(0, "false"))
    assert len(tally.void) == 1 + VOIDED
    count(tally, later, check(2 * VOIDED + 2, "false"), hour=HOUR + 1)
    assert tally.record(V).total == (len(later) - 2 * (1 + VOIDED)) * WAGE


def test_false_rows_of_two_operators_end_counting_from_this_list_on() -> None:
    tally = Tally()
    looks = [look(0), look(3000, node=OTHER), look(3001), *(look(index, W) for index in range(2))]
    both = check(0, "false"), check(3000, "false", node=OTHER)
    far = [look(index) for index in range(1000, 1020)]
    whys = count(tally, [*looks, *far], *both)
    assert set(whys) == {None, "false", "voided", "barred"}
    assert tally.record(V).total == 0
    assert tally.record(W).total == 2 * WAGE
    until = settles_at(HOUR) + BARRED_SECONDS
    assert tally.record(V).barred_until == until
    ends = HOUR + BARRED_SECONDS // 3600
    assert count(tally, [look(0, hour=ends - 1)], hour=ends - 1) == ["barred"]
    assert count(tally, [look(0, hour=ends)], hour=ends) == [None]


def test_false_rows_of_one_operator_or_of_two_lists_bar_nobody() -> None:
    tally = Tally()
    looks = [look(0), look(1), look(2, node=OTHER, hour=HOUR + 1)]
    count(tally, looks, check(0, "false"), check(1, "false"))
    count(tally, looks[2:], check(2, "false", node=OTHER), hour=HOUR + 1)
    assert tally.record(V).barred_until == 0


def test_a_check_of_a_look_that_is_counted_already_changes_nothing() -> None:
    tally = Tally()
    assert count(tally, [look(1)], check(0, "false")) == [None]
    assert tally.void == {}


def test_the_third_refuted_rejection_ends_counting() -> None:
    tally = Tally()
    assert count(tally, [look(9)], check(0, "refuted"), check(1, "refuted")) == [None]
    assert count(tally, [look(9, hour=HOUR + 1)], check(2, "refuted"), hour=HOUR + 1) == ["barred"]


def test_money_reaches_in_order_of_arrival() -> None:
    tally = Tally()
    looks = [look(2, W), look(0), look(1, wage=2 * WAGE)]
    assert count_hour(tally, HOUR, looks, (), 2 * WAGE) == {
        (V, NODE, 0): None,
        (V, NODE, 1): "unfunded",
        (W, NODE, 2): None,
    }
    assert count(tally, [look(0, hour=HOUR + 1)], hour=HOUR + 1, left=0) == ["unfunded"]
    assert tally.total == 2 * WAGE


def test_the_hours_that_wait_are_as_many_as_links_are_due_for() -> None:
    assert settles_at(HOUR) == (HOUR + SETTLE_HOURS + 3) * 3600
