"""Evidence of a wrong grade: it convicts the validator that signed the grade, and no other."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from muster.grading.grades import UNSURE_FUEL, RowGrade, first_difference, grades_hash, grades_text, parse_grades
from muster.protocol.messages import ShownGrades
from muster.verification.bundles import Inspection, parse_bundle
from muster.verification.grade_evidence import make_grade_bundle
from muster.verification.rules import CommittedWork
from testbed.samples.commitments import ACCUSER, committed
from testbed.samples.verification_context import GRADERS, GradingContext, right_text, sealed_rows, sealed_rules, show
from validator.evidence import CannotVerifyError, verify_grade_evidence

ACCUSED = GRADERS[0].address


def work() -> CommittedWork:
    return committed(sealed_rows())


def graded(**changes: object) -> str:
    """Grades that are right, but for those of row 3."""
    grades = [grade._replace(**changes) if grade.position == 3 else grade for grade in parse_grades(right_text())]
    return grades_text(grades)


def bundle(shown: ShownGrades, position: int = 3) -> bytes:
    return make_grade_bundle(sealed_rules(), work(), sealed_rows(), position, shown, accuser=ACCUSER).to_bytes()


async def judged(data: bytes, shown: ShownGrades, **context: bool) -> Inspection:
    grades = grades_hash(shown.text)
    return await verify_grade_evidence(data, work(), ACCUSED, grades, GradingContext(**context))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        graded(reward=500_000),
        graded(parts=(500_000,)),
        graded(fuel=7),
        graded(reward=0, parts=(), fuel=0),
        grades_text([grade for grade in parse_grades(right_text()) if grade.position != 3]),
    ],
    ids=["reward", "parts", "fuel", "void", "left out"],
)
async def test_a_wrong_grade_is_guilty(text: str) -> None:
    shown = show(text)
    inspection = await judged(bundle(shown), shown)
    assert inspection.guilty, inspection.why
    assert inspection.finding is not None
    assert (inspection.finding.reason, inspection.finding.position, inspection.rows) == ("wrong_grade", 3, (3,))


@pytest.mark.parametrize("invented", [RowGrade(4_000_000_000, 5, (5,), 1), RowGrade(12, 0, (), UNSURE_FUEL)])
async def test_a_grade_of_a_row_that_no_commitment_has_is_guilty(invented: RowGrade) -> None:
    """There is no row to show. An accuser used to fall over it, and colluders could have kept work from training."""
    assert sealed_rules().terms.positions == 12
    right = parse_grades(right_text())
    shown = show(grades_text([*right, invented]))
    position = first_difference(right, parse_grades(shown.text))
    assert position is not None
    assert position == invented.position
    inspection = await judged(bundle(shown, position), shown)
    assert inspection.guilty, inspection.why
    assert inspection.finding is not None
    assert inspection.finding.position == invented.position


async def test_a_right_grade_is_not() -> None:
    shown = show(right_text())
    inspection = await judged(bundle(shown), shown)
    assert not inspection.guilty
    assert inspection.why == "row 3 is graded as it should be"


async def test_a_row_beside_the_wrong_one_shows_nothing() -> None:
    shown = show(graded(reward=500_000))
    assert not (await judged(bundle(shown, position=4), shown)).guilty


async def test_unsure_grade_does_not_convict() -> None:
    shown = show(graded(reward=0, parts=(), fuel=UNSURE_FUEL))
    assert not (await judged(bundle(shown), shown)).guilty


async def test_without_the_master_a_juror_abstains() -> None:
    shown = show(graded(reward=500_000))
    with pytest.raises(CannotVerifyError, match="nobody gives the master"):
        await judged(bundle(shown), shown, withheld=True)


WRONG = show(graded(reward=500_000))


def forged(**changes: object) -> bytes:
    document = json.loads(bundle(WRONG))
    document.update(changes)
    return json.dumps(document).encode()


def said(**changes: object) -> dict[str, object]:
    shown = WRONG.model_dump(mode="json")
    return shown | {"statement": shown["statement"] | changes}


ANOTHER = show(graded(reward=500_000), GRADERS[1])
OF_ANOTHER_WORK = show(graded(reward=500_000), work=replace(work(), index=work().index + 1))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not an evidence bundle"),
        (forged(index=99), "another commitment"),
        (forged(root="0x" + "00" * 32), "another commitment"),
        (forged(chain_id=1), "another commitment"),
        (forged(reason="wrong_reward"), "the case of wrong_grade"),
        (forged(shown=None), "shows no grades"),
        (forged(shown=WRONG.model_dump(mode="json") | {"text": right_text()}), "not those that"),
        (forged(shown=ANOTHER.model_dump(mode="json")), "not the one that the case is about"),
        (forged(shown=OF_ANOTHER_WORK.model_dump(mode="json")), "not the one that the case is about"),
        (forged(shown=said(salt="0x" + "06" * 32)), "not signed by their validator"),
        (forged(shown=said(validator=GRADERS[1].address)), "not the one that the case is about"),
        (forged(rows="", proofs=[]), "the rows shown do not count"),
        (forged(proofs=[[]]), "not under the committed root"),
    ],
)
async def test_invalid_evidence_does_not_convict(data: bytes, why: str) -> None:
    inspection = await judged(data, WRONG)
    assert not inspection.guilty
    assert re.search(why, inspection.why), inspection.why


async def test_a_row_that_its_node_answers_for_convicts_no_grader() -> None:
    """A grader that overlooked a bad row has vouched for it; its grades are another matter."""
    rows = sealed_rows()
    rows[3] = replace(rows[3], task_reward=1)
    changed = committed(rows)
    shown = show(graded(reward=500_000), work=changed)
    data = make_grade_bundle(sealed_rules(), changed, rows, 3, shown, accuser=ACCUSER).to_bytes()
    inspection = await verify_grade_evidence(data, changed, ACCUSED, grades_hash(shown.text), GradingContext())  # type: ignore[arg-type]
    assert not inspection.guilty
    assert "fails a static check" in inspection.why


def test_the_bundle_holds_one_row_and_comes_back() -> None:
    data = bundle(WRONG)
    assert len(data) < 20_000
    parsed = parse_bundle(data)
    assert (parsed.reason, parsed.position, len(parsed.proofs), parsed.shown) == ("wrong_grade", 3, 1, WRONG)
