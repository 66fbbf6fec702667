"""Whoever grades private tests again names a trainer that said of them what is not so, and no honest one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from muster.console.owner.grade_check import GradeReport
from muster.contracts.codec import Event
from muster.contracts.runs import WorkCommitted
from muster.errors import UnreachableError
from muster.protocol.messages import StepDocument
from muster.rollouts.parquet import write_rollouts
from muster.rollouts.schema import Rollout
from muster.tasksets.grades import UNSURE_FUEL, RowGrade, grades_text, parse_grades
from testbed.samples.graded_run import ABOUT, STEP, TRAINER, GradedRun, forgeries, graded, refused
from testbed.samples.private_tests import right_text, sealed_rows


async def test_every_grade_of_an_honest_trainer_comes_out() -> None:
    assert await GradedRun().check() == GradeReport(TRAINER, epochs=[1], files=1, grades=12, reproduced=12)


RIGHT = "1000000 of parts [1000000] with fuel 0"
ANCHORED_AGAIN = f"step {STEP}: its batch root on chain is of another document: the document hashes to something else"
WRONG = "0 of parts [0] with fuel 0"
NAMED = {
    "a grade in the batch": f"row 3 of {ABOUT} is graded {RIGHT}, and comes to {WRONG}",
    "a grade in the file": f"{ABOUT}: what is published as its grades is not what its batch names: "
    "the text hashes to something else",
    "a grade after publication": ANCHORED_AGAIN,
    "unsure for wrong": f"row 3 of {ABOUT} is graded unsure, and comes to {WRONG}",
    "another master": "this is not the master of epoch 1: it does not lead to the tip in the run's terms",
}


@pytest.mark.parametrize("name", NAMED)
async def test_a_trainer_that_changed_something_is_named(name: str) -> None:
    report = await forgeries()[name].check(1)
    assert (report.trainer, report.lies, report.unchecked) == (TRAINER, [NAMED[name]], [])
    assert report.reproduced < 12


def test_no_forgery_is_left_out() -> None:
    assert forgeries().keys() == NAMED.keys()


# More of the kind


async def test_grades_under_another_master_are_named() -> None:
    """By another master all references are void, so every answer is worth nothing."""
    void = grades_text([RowGrade(row.position, 0) for row in sealed_rows()])
    report = await GradedRun(void, void, void).check()
    assert len(report.lies) == 12
    assert report.lies[0] == f"row 0 of {ABOUT} is graded 0 of parts [] with fuel 0, and comes to {RIGHT}"


@pytest.mark.parametrize("text", [grades_text(parse_grades(right_text())[1:]), graded() + " ", "[]"])
async def test_grades_that_leave_rows_out_or_are_no_grades_are_named(text: str) -> None:
    report = await GradedRun(text, text, text).check()
    assert report.lies
    assert report.reproduced < 12


async def test_a_batch_without_grades_is_named() -> None:
    assert (await GradedRun(None, None).check()).lies == [f"{ABOUT}: its batch names no grades"]


async def test_work_that_was_never_committed_is_named() -> None:
    class Invented(GradedRun):
        async def all_events(self, kind: type[Event]) -> list[Event]:
            return [event for event in await super().all_events(kind) if not isinstance(event, WorkCommitted)]

    why = "is not on chain with the root and step that the batch names"
    assert (await Invented().check()).lies == [f"{ABOUT} {why}"]


async def test_a_master_that_is_withheld_is_named_and_one_that_is_not_due_is_not() -> None:
    """The first of two epochs of four steps is over at step 6, two after its last."""
    series = {"grade_epochs": 2, "grade_epoch_steps": 4, "async_level": 2}
    world = GradedRun(master=None, steps=6)
    assert (await world.check(**series)).lies == []
    world.steps = 7
    assert (await world.check(**series)).lies == ["the master of epoch 1 is withheld, whose work trains nothing more"]


# What shows nothing


async def test_a_row_that_this_machine_is_unsure_of_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsure(rows: list[Rollout], *_: object) -> Iterator[RowGrade]:
        for one in parse_grades(right_text()):
            yield one._replace(reward=0, parts=(), fuel=UNSURE_FUEL) if one.position == 0 else one

    monkeypatch.setattr("muster.console.owner.grade_check.grade_rows", unsure)
    report = await GradedRun().check()
    assert (report.grades, report.reproduced, report.unsure, report.lies) == (11, 11, 1, [])


async def test_what_cannot_be_had_is_unchecked_and_no_lie() -> None:
    silent = await GradedRun(published=None).check()
    assert (silent.lies, silent.unchecked) == ([], [f"{ABOUT}: its grades cannot be had: no"])
    other = write_rollouts([replace(row, seed=1) for row in sealed_rows()])
    changed = await GradedRun(file=other).check()
    assert (changed.lies, changed.unchecked) == (
        [],
        [f"{ABOUT} cannot be graded here: the file is not what was committed to"],
    )

    class Gone(GradedRun):
        async def step_document(self, run: int, batch_root: bytes) -> StepDocument:
            raise refused()

    why = "what its batch root names cannot be had: no"
    assert (await Gone().check()).unchecked == [f"step {step}: {why}" for step in range(1, STEP + 1)]


async def test_an_epoch_whose_master_is_not_shown_cannot_be_checked() -> None:
    assert await GradedRun(master=None).check() == GradeReport(TRAINER)
    with pytest.raises(UnreachableError, match="the master of epoch 1 of run 1 is not shown"):
        await GradedRun(master=None).check(1)
