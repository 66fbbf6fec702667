"""The sample run with sealed tasks, its honest rows, and their grades."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from muster.authoring.tasks.sealing import seal_set
from muster.rollouts.schema import Rollout
from muster.tasksets.grades import grades_text
from muster.tasksets.masters import Masters
from muster.tasksets.taskset import TaskSet
from muster.verification.checks import grade_rows
from muster.verification.rules import Rules
from testbed.samples.commitments import honest_rows, rules

MASTERS = Masters(1, b"\x07" * 32)


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
    """Return the grades of these rows."""
    return grades_text(tuple(grade_rows(sealed_rows(), sealed_rules(), MASTERS.of(1))))
