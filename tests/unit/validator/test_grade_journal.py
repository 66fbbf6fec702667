"""Grades in the journal: own ones are kept with their verdict, others' until they were compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.chain.client import charge_of
from muster.contracts.court import CaseResolved, GradeAccused, Outcome
from muster.contracts.registry import Convicted
from muster.protocol.kinds import kind_of
from muster.protocol.messages import ShownGrades
from muster.verification.rules import CommittedWork
from testbed.samples.validator import ME, NODE, ROOT, opened, pending, place, receive, refusal, verdict, work
from testbed.samples.verification_context import GRADERS, show
from validator.grade_journal import OtherGrades
from validator.journal import ValidatorJournal
from validator.outbox import MAX_REFUSALS, Outgoing

TEXT, OTHER_TEXT = "[[0,0,[0],0]]", "[[0,1,[1],0]]"
OTHER = GRADERS[1]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[ValidatorJournal]:
    made = ValidatorJournal(tmp_path, "me", 1, ME)
    yield made
    made.close()


def judge(journal: ValidatorJournal, index: int = 0) -> tuple[CommittedWork, ShownGrades]:
    """Accept a commitment, with grades."""
    receive(journal, work(index))
    [c] = [one for one in pending(journal) if one.index == index]
    shown = show(TEXT, GRADERS[0], c)
    journal.judge(c, verdict(c), None, accuse_at=None, shown=shown)
    return c, shown


def hear(journal: ValidatorJournal, c: CommittedWork, text: str = OTHER_TEXT) -> OtherGrades:
    journal.grades.read([show(text, OTHER, c)], "x.1")
    [other] = journal.grades.uncompared(10)
    return other


def test_grades_are_shown_once_their_verdict_is_reported(journal: ValidatorJournal) -> None:
    c, shown = judge(journal)
    assert journal.grades.own.due(100.0, 10) == []
    journal.verdicts.sent(c)
    [own] = journal.grades.own.due(100.0, 10)
    assert (own.commitment, own.document, own.refusals) == (c, shown, 0)
    journal.grades.own.put_off(c, 200.0)
    assert journal.grades.own.due(100.0, 10) == []
    journal.grades.own.refused(c, retry_at=300.0)
    [own] = journal.grades.own.due(300.0, 10)
    assert own.refusals == 1
    journal.grades.own.sent(c)
    assert journal.grades.own.due(1e9, 10) == []


def test_refused_for_good_they_are_shown_no_more(journal: ValidatorJournal) -> None:
    c, _ = judge(journal)
    journal.verdicts.sent(c)
    journal.grades.own.refused(c, retry_at=None)
    assert journal.grades.own.due(1e9, 10) == []


def test_a_restart_loses_nothing(tmp_path: Path) -> None:
    first = ValidatorJournal(tmp_path, "me", 1, ME)
    c, shown = judge(first)
    first.verdicts.sent(c)
    hear(first, c)
    first.close()
    second = ValidatorJournal(tmp_path, "me", 1, ME)
    assert [own.document for own in second.grades.own.due(1.0, 10)] == [shown]
    assert second.grades.cursor == "x.1"
    assert len(second.grades.uncompared(10)) == 1
    second.close()


def test_others_wait_until_this_validator_has_graded_too(journal: ValidatorJournal) -> None:
    receive(journal, work(0))
    [c] = pending(journal)
    journal.grades.read([show(OTHER_TEXT, OTHER, c)], "x.1")
    assert journal.grades.uncompared(10) == []
    shown = show(TEXT, GRADERS[0], c)
    journal.judge(c, verdict(c), None, accuse_at=None, shown=shown)
    [other] = journal.grades.uncompared(10)
    assert (other.validator, other.shown.text, other.ours) == (OTHER.address, OTHER_TEXT, shown)


def test_equal_grades_are_forgotten_and_different_ones_accused_when_due(journal: ValidatorJournal) -> None:
    c, _ = judge(journal)
    journal.grades.agreed(hear(journal, c, TEXT))
    assert journal.grades.uncompared(10) == []
    other = hear(journal, c)
    journal.grades.differ(other, 0, 50.0)
    assert journal.grades.uncompared(10) == []
    assert journal.accusations(49.0) == []
    [found] = journal.accusations(50.0)
    assert (found.accused, found.position) == (OTHER.address, 0)
    journal.delay_accusations(OTHER.address, 90.0)
    assert journal.accusations(50.0) == []
    journal.close_accusation(found, "late")
    assert journal.accusations(1e9) == []


def test_one_accusation_at_a_time_and_none_of_the_convicted(journal: ValidatorJournal) -> None:
    for index in (0, 1):
        c, _ = judge(journal, index)
        journal.grades.differ(hear(journal, c), 0, 10.0 + index)
    assert [found.commitment.index for found in journal.accusations(100.0)] == [0]
    receive(journal, Convicted(place(30), OTHER.address, 1, 5, 1, NODE))
    assert journal.accusations(1e9) == []


def case(journal: ValidatorJournal, challenger: str) -> tuple[bytes, bytes]:
    """Open a case about a wrong grade; return its charge, and the grades that it is about."""
    event = opened(7, challenger=challenger, kind=kind_of("wrong_grade"), node=OTHER.address)
    graded = GradeAccused(event.at, 7, OTHER.address, NODE, b"\x09" * 32)
    receive(journal, event, graded)
    return charge_of(event, graded), graded.grades


def test_a_case_is_about_the_work_and_against_the_validator(journal: ValidatorJournal) -> None:
    charge, grades = case(journal, "0x" + "77" * 20)
    [record] = journal.cases()
    assert (record.accused, record.grades, record.charge) == (OTHER.address, grades, charge)
    assert (record.commitment.node, record.commitment.root) == (NODE, ROOT)
    assert record.kind == kind_of("wrong_grade")


def test_without_a_quorum_its_challenger_tries_once_more(journal: ValidatorJournal) -> None:
    c, _ = judge(journal)
    journal.grades.differ(hear(journal, c), 0, 10.0)
    case(journal, ME)
    assert journal.accusations(1e9) == []
    receive(journal, CaseResolved(place(31), 7, OTHER.address, Outcome.NO_QUORUM, 0, 0, 2))
    assert [found.accused for found in journal.accusations(1e10)] == [OTHER.address]


def test_grade_case_without_quorum_leaves_the_case_about_the_work(journal: ValidatorJournal) -> None:
    """Both are about one commitment, and this validator opened both."""
    receive(journal, work(0))
    [c] = pending(journal)
    shown, said = show(TEXT, GRADERS[0], c), {"accepted": False, "reason": "sampling_mismatch"}
    journal.judge(c, verdict(c, **said), b"bundle", accuse_at=0.0, shown=shown)
    journal.verdicts.sent(c)
    journal.grades.differ(hear(journal, c), 0, 10.0)
    receive(journal, opened(6, challenger=ME))
    case(journal, ME)
    receive(journal, CaseResolved(place(31), 7, OTHER.address, Outcome.NO_QUORUM, 0, 0, 2))
    assert [found.kind for found in journal.accusations(1e10)] == [kind_of("wrong_grade")]
    journal.close_accusation(journal.accusations(1e10)[0], "late")
    receive(journal, CaseResolved(place(32), 6, NODE, Outcome.NO_QUORUM, 0, 0, 3))
    assert [found.kind for found in journal.accusations(1e10)] == [kind_of("sampling_mismatch")]


async def test_grades_refused_as_too_early_are_shown_later(journal: ValidatorJournal) -> None:
    c, shown = judge(journal)
    journal.verdicts.sent(c)
    refusals, taken = [refusal(425)] * (2 * MAX_REFUSALS), []

    async def post(own: Outgoing[ShownGrades]) -> None:
        if refusals:
            raise refusals.pop()
        taken.append(own.document)

    for _ in range(2 * MAX_REFUSALS + 1):
        await journal.grades.own.send(post)
        journal.grades.own.put_off(c, 0.0)
    assert taken == [shown]
