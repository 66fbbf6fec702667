"""Grades that a validator shows count only as its own, in its own words, and as its verdict had promised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from muster.errors import MalformedError, MismatchError
from muster.grading.grades import parse_grades
from muster.grading.shown import read_committed, read_signed
from muster.protocol.eip712 import Domain
from muster.protocol.messages import ShownGrades
from testbed.samples.commitments import WHERE
from testbed.samples.verification_context import GRADERS, accept, right_text, show

MINE, ANOTHER = GRADERS[:2]
SHOWN = show(right_text(), MINE)

READERS: list[Callable[[Domain, ShownGrades], object]] = [
    read_signed,
    lambda where, shown: read_committed(where, shown, accept(SHOWN, MINE)),
]


def test_a_validators_own_grades_are_read() -> None:
    expected = parse_grades(right_text())
    assert expected
    assert read_signed(WHERE, SHOWN) == expected
    assert read_committed(WHERE, SHOWN, accept(SHOWN, MINE)) == expected


@pytest.mark.parametrize("read", READERS, ids=["signed", "committed"])
def test_forged_or_changed_grades_are_refused(read: Callable[[Domain, ShownGrades], object]) -> None:
    theirs = show(right_text(), ANOTHER).statement.signature
    forged = SHOWN.model_copy(update={"statement": SHOWN.statement.model_copy(update={"signature": theirs})})
    with pytest.raises(MismatchError, match="signed by"):
        read(WHERE, forged)
    with pytest.raises(MismatchError, match="not those that"):
        read(WHERE, SHOWN.model_copy(update={"text": "[]"}))
    with pytest.raises(MismatchError, match="signed by"):
        read(replace(WHERE, chain_id=WHERE.chain_id + 1), SHOWN)


def test_only_those_that_the_verdict_promised_are_committed() -> None:
    salted = show(right_text(), MINE, salt="0x" + "06" * 32)
    assert read_signed(WHERE, salted) == parse_grades(right_text())
    with pytest.raises(MismatchError, match="does not open"):
        read_committed(WHERE, salted, accept(SHOWN, MINE))


def test_signed_text_that_is_no_grades_is_malformed() -> None:
    nonsense = show("[]x", MINE)
    with pytest.raises(MalformedError):
        read_signed(WHERE, nonsense)
    with pytest.raises(MalformedError):
        read_committed(WHERE, nonsense, accept(nonsense, MINE))
