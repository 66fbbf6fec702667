"""Evidence against a validator that graded wrongly: what it signed, and a row that shows it.

A bundle of the reason `wrong_grade` names the commitment that was graded and holds one of its rows with its Merkle
proof, and the grades with their validator's statement. With the epoch's master the row can be graded again. The court
has checked the statement's signature; `validator` and `grades` are what its case names.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.errors import MalformedError
from muster.grading.grades import RowGrade, first_difference
from muster.grading.shown import read_signed
from muster.protocol.eip712 import Domain
from muster.protocol.hashes import hex_hash
from muster.protocol.keys import RunKeys
from muster.protocol.kinds import kind_of
from muster.protocol.messages import ShownGrades
from muster.protocol.terms import Terms
from muster.rollouts.schema import Rollout
from muster.verification.bundles import EvidenceBundle, Inspection, name_of, show_rows
from muster.verification.checks import Finding, grade_rows
from muster.verification.evidence import ShownRows, VoidEvidenceError, check_shown, parse_evidence, voiding
from muster.verification.rules import CommittedWork, Rules
from muster.verification.shown_tasks import show_tasks


def make_grade_bundle(
    rules: Rules, work: CommittedWork, rollouts: list[Rollout], position: int, shown: ShownGrades, *, accuser: str
) -> EvidenceBundle:
    """Return the bundle that shows a wrong grade of the row at `position`; `rollouts` is the commitment's file.

    A row that no commitment has cannot be shown, and need not be.
    """
    positions = [position] if position < len(rollouts) else []
    rows, proofs = show_rows(rollouts, positions)
    tasks = show_tasks(rules.at(work.step).task_set, [rollouts[i].task for i in positions])
    return EvidenceBundle(
        **name_of(rules, work),
        accuser=accuser,
        reason="wrong_grade",
        position=position,
        rows=rows,
        proofs=proofs,
        tasks=tasks,
        shown=shown,
    )


def parse_grade_evidence(
    data: bytes, commitment: CommittedWork, validator: str, grades: bytes, rules: Rules, where: Domain, keys: RunKeys
) -> tuple[EvidenceBundle, tuple[RowGrade, ...]]:
    """Return a bundle and its signed grades. Raises VoidEvidenceError unless the case is about them."""
    bundle = parse_evidence(data, kind_of("wrong_grade"), commitment, rules, where, keys)
    if bundle.shown is None:
        raise VoidEvidenceError("the evidence shows no grades")
    with voiding("the grades shown do not count"):
        check_named(bundle.shown, commitment, validator, grades)
        return bundle, read_signed(where, bundle.shown)


def judge_invented(stated: Sequence[RowGrade], terms: Terms) -> Inspection | None:
    """Judge grades of a row that no commitment of the run has; None where there is none."""
    if not stated or stated[-1].position < terms.positions:
        return None
    grade = stated[-1]
    detail = f"row {grade.position} is graded, and no commitment has it"
    return Inspection(Finding("wrong_grade", grade.position, grade.reward, detail=detail), f"wrong_grade: {detail}")


def check_graded(shown: ShownRows) -> None:
    """Raise VoidEvidenceError unless one row is shown, and it passes the static checks."""
    if len(shown.rows) != 1:
        raise VoidEvidenceError("the evidence shows no row of the commitment, or several")
    if finding := check_shown(shown):
        [row] = shown.rows
        why = f"row {row.position} fails a static check, which is its node's case: {finding.reason}"
        raise VoidEvidenceError(why)


def judge_grade(shown: ShownRows, stated: Sequence[RowGrade], master: bytes) -> Inspection:
    """Judge a validator's grades by grading the row shown again (`check_graded`). Raises as `Rules.grade`."""
    [row] = shown.rows
    ours = grade_rows(shown.rows, shown.draw, shown.rules_shown, master)
    theirs = [grade for grade in stated if grade.position == row.position]
    if first_difference(ours, theirs) is None:
        return Inspection(why=f"row {row.position} is graded as it should be")
    detail = f"row {row.position} is graded {_grades_text(theirs)}, and comes to {_grades_text(ours)}"
    found = Finding("wrong_grade", row.position, _reward(theirs), _reward(ours), detail=detail)
    return Inspection(found, f"wrong_grade: {detail}", (row.position,))


def check_named(shown: ShownGrades, commitment: CommittedWork, validator: str, grades: bytes) -> None:
    """Raise MalformedError unless a statement names this commitment, this validator and these grades."""
    said, c = shown.statement, commitment
    named = (said.run, said.step, said.node.lower(), said.index, said.root, said.validator.lower(), said.grades)
    meant = (c.run, c.step, c.node.lower(), c.index, hex_hash(c.root), validator.lower(), hex_hash(grades))
    if named != meant:
        raise MalformedError("the statement is not the one that the case is about")


def _grades_text(grades: Sequence[RowGrade]) -> str:
    return f"{grades[0].reward} with parts {grades[0].parts} and fuel {grades[0].fuel}" if grades else "not at all"


def _reward(grades: Sequence[RowGrade]) -> float | None:
    return grades[0].reward if grades else None
