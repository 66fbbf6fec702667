"""The commitment made by hand, of a set whose references are sealed, and the grades that validators show of it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from muster.authoring.tasks.sealing import seal_set
from muster.chain.keys import Signer
from muster.errors import UnreachableError
from muster.grading.grades import grades_hash, grades_text
from muster.grading.masters import Masters
from muster.protocol.eip712 import sign_message
from muster.protocol.hashes import hex_hash
from muster.protocol.masters import grades_commitment
from muster.protocol.messages import ShownGrades, Verdict
from muster.rollouts.schema import Rollout
from muster.tasksets.taskset import TaskSet
from muster.verification.checks import grade_rows
from muster.verification.rules import CommittedWork, Rules
from testbed.samples.commitments import WHERE, committed, drawn, honest_rows, rules
from testbed.samples.messages import about, grade_of, verdict_of
from testbed.samples.verification_context import Context

MASTERS = Masters(1, b"\x07" * 32)
GRADERS = [Signer.from_key(bytes([number]) * 32) for number in (11, 12, 13)]


@cache
def sealed_rules() -> Rules:
    made = rules()
    names = [part.name for part in made.task_set.document.parts]
    return with_set(seal_set(made.task_set, names, Path(tempfile.mkdtemp()) / "sealed", MASTERS))


def with_set(task_set: TaskSet) -> Rules:
    made = rules()
    private = {"grade_tip": MASTERS.tip, "grade_epochs": 1, "grade_epoch_steps": 1}
    terms = replace(made.terms, task_root=task_set.root, **private)
    return replace(made, task_set=task_set, terms=terms)


def sealed_rows() -> list[Rollout]:
    """Return the honest rows, which say nothing of their scores."""
    empty = np.array([], np.int64)
    return [replace(row, task_reward=0, parts=empty, fuel=0) for row in honest_rows()]


@cache
def right_text() -> str:
    return grades_text(grade_rows(sealed_rows(), drawn(), sealed_rules(), MASTERS.of(1)))


def show(text: str, grader: Signer = GRADERS[0], work: CommittedWork | None = None, **changes: object) -> ShownGrades:
    """Return grades as a validator shows them."""
    work = work or committed(sealed_rows())
    fields = {**about(work), "validator": grader.address, "grades": hex_hash(grades_hash(text)), **changes}
    return ShownGrades(statement=sign_message(grader, WHERE, grade_of(**fields)), text=text)


def accept(shown: ShownGrades, grader: Signer, **changes: object) -> Verdict:
    """Return the verdict that had committed to these grades."""
    said = shown.statement
    fields = said.model_dump(include={"run", "step", "node", "index", "root", "validator"})
    fields["grades"] = grades_commitment(said.grades, said.salt, said.validator)
    return sign_message(grader, WHERE, verdict_of(**{**fields, **changes}))


@dataclass
class GradingContext(Context):
    """A context of a run with private tests."""

    withheld: bool = False
    rules = property(lambda self: sealed_rules())

    async def master(self, step: int) -> bytes | None:
        if self.withheld:
            raise UnreachableError("nobody gives the master")
        return MASTERS.of(1)
