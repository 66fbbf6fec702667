"""Evidence against a validator that graded wrongly: what it signed, and a row that shows it.

A bundle of the reason `wrong_grade` names the commitment that was graded and holds one of its rows with its Merkle
proof, and the grades with their validator's statement. With the epoch's master the row can be graded again. The court
has checked the statement's signature; `validator` and `grades` are what its case names.
"""

from __future__ import annotations

import asyncio

from muster.errors import CheckError, MalformedError, UnreachableError
from muster.grading.grades import RowGrade, first_difference
from muster.grading.shown import read_signed
from muster.protocol.hashes import hex_hash
from muster.protocol.messages import ShownGrades
from muster.rollouts.schema import Rollout
from muster.verification.bundles import EvidenceBundle, Inspection, is_about, name_of, parse_bundle, show_rows
from muster.verification.checks import CheckedRow, Finding, check_draw, check_place, check_rows, grade_rows
from muster.verification.context import CannotVerifyError, VerificationContext
from muster.verification.rules import CommittedWork, Rules
from muster.verification.shown_rows import check_under, read_rows
from muster.verification.shown_tasks import read_tasks, show_tasks


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


async def verify_grade_evidence(
    data: bytes, commitment: CommittedWork, validator: str, grades: bytes, context: VerificationContext
) -> Inspection:
    """Verify evidence against a validator that graded a commitment: grade the row again.

    Raises CannotVerifyError for reasons that are not the evidence's, and what `context.draw` raises.
    """
    # 1. It is a bundle about this commitment, with the grades that the case is about.
    try:
        bundle = parse_bundle(data)
        if not is_about(bundle, commitment, context.rules):
            return Inspection(why="the evidence is about another commitment")
        if bundle.reason != "wrong_grade" or bundle.shown is None:
            return Inspection(why="the evidence shows no grades")
        check_named(bundle.shown, commitment, validator, grades)
        stated = read_signed(context.domain, bundle.shown)
        if stated and stated[-1].position >= context.rules.terms.positions:
            return _invented(stated[-1])
        rows = await read_rows(bundle, context)
        check_under(rows, bundle.proofs, commitment.root)
    except CheckError as error:
        return Inspection(why=f"the evidence does not count: {error}")

    # 2. The row is one to grade, and its task is shown.
    rules = context.rules.at(commitment.step)
    if len(rows) != 1 or rows[0].position >= rules.terms.positions:
        return Inspection(why="the evidence shows no row of the commitment, or several")
    [row] = rows
    draw = await context.draw(commitment)
    finding = check_place(row, row.position, commitment, rules.terms) or check_draw(CheckedRow(row, draw, rules))
    if finding is None:
        try:
            rules = rules.with_tasks(read_tasks(bundle.tasks, rows, rules.task_set))
        except CheckError as error:
            return Inspection(why=f"the task shown does not count: {error}")
        finding = await asyncio.to_thread(check_rows, rows, draw, rules, accusing=True)
    if finding is not None:
        return Inspection(why=f"row {row.position} fails a static check, which is its node's case: {finding.reason}")

    # 3. Grade it.
    try:
        master = await context.master(commitment.step)
        if master is None:
            return Inspection(why="the run has no private tests")
        ours = await asyncio.to_thread(grade_rows, rows, draw, rules, master)
    except UnreachableError as error:
        raise CannotVerifyError(str(error), hint=error.hint) from error
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


def _invented(grade: RowGrade) -> Inspection:
    """Return what grades of a row come to that no commitment of the run has."""
    detail = f"row {grade.position} is graded, and no commitment has it"
    return Inspection(Finding("wrong_grade", grade.position, grade.reward, detail=detail), f"wrong_grade: {detail}")


def _grades_text(grades: tuple[RowGrade, ...] | list[RowGrade]) -> str:
    return f"{grades[0].reward} with parts {grades[0].parts} and fuel {grades[0].fuel}" if grades else "not at all"


def _reward(grades: tuple[RowGrade, ...] | list[RowGrade]) -> float | None:
    return grades[0].reward if grades else None
