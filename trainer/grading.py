"""Rewards of private tests: checked grades in place of what workers could not know. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from eth_utils.address import to_checksum_address

from muster.errors import MismatchError
from muster.grading.grades import parse_grades
from muster.grading.shown import read_committed
from muster.protocol.eip712 import Domain
from muster.protocol.masters import epoch_of
from muster.protocol.messages import AcceptedCommitment, ShownGrades
from muster.protocol.terms import Terms
from muster.rollouts.schema import Rollout
from muster.tasksets.taskset import TaskSet


def graders_of(where: Domain, work: AcceptedCommitment) -> set[str]:
    """Return the validators whose verdicts had committed to the grades of accepted work, by their own statements.

    Raises CheckError when a statement is not its validator's, opens no verdict, or is of other grades.
    """
    verdicts = {verdict.validator: verdict for verdict in work.verdicts if verdict.accepted}
    found = set()
    for statement in work.statements:
        verdict = verdicts.get(statement.validator)
        if verdict is None:
            raise MismatchError(f"{statement.validator} shows grades without an accepting verdict")
        read_committed(where, ShownGrades(statement=statement, text=work.grades), verdict)
        found.add(to_checksum_address(statement.validator))
    return found


def with_grades(
    rollouts: Sequence[Rollout], text: str, task_set: TaskSet, terms: Terms, step: int
) -> tuple[Rollout, ...]:
    """Return a commitment's rows with the rewards of its grades, in a run with private tests.

    Raises CheckError unless there is a grade for each row of a sealed task, and for no other row.
    """
    grades = {grade.position: grade for grade in parse_grades(text)}
    drawn = task_set.at(epoch_of(terms, step))
    if not all(0 <= row.task < drawn.size for row in rollouts):
        raise MismatchError("a row names a task that the run does not have")
    sealed = {row.position for row in rollouts if drawn.part(row.task).sealed}
    if sealed != grades.keys():
        raise MismatchError(f"{len(grades)} rows are graded, {len(sealed)} are of private tests")
    rewarded = []
    for row in rollouts:
        if row.position in sealed:
            grade = grades[row.position]
            parts = np.array(grade.parts, np.int64)
            rewarded.append(replace(row, task_reward=grade.reward, parts=parts, fuel=max(0, grade.fuel)))
        else:
            rewarded.append(row)
    return tuple(rewarded)
