"""Rows of sealed tasks: what they must not say, how they are graded, and what becomes of an owner's nonsense."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from muster.authoring.tasks.sealing import seal_set
from muster.constants import MICRO
from muster.environments.task import Task
from muster.errors import MismatchError
from muster.tasksets.build import NewPart, write_task_set
from muster.tasksets.grades import RowGrade, grades_text
from muster.tasksets.masters import Masters
from muster.tasksets.sealing import seal_task
from muster.verification.checks import check_rows, grade_rows
from muster.verification.rules import Rules
from testbed.samples.commitments import drawn, honest_rows, rules, tokens_of
from testbed.samples.private_tests import MASTERS, sealed_rows, sealed_rules, with_set
from trainer.grading import with_grades


@pytest.fixture(scope="module")
def sealed() -> Rules:
    return sealed_rules()


rows = sealed_rows


def test_rows_that_say_nothing_of_their_score_pass(sealed: Rules) -> None:
    assert check_rows(rows(), drawn(), sealed) is None


@pytest.mark.parametrize(
    "change",
    [{"task_reward": MICRO}, {"task_reward": 1}, {"parts": np.array([0], np.int64)}, {"fuel": 1}],
    ids=["reward", "micro", "parts", "fuel"],
)
def test_a_worker_that_grades_itself_is_rejected(sealed: Rules, change: dict) -> None:
    changed = rows()
    changed[3] = replace(changed[3], **change)
    finding = check_rows(changed, drawn(), sealed)
    assert finding is not None
    assert (finding.reason, finding.position) == ("wrong_reward", 3)


def test_the_length_reward_is_checked_all_the_same(sealed: Rules) -> None:
    changed = rows()
    changed[2] = replace(changed[2], length_reward=changed[2].length_reward - 1)
    finding = check_rows(changed, drawn(), sealed)
    assert finding is not None
    assert (finding.reason, finding.position) == ("wrong_reward", 2)


def test_in_a_public_set_such_a_row_is_rejected() -> None:
    finding = check_rows(rows(), drawn(), rules())
    assert finding is not None
    assert finding.reason == "wrong_reward"


def test_grades_are_what_the_tests_give(sealed: Rules) -> None:
    grades = tuple(grade_rows(rows(), sealed, MASTERS.of(1)))
    assert grades == tuple(
        RowGrade(row.position, row.task_reward, tuple(row.parts.tolist()), row.fuel) for row in honest_rows()
    )
    assert {grade.reward for grade in grades} == {0, MICRO}


def test_under_another_master_everything_is_void(sealed: Rules) -> None:
    grades = tuple(grade_rows(rows(), sealed, bytes(32)))
    assert grades == tuple(RowGrade(row.position, 0) for row in rows())


def test_public_rows_are_not_graded() -> None:
    assert tuple(grade_rows(honest_rows(), rules(), MASTERS.of(1))) == ()


@pytest.mark.parametrize("reference", [{}, {"answer": 5}, {"answer": "1", "more": 1}, {"nonsense": []}])
def test_a_reference_that_its_environment_refuses_is_void(tmp_path: Path, reference: dict) -> None:
    made = rules()
    [part] = made.task_set.document.parts

    def tasks() -> list[Task]:
        return [
            seal_task(replace(task, reference=reference), MASTERS.of(1), part.name)
            for task in made.task_set.tasks_of(part)
        ]

    task_set = write_task_set(tmp_path / "set", [NewPart(part.name, part.environment, tasks(), sealed=1)])
    nonsense = with_set(task_set)
    assert check_rows(rows(), drawn(), nonsense) is None, "it stops no worker"
    assert tuple(grade_rows(rows(), nonsense, MASTERS.of(1))) == tuple(RowGrade(row.position, 0) for row in rows())


# --- Epochs


def test_each_step_means_the_tasks_and_the_master_of_its_epoch(tmp_path: Path) -> None:
    made, three = rules(), Masters(3, b"\x09" * 32)
    [part] = made.task_set.document.parts
    task_set = seal_set(made.task_set, [part.name], tmp_path / "three", three)
    terms = replace(made.terms, grade_tip=three.tip, grade_epochs=3, grade_epoch_steps=2)
    epochs = replace(made, task_set=task_set, terms=terms)
    assert [epochs.at(step).task_set.epoch for step in (0, 1, 2, 3, 4, 5, 100)] == [1, 1, 2, 2, 3, 3, 3]
    assert epochs.at(2) is epochs.at(3)
    slot, prompts = 5, set()
    for step, epoch in ((0, 1), (2, 2), (4, 3)):
        then = epochs.at(step)
        prompts.add(then.prompt(slot, 8).tobytes())
        sealed_part, index = then.task_set.locate(slot)
        assert sealed_part.sealed == epoch
        answer = made.task_set.task_of(part, 3 * index + epoch - 1).reference["answer"]
        completion = tokens_of("..</think>" + answer + made.tokenizer.eos_token)
        assert then.grade(slot, 0, completion, three.of(epoch)) == RowGrade(0, MICRO, (MICRO,), 0)
        assert then.grade(slot, 0, completion, three.of(epoch % 3 + 1)) == RowGrade(0, 0)
    assert len(prompts) == 3


# --- The trainer


def test_the_trainer_puts_grades_in_place_of_what_rows_lack(sealed: Rules) -> None:
    rewarded = with_grades(rows(), grades_text(tuple(grade_rows(rows(), sealed, MASTERS.of(1)))))
    assert [row.task_reward for row in rewarded] == [row.task_reward for row in honest_rows()]
    assert [row.parts.tolist() for row in rewarded] == [row.parts.tolist() for row in honest_rows()]
    assert [row.length_reward for row in rewarded] == [row.length_reward for row in honest_rows()]


def test_a_row_of_no_task_of_the_run_is_refused(sealed: Rules) -> None:
    beyond = [replace(row, task=sealed.task_set.size) for row in rows()]
    with pytest.raises(MismatchError, match="row 0 names a task that the run does not have"):
        next(grade_rows(beyond, sealed, MASTERS.of(1)))
