"""Who is called to inspect: a share of the commitments each, and all others in turn."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from muster.protocol.calls import call_hash, is_called, turn_after
from muster.protocol.terms import WorkClass
from scripts.contract_vectors import terms_with
from testbed.samples.validator import NODE

TERMS = replace(terms_with(1, WorkClass(10_000, (8,))), async_level=3, min_step_interval=100)
LARGEST = (1 << 256) - 1
calls = st.integers(0, LARGEST)


def test_a_call_follows_from_all_that_it_is_about() -> None:
    about = {"link": b"\x01" * 32, "entropy": b"\x02" * 32, "node": NODE, "index": 3}
    others = ({}, {"link": b"\x03" * 32}, {"entropy": b"\x03" * 32}, {"node": "0x" + "1" * 40}, {"index": 4})
    assert len({call_hash(**about | other) for other in others}) == len(others)
    assert call_hash(**about) == call_hash(**about)


@given(calls, st.integers(1, 255), st.integers(1, 255))
def test_as_many_are_called_as_are_needed(call: int, validators: int, needed: int) -> None:
    assert is_called(call, validators, needed) == (call * validators < needed << 256)


def test_all_are_called_where_all_are_needed() -> None:
    assert is_called(LARGEST, 4, 4)
    assert not is_called(LARGEST, 4, 3)


def test_one_of_four_is_called_for_a_quarter() -> None:
    about = {"link": b"\x01" * 32, "entropy": b"\x02" * 32, "node": NODE}
    called = sum(is_called(call_hash(**about, index=index), 4, 1) for index in range(4000))
    assert 900 < called < 1100


@given(calls, calls)
def test_turns_come_in_order_while_the_work_is_fresh(one: int, other: int) -> None:
    first, second = (turn_after(call, TERMS) for call in sorted((one, other)))
    assert 0 <= first <= second < 200
    assert (turn_after(0, TERMS), turn_after(LARGEST, TERMS)) == (0, 199)
