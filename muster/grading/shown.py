"""Grades as a validator shows them: whether they are its own, and what its verdict had committed to.

Every reader of another party's grades uses this module: orchestrator, validators, jurors, trainer.
"""

from __future__ import annotations

from muster.errors import MismatchError
from muster.grading.grades import RowGrade, grades_hash, parse_grades
from muster.protocol.eip712 import Domain, recover_signer
from muster.protocol.hashes import hex_hash
from muster.protocol.masters import check_grade
from muster.protocol.messages import ShownGrades, Verdict


def read_signed(where: Domain, shown: ShownGrades) -> tuple[RowGrade, ...]:
    """Return grades, once their validator has signed these very bytes. Raises MismatchError, MalformedError."""
    statement = shown.statement
    if recover_signer(where, statement).lower() != statement.validator.lower():
        raise MismatchError(f"the grades are not signed by their validator {statement.validator}")
    return _read(shown)


def read_committed(where: Domain, shown: ShownGrades, verdict: Verdict) -> tuple[RowGrade, ...]:
    """Return grades, once they are also what the validator's verdict had committed to. Raises as `read_signed`."""
    check_grade(where, shown.statement, verdict)
    return _read(shown)


def _read(shown: ShownGrades) -> tuple[RowGrade, ...]:
    if shown.statement.grades != hex_hash(grades_hash(shown.text)):
        raise MismatchError(f"the grades shown are not those that {shown.statement.validator} signed")
    return parse_grades(shown.text)
