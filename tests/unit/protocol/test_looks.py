"""Which validators are called, whose verdicts take places, what a look is paid, and what a false row costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.constants import HOUR_SECONDS, TOKEN
from muster.protocol.hashes import keccak
from muster.protocol.looks import (
    BARRED_SECONDS,
    VOIDED,
    PlacedLook,
    Record,
    Round,
    Seat,
    Seating,
    call_order,
    checked_rows,
    hold_seconds,
    link_due_at,
    rows_of_look,
    settles_at,
    voided_with,
    wage,
    wages_leaf,
    wages_tree,
    weight,
)
from muster.protocol.merkle import leaf_of_words
from muster.protocol.terms import WorkClass
from testbed.samples.terms import terms_of

BLOCK = bytes(range(32))
NODE = "0x" + "ab" * 20
ORDER_0, ORDER_7 = [1, 5, 3, 6, 2, 4], [1, 5, 4, 2, 6, 3]
"""Seats 1 to 6, called to commitments 0 and 7 of NODE. These and LEAF were computed by other code."""
LEAF = "c4d7d9b698626a552def26331dc40c94caff90fa16481e02fa794029768e8595"
TERMS = terms_of(jury_seniority=100)
DAY = 24 * HOUR_SECONDS
HOLD, OPENS = 90, 1_000
PLACES = 2


def address(number: int) -> str:
    return f"0x{number:040x}"


A, B, C, D, E = (address(number) for number in range(1, 6))
CALL = Seating((A, B, C, D, E), opens=OPENS, hold=HOLD, places=PLACES)


def order_of(seats: Sequence[Seat], index: int = 7, block_hash: bytes = BLOCK, at: int = OPENS) -> list[int]:
    order = call_order(seats, block_hash=block_hash, node=NODE, index=index, at=at, terms=TERMS)
    return [int(one, 16) for one in order]


def senior(*numbers: int, rests: Sequence[int] = ()) -> list[Seat]:
    return [Seat(address(number), since=0, rests=number in rests) for number in numbers]


# --- Who is called


def test_order_follows_block_node_index_and_address() -> None:
    assert order_of(senior(1, 2, 3, 4, 5, 6), index=0) == ORDER_0
    assert order_of(senior(1, 2, 3, 4, 5, 6), index=7) == ORDER_7
    assert order_of(senior(6, 5, 4, 3, 2, 1), index=7) == ORDER_7


def test_a_seat_that_rests_is_called_last() -> None:
    first, second, *others = ORDER_7
    assert order_of(senior(*range(1, 7), rests=[first])) == [second, *others, first]
    assert order_of(senior(*range(1, 7), rests=[second, first])) == [*others, first, second]
    assert order_of(senior(*range(1, 7), rests=range(1, 7))) == ORDER_7, "where all rest, all are called"


def test_only_seats_past_seniority_are_called() -> None:
    young = [replace(seat, since=OPENS - 99) for seat in senior(5, 6)]
    assert set(order_of([*senior(1, 2, 3, 4), *young])) == {1, 2, 3, 4}
    just = [replace(seat, since=OPENS - 100) for seat in senior(5, 6)]
    assert order_of([*senior(1, 2, 3, 4), *just]) == ORDER_7


def test_while_too_few_are_senior_as_many_of_all_are_called_as_the_run_needs() -> None:
    young = [replace(seat, since=OPENS - 1) for seat in senior(2, 3, 4, 5, 6)]
    assert order_of([*senior(1), *young]) == ORDER_7[:PLACES]
    assert order_of(young[:1]) == [2]
    assert order_of([]) == []


@given(st.sets(st.integers(1, 2**160 - 1), min_size=3, max_size=9), st.binary(min_size=32, max_size=32), st.data())
def test_a_further_seat_moves_nobody_before_another(numbers: set[int], block_hash: bytes, data: st.DataObject) -> None:
    left = data.draw(st.sampled_from(sorted(numbers)))
    every = order_of(senior(*numbers), block_hash=block_hash)
    assert sorted(every) == sorted(numbers)
    assert order_of(senior(*numbers - {left}), block_hash=block_hash) == [one for one in every if one != left]


def test_each_seat_holds_its_share_of_places() -> None:
    held = Counter[int]()
    for number in range(4_000):
        held.update(order_of(senior(1, 2, 3, 4), block_hash=keccak(number.to_bytes(4, "big")))[:PLACES])
    assert all(abs(held[seat] - 2_000) < 130 for seat in (1, 2, 3, 4)), held  # Four deviations: 126.


# --- Whose verdicts take places


def test_first_of_the_order_hold_places_and_take_them_by_arrival() -> None:
    came = [(A, OPENS + 9), (B, OPENS + 3), (C, OPENS + 1)]
    assert CALL.takers(came) == [B, A]
    assert list(CALL.rounds(came)) == [Round(OPENS, OPENS + HOLD, (A, B), [B, A])]
    assert CALL.lapsed(came, OPENS + 9 * HOLD) == []


def test_a_lapsed_place_opens_for_the_next_alone() -> None:
    came = [(A, OPENS + HOLD - 1), (B, OPENS + HOLD), (D, OPENS + HOLD), (C, OPENS + 2 * HOLD - 1)]
    assert CALL.takers(came) == [A, C]
    assert CALL.lapsed(came, OPENS + HOLD - 1) == []
    assert CALL.lapsed(came, OPENS + HOLD) == [B]
    assert CALL.lapsed(came, OPENS + 9 * HOLD) == [B]


def test_both_places_lapse_again_until_the_order_ends() -> None:
    assert CALL.lapsed([], OPENS + HOLD) == [A, B]
    assert CALL.lapsed([], OPENS + 2 * HOLD) == [A, B, C, D]
    assert CALL.lapsed([], OPENS + 3 * HOLD) == [A, B, C, D, E]
    assert CALL.takers([(E, OPENS + 3 * HOLD - 1)]) == [E]
    assert CALL.takers([(E, OPENS + 3 * HOLD)]) == []


def test_a_verdict_before_its_round_takes_no_place() -> None:
    assert CALL.takers([(C, OPENS + HOLD - 1)]) == []
    assert CALL.takers([(C, OPENS + HOLD)]) == [C]
    assert CALL.takers([(C, OPENS + HOLD - 1), (C, OPENS + HOLD)]) == [], "its first verdict is what came"


def test_first_places_are_taken_also_before_the_file_is_there() -> None:
    assert CALL.takers([(A, OPENS - 1)]) == [A]


def test_who_may_look_is_who_would_take_a_place() -> None:
    assert CALL.may_look(A, [], OPENS)
    assert not CALL.may_look(C, [], OPENS)
    assert CALL.may_look(C, [(A, OPENS)], OPENS + HOLD)
    assert not CALL.may_look(D, [(A, OPENS)], OPENS + HOLD)
    assert not CALL.may_look(B, [], OPENS + HOLD)
    assert not CALL.may_look(address(9), [], OPENS)


def test_a_validator_asks_again_when_a_place_may_open() -> None:
    assert CALL.asks_again(C, [], OPENS) == OPENS + HOLD
    assert CALL.asks_again(E, [], OPENS + HOLD) == OPENS + 2 * HOLD
    assert CALL.asks_again(D, [(A, OPENS)], OPENS + HOLD) == OPENS + 2 * HOLD
    assert CALL.asks_again(C, [(A, OPENS), (B, OPENS)], OPENS + 1) is None, "both places are taken"
    assert CALL.asks_again(A, [], OPENS + HOLD) is None, "its place lapsed"
    assert CALL.asks_again(address(9), [], OPENS) is None


arrivals = st.lists(st.tuples(st.sampled_from((A, B, C, D, E, address(9))), st.integers(OPENS, OPENS + 5 * HOLD)))


@given(arrivals, st.integers(1, 5))
def test_places_are_taken_once_by_called_seats(came: list[tuple[str, int]], places: int) -> None:
    call = replace(CALL, places=places)
    takers = call.takers(came)
    assert len(set(takers)) == len(takers) <= places
    assert set(takers) <= {one for one, _ in came} & set(call.order)
    assert not set(takers) & set(call.lapsed(came, OPENS + 9 * HOLD))
    assert call.takers(sorted(came, reverse=True)) == takers, "not the order of the list decides"


@given(arrivals, st.sampled_from(CALL.order), st.integers(OPENS, OPENS + 5 * HOLD))
def test_who_may_look_asks_later_or_never(came: list[tuple[str, int]], validator: str, now: int) -> None:
    known = [one for one in came if one[1] <= now]
    again = CALL.asks_again(validator, known, now)
    if CALL.may_look(validator, known, now):
        assert again is None
    assert again is None or again > now


@given(arrivals, st.sampled_from(CALL.order), st.integers(OPENS, OPENS + 5 * HOLD))
def test_a_verdict_that_may_come_counts_whatever_comes_later(
    came: list[tuple[str, int]], validator: str, now: int
) -> None:
    known = [one for one in came if one[1] < now]
    later = [one for one in came if one[1] >= now]
    if CALL.may_look(validator, known, now):
        assert validator in CALL.takers([*known, (validator, now), *later])


# --- What it is paid


def test_a_place_is_held_for_half_of_the_freshness() -> None:
    assert hold_seconds(terms_of(async_level=2, min_step_interval=60)) == 90
    assert hold_seconds(terms_of(async_level=2, min_step_interval=1)) == 60
    assert hold_seconds(terms_of(async_level=3, min_step_interval=601)) == 1_202


def test_wage_is_a_share_of_the_class_and_twice_for_first_commitments() -> None:
    terms = terms_of(pay=TOKEN // 4, wage_bps=625, classes=(WorkClass(10_000, (8,)), WorkClass(25_000, (16,))))
    assert [wage(terms, 0, index) for index in (3, 4)] == [2 * TOKEN // 64, TOKEN // 64]
    assert wage(terms, 1, 4) == TOKEN * 25 // 640
    assert wage(replace(terms, wage_bps=0), 1, 0) == 0
    assert wage(replace(terms, pay=1), 0, 4) == 0


def test_a_look_at_first_commitments_is_twice_as_wide_at_most_all() -> None:
    terms = terms_of(group_size=4, groups_per_commitment=8, look_rows=12)
    assert [rows_of_look(terms, index) for index in (0, 3, 4, 99)] == [24, 24, 12, 12]
    assert rows_of_look(replace(terms, look_rows=20), 0) == 32
    assert [weight(index) for index in (3, 4)] == [2, 1]


def test_the_hours_of_an_hour() -> None:
    assert link_due_at(10) == 13 * HOUR_SECONDS
    assert settles_at(10) == 19 * HOUR_SECONDS


def test_one_row_in_48_is_checked_and_one_at_least() -> None:
    assert [checked_rows(rows) for rows in (0, 1, 48, 71, 72, 119, 120, 240)] == [0, 1, 1, 1, 2, 2, 3, 5]


# --- What false rows cost


def looks_at(*seconds: int) -> list[PlacedLook]:
    return [PlacedLook(A, NODE, number, 0, B, came, wage=1) for number, came in enumerate(seconds)]


def test_a_false_look_takes_the_seven_nearest_with_it() -> None:
    looks = looks_at(*range(0, 200, 10))
    assert voided_with([0], looks) == set(range(1, 8))
    assert voided_with([10], looks) == {6, 7, 8, 9, 11, 12, 13}, "of two as near the earlier"
    assert voided_with([19], looks) == set(range(12, 19))
    assert voided_with([], looks) == set()


def test_false_looks_take_true_ones_and_may_take_the_same() -> None:
    looks = looks_at(*range(0, 200, 10))
    assert voided_with([0, 1], looks) == set(range(2, 9))
    assert voided_with([0, 4], looks) == {1, 2, 3, 5, 6, 7, 8}
    assert voided_with([0, 19], looks) == {*range(1, 8), *range(12, 19)}


def test_nearness_is_of_arrival_not_of_place_in_the_list() -> None:
    looks = looks_at(500, 0, 501, 1, 502, 2, 503, 3, 504, 4, 505, 5, 506, 6, 507, 7)
    assert voided_with([0], looks) == {2, 4, 6, 8, 10, 12, 14}
    assert voided_with([1], looks_at(5, 5)) == {0}


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=40), st.data())
def test_what_is_voided_is_true_and_no_farther_than_what_is_left(seconds: list[int], data: st.DataObject) -> None:
    looks = looks_at(*seconds)
    false = data.draw(st.sets(st.integers(0, len(looks) - 1), min_size=1))
    gone = voided_with(sorted(false), looks)
    left = set(range(len(looks))) - gone - false
    assert not gone & false
    assert min(VOIDED, len(looks) - len(false)) <= len(gone) <= VOIDED * len(false)
    for one in false:
        far = [abs(looks[other].came - looks[one].came) for other in left]
        near = sorted(abs(looks[other].came - looks[one].came) for other in gone)
        assert not left or near[VOIDED - 1] <= min(far)


def test_a_check_that_finds_false_rows_of_two_operators_bars() -> None:
    record = Record()
    record.find([A, A, A], now=50)
    record.find([B], now=60)
    assert record.barred_until == 0, "finds of another check are not remembered"
    record.find([B, A], now=70)
    assert record.barred_until == 70 + BARRED_SECONDS


def test_three_refuted_rejections_in_thirty_days_bar() -> None:
    record = Record()
    for now in (0, 5, BARRED_SECONDS, BARRED_SECONDS + 4):
        record.refute(now)
        assert record.barred_until == (now + BARRED_SECONDS if now == BARRED_SECONDS + 4 else 0)
    assert record.refuted_at == [5, BARRED_SECONDS, BARRED_SECONDS + 4]


# --- What is posted


def test_a_leaf_is_of_run_validator_and_total() -> None:
    assert wages_leaf(3, E, 2_500).hex() == LEAF


def test_each_total_opens_the_root_by_its_place_among_the_addresses() -> None:
    totals = {address(number): number * TOKEN for number in (9, 2, 300, 1)}
    tree = wages_tree(3, totals)
    for place, number in enumerate((1, 2, 9, 300)):
        node = wages_leaf(3, address(number), number * TOKEN)
        for sibling in tree.proof(place):
            node = keccak(min(node, sibling) + max(node, sibling))
        assert node == tree.root
    assert wages_tree(3, dict(reversed(totals.items()))).root == tree.root
    assert wages_tree(4, totals).root != tree.root


def test_one_total_is_its_own_root_and_none_has_none() -> None:
    assert wages_tree(3, {A: 5}).root == leaf_of_words((3, 1, 5))
    with pytest.raises(ValueError, match="at least one leaf"):
        wages_tree(3, {})
