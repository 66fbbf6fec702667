"""Grades: one form, the hash that a batch names, and what counts as a difference."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.constants import MICRO
from muster.errors import MalformedError
from muster.protocol.messages import MAX_GRADES_CHARS
from muster.tasksets.grades import (
    MAX_FUEL,
    UNSURE_FUEL,
    RowGrade,
    differences,
    grades_hash,
    grades_text,
    parse_grades,
)

micro = st.integers(0, MICRO)
graded = st.builds(
    RowGrade,
    st.integers(0, (1 << 32) - 1),
    micro,
    st.lists(micro, min_size=1, max_size=8).map(tuple),
    st.integers(0, MAX_FUEL),
)
ungraded = st.builds(
    RowGrade, st.integers(0, (1 << 32) - 1), st.just(0), st.just(()), st.sampled_from([0, UNSURE_FUEL])
)
many = st.lists(graded | ungraded, max_size=12, unique_by=lambda one: one.position).map(
    lambda grades: sorted(grades, key=lambda one: one.position)
)


@given(many)
def test_grades_come_back_from_their_one_form(grades: list[RowGrade]) -> None:
    text = grades_text(grades)
    assert list(parse_grades(text)) == grades
    assert grades_text(parse_grades(text)) == text


def test_the_form_byte_for_byte() -> None:
    grades = [RowGrade(0, MICRO, (MICRO, 0), 12), RowGrade(5, 0), RowGrade(9, 0, (), UNSURE_FUEL)]
    text = "[[0,1000000,[1000000,0],12],[5,0,[],0],[9,0,[],-1]]"
    assert grades_text(grades) == text
    assert grades_hash(text) == "0x" + hashlib.sha256(text.encode()).hexdigest()
    assert grades_text([]) == "[]"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[",
        "[[0,0,[],0],[0,0,[],0]]",
        "[[1,0,[],0],[0,0,[],0]]",
        "[[0, 0,[],0]]",
        "[[0,0,[],0]]\n",
        "[[0,1,[],0]]",
        "[[0,0,[],1]]",
        "[[0,0,[1],-1]]",
        "[[0,0,[],-2]]",
        "[[0,0.0,[],0]]",
        "[[0,true,[0],0]]",
        "[[-1,0,[],0]]",
        "[[4294967296,0,[],0]]",
        "[[0,1000001,[0],0]]",
        "[[0,0,[1000001],0]]",
        "[[0,0,[-1],0]]",
        "[[0,0,[0,0,0,0,0,0,0,0,0],0]]",
        "[[0,0,[0],9223372036854775808]]",
        "[[0,0,[0]]]",
        "[[0,0,[0],0,0]]",
        "[[0,0,[NaN],0]]",
        "[null]",
        "[" + " " * MAX_GRADES_CHARS + "]",
        "[" * 100_000,
    ],
    ids=lambda text: text[:40],
)
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(MalformedError):
        parse_grades(text)


@given(st.text() | st.recursive(st.integers() | st.booleans(), st.lists, max_leaves=12).map(json.dumps))
def test_any_text_parses_to_its_own_form_or_is_malformed(text: str) -> None:
    with suppress(MalformedError):
        assert grades_text(parse_grades(text)) == text


@given(many)
def test_equal_grades_have_no_difference(grades: list[RowGrade]) -> None:
    assert differences(grades, grades) == []


@pytest.mark.parametrize(
    ("ours", "stated", "positions"),
    [
        ([RowGrade(3, 5, (5,), 1)], [RowGrade(3, 6, (6,), 1)], [3]),
        ([RowGrade(3, 5, (5,), 1)], [RowGrade(3, 5, (5,), 2)], [3]),
        ([RowGrade(3, 5, (5,), 1)], [RowGrade(3, 5, (5, 5), 1)], [3]),
        ([RowGrade(3, 5, (5,))], [RowGrade(3, 0)], [3]),
        ([RowGrade(3, 5, (5,))], [], [3]),
        ([], [RowGrade(3, 5, (5,))], [3]),
        ([RowGrade(3, 0, (), UNSURE_FUEL)], [RowGrade(3, 5, (5,))], []),
        ([RowGrade(3, 5, (5,))], [RowGrade(3, 0, (), UNSURE_FUEL)], [3]),
        ([RowGrade(3, 0, (0,))], [RowGrade(3, 0, (), UNSURE_FUEL)], [3]),
        ([RowGrade(3, 0, (), UNSURE_FUEL)], [], []),
        ([], [RowGrade(3, 0, (), UNSURE_FUEL)], [3]),
        (
            [RowGrade(3, 0, (), UNSURE_FUEL), RowGrade(4, 1, (1,)), RowGrade(5, 1, (1,))],
            [RowGrade(3, 5, (5,)), RowGrade(4, 0, (0,)), RowGrade(5, 0, (0,))],
            [4, 5],
        ),
    ],
)
def test_what_this_machine_is_sure_of_must_be_stated_so(
    ours: list[RowGrade], stated: list[RowGrade], positions: list[int]
) -> None:
    assert differences(ours, stated) == positions
