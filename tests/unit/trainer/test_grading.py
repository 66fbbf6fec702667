"""Whose grades the trainer believes: those that their validators signed and had committed to, all the same."""

from __future__ import annotations

import pytest

from muster.errors import MismatchError
from muster.protocol.messages import AcceptedCommitment, Grade, Verdict
from testbed.samples.commitments import WHERE
from testbed.samples.verification_context import GRADERS, accept, right_text, show
from trainer.accepted_work import graders_of

FIRST, SECOND, THIRD = GRADERS
SHOWN = {grader.address: show(right_text(), grader) for grader in GRADERS}


def work(verdicts: list[Verdict], statements: list[Grade], text: str | None = None) -> AcceptedCommitment:
    said = SHOWN[FIRST.address].statement
    return AcceptedCommitment(
        step=said.step,
        node=said.node,
        index=said.index,
        root=said.root,
        file_hash="0x" + "01" * 32,
        size=1,
        verdicts=verdicts,
        statements=statements,
        grades=right_text() if text is None else text,
    )


def test_validators_that_open_what_they_committed_to_are_believed() -> None:
    verdicts = [accept(SHOWN[grader.address], grader) for grader in GRADERS]
    statements = [SHOWN[grader.address].statement for grader in GRADERS]
    assert graders_of(WHERE, work(verdicts, statements)) == {grader.address for grader in GRADERS}
    assert graders_of(WHERE, work(verdicts, statements[:1])) == {FIRST.address}
    assert graders_of(WHERE, work(verdicts, [])) == set()


MINE = SHOWN[FIRST.address]
COPIED = accept(MINE, FIRST).grades
FORGED = MINE.statement.model_copy(update={"signature": show(right_text(), SECOND).statement.signature})
UNCOMMITTED = show(right_text(), FIRST, salt="0x" + "06" * 32)


@pytest.mark.parametrize(
    ("verdict", "statement", "text", "why"),
    [
        (accept(SHOWN[SECOND.address], SECOND), MINE.statement, None, "without an accepting verdict"),
        (accept(MINE, FIRST, accepted=False, reason="wrong_reward"), MINE.statement, None, "without an accepting"),
        (accept(MINE, FIRST), UNCOMMITTED.statement, None, "does not open"),
        (accept(MINE, FIRST, grades=None), MINE.statement, None, "does not open"),
        (accept(MINE, FIRST), MINE.statement, "[]", "not those that"),
        (accept(MINE, FIRST), FORGED, None, "signed by"),
        (accept(SHOWN[SECOND.address], SECOND, grades=COPIED), SHOWN[SECOND.address].statement, None, "does not open"),
    ],
    ids=["another's", "rejecting", "another salt", "no commitment", "another text", "forged", "copied"],
)
def test_validator_without_a_matching_grade_is_not_believed(
    verdict: Verdict, statement: Grade, text: str | None, why: str
) -> None:
    with pytest.raises(MismatchError, match=why):
        graders_of(WHERE, work([verdict], [statement], text))
