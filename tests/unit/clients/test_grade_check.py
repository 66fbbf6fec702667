"""Whoever grades private tests again names a trainer that said of them what is not so, and no honest one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from muster.clients.grade_check import GradeCheck, GradeReport
from muster.contracts.codec import Event, Place
from muster.contracts.runs import CheckpointPublished, WorkCommitted
from muster.errors import MismatchError, RefusedError, UnreachableError
from muster.grading.grades import UNSURE_FUEL, RowGrade, grades_hash, grades_text, parse_grades
from muster.grading.masters import Masters
from muster.protocol.batches import batch_leaf
from muster.protocol.hashes import content_hash, hex_hash
from muster.protocol.messages import ShownMaster, StepReport, VerdictPage
from muster.rollouts.parquet import FileLimits, read_rollouts, write_rollouts
from muster.rollouts.schema import Rollout
from testbed.samples.commitments import committed
from testbed.samples.messages import about, verdict_of
from testbed.samples.private_tests import MASTERS, right_text, sealed_rows, sealed_rules
from testbed.samples.terms import keys_of

TRAINER = "0x" + "77" * 20
WORK = committed(sealed_rows())
FILE = write_rollouts(sealed_rows())
NAME = content_hash(FILE)
STEP = WORK.step + 1
ABOUT = f"commitment {WORK.index} of {WORK.node}"
OTHER_MASTER = Masters(1, b"\x08" * 32)


def graded(position: int = 3, **changes: Any) -> str:
    """Return the right grades, but for those of one row."""
    grades = [one._replace(**changes) if one.position == position else one for one in parse_grades(right_text())]
    return grades_text(grades)


def root_of(grades: str) -> bytes:
    """Return the batch root that names these grades of the file."""
    return batch_leaf(WORK.step, WORK.node, WORK.index, NAME, hex_hash(WORK.root), grades_hash(grades))


def refused(status: int = 404) -> RefusedError:
    return RefusedError("no", status=status, title="")


@dataclass
class World:
    """A chain and an orchestrator with one step of one file. Everything is as an honest trainer says it."""

    anchored: str = field(default_factory=right_text)
    """Grades whose hash is under the batch root on chain."""
    reported: str = field(default_factory=right_text)
    """Grades whose hash the trainer's report names."""
    published: str | None = field(default_factory=right_text)
    """Text that is served as grades; None: none is."""
    master: ShownMaster | None = field(default_factory=lambda: ShownMaster(epoch=1, master=hex_hash(MASTERS.of(1))))
    file: bytes = FILE
    steps: int = STEP

    # The chain

    async def keys_now(self, run: int) -> Any:
        return keys_of(TRAINER).tenures[0].keys

    async def all_events(self, kind: type[Event]) -> list[Event]:
        place = Place(1, bytes(32), bytes(32), 0)
        made = WorkCommitted(place, WORK.run, WORK.node, WORK.step, WORK.index, 0, WORK.root)
        roots = {STEP: root_of(self.anchored)}
        steps = [
            CheckpointPublished(place, WORK.run, step, bytes(32), roots.get(step, bytes(32)), bytes(32), bytes(32))
            for step in range(self.steps + 1)
        ]
        return [event for event in (made, replace(made, run=9), *steps) if isinstance(event, kind)]

    # The orchestrator

    async def shown_master(self, run: int, epoch: int) -> ShownMaster:
        if self.master is None or epoch != self.master.epoch:
            raise refused()
        return self.master

    async def verdicts(self, run: int, after: str | None = None) -> VerdictPage:
        verdict = verdict_of(**about(WORK), file_hash=NAME)
        return VerdictPage(verdicts=[] if after else [verdict], came=[] if after else [1], cursor="end")

    async def step_report(self, run: int, step: int) -> StepReport:
        assert step == STEP
        return StepReport(run=run, step=step, metrics={}, batch=[NAME], grades=[grades_hash(self.reported)])

    async def grades_text(self, run: int, name: str) -> str:
        if self.published is None:
            raise refused()
        if grades_hash(self.published) != name:  # as the client does
            raise MismatchError(f"asked for {name}, got another text")
        return self.published

    async def get_file(self, name: str) -> bytes:
        assert name == NAME
        return self.file

    # This machine

    async def read(self, data: bytes, limits: FileLimits) -> list[Rollout]:
        return read_rollouts(data, limits)

    async def ensure_slots(self, slots: Iterable[int], epoch: int) -> None:
        assert (set(slots), epoch) == ({row.task for row in sealed_rows()}, 1)

    async def check(self, epoch: int | None = None, **terms: Any) -> GradeReport:
        rules = sealed_rules()
        rules = replace(rules, terms=replace(rules.terms, **terms))
        here = cast(Any, self)
        return await GradeCheck(here, here, here, rules, here).run(epoch)


async def test_every_grade_of_an_honest_trainer_comes_out() -> None:
    assert await World().check() == GradeReport(TRAINER, epochs=[1], files=1, grades=12, reproduced=12)


RIGHT = "1000000 of parts [1000000] with fuel 0"
ANCHORED_AGAIN = f"step {STEP}: its root on chain is not of the files and grades reported"


# The five forgeries


async def test_a_grade_that_was_changed_in_the_batch_is_named() -> None:
    """The trainer says of a wrong answer that it is right, in all that it says."""
    false = graded(3, reward=1_000_000, parts=(1_000_000,))
    report = await World(false, false, false).check()
    assert report.lies == [f"row 3 of {ABOUT} is graded {RIGHT}, and comes to 0 of parts [0] with fuel 0"]
    assert (report.trainer, report.grades, report.reproduced) == (TRAINER, 12, 11)


async def test_a_grade_that_was_changed_in_the_file_is_named() -> None:
    report = await World(published=graded(3, reward=1_000_000, parts=(1_000_000,))).check()
    [lie] = report.lies
    assert lie.startswith(f"{ABOUT}: what is published as its grades is not what its batch names")


async def test_a_grade_that_was_changed_after_publication_is_named() -> None:
    """The trainer trained on false grades, and puts true ones in their place."""
    report = await World(anchored=graded(3, reward=1_000_000, parts=(1_000_000,))).check()
    assert (report.lies, report.files) == ([ANCHORED_AGAIN], 0)


async def test_unsure_in_place_of_wrong_is_named() -> None:
    false = graded(3, reward=0, parts=(), fuel=UNSURE_FUEL)
    report = await World(false, false, false).check()
    assert report.lies == [f"row 3 of {ABOUT} is graded unsure, and comes to 0 of parts [0] with fuel 0"]


async def test_another_master_is_named() -> None:
    """One that does not lead to the tip of the terms."""
    report = await World(master=ShownMaster(epoch=1, master=hex_hash(OTHER_MASTER.of(1)))).check(1)
    assert report.lies == ["this is not the master of epoch 1: it does not lead to the tip in the run's terms"]
    assert report.files == 0


# More of the kind


async def test_grades_under_another_master_are_named() -> None:
    """By another master all references are void, so every answer is worth nothing."""
    void = grades_text([RowGrade(row.position, 0) for row in sealed_rows()])
    report = await World(void, void, void).check()
    assert len(report.lies) == 12
    assert report.lies[0] == f"row 0 of {ABOUT} is graded 0 of parts [] with fuel 0, and comes to {RIGHT}"


@pytest.mark.parametrize("text", [grades_text(parse_grades(right_text())[1:]), graded() + " ", "[]"])
async def test_grades_that_leave_rows_out_or_are_no_grades_are_named(text: str) -> None:
    report = await World(text, text, text).check()
    assert report.lies
    assert report.reproduced < 12


async def test_a_report_without_grades_is_named() -> None:
    class Bare(World):
        async def step_report(self, run: int, step: int) -> StepReport:
            return (await super().step_report(run, step)).model_copy(update={"grades": []})

    assert (await Bare().check()).lies == [ANCHORED_AGAIN]


async def test_a_master_that_is_withheld_is_named_and_one_that_is_not_due_is_not() -> None:
    """The first of two epochs of four steps is over at step 6, two after its last."""
    series = {"grade_epochs": 2, "grade_epoch_steps": 4, "async_level": 2}
    world = World(master=None, steps=6)
    assert (await world.check(**series)).lies == []
    world.steps = 7
    assert (await world.check(**series)).lies == ["the master of epoch 1 is withheld, whose work trains nothing more"]


# What shows nothing


async def test_a_row_that_this_machine_is_unsure_of_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsure(rows: list[Rollout], *_: object) -> Iterator[RowGrade]:
        for one in parse_grades(right_text()):
            yield one._replace(reward=0, parts=(), fuel=UNSURE_FUEL) if one.position == 0 else one

    monkeypatch.setattr("muster.clients.grade_check.grade_rows", unsure)
    report = await World().check()
    assert (report.grades, report.reproduced, report.unsure, report.lies) == (11, 11, 1, [])


async def test_what_cannot_be_had_is_unchecked_and_no_lie() -> None:
    silent = await World(published=None).check()
    assert (silent.lies, silent.unchecked) == ([], [f"{ABOUT}: its grades cannot be had: no"])
    other = write_rollouts([replace(row, seed=1) for row in sealed_rows()])
    changed = await World(file=other).check()
    assert (changed.lies, changed.unchecked) == (
        [],
        [f"{ABOUT} cannot be graded here: the file is not what was committed to"],
    )

    class Gone(World):
        async def verdicts(self, run: int, after: str | None = None) -> VerdictPage:
            return VerdictPage(verdicts=[], came=[], cursor="end")

    assert (await Gone().check()).unchecked == [f"step {STEP} is of files that no verdict names, such as {NAME}"]


async def test_an_epoch_whose_master_is_not_shown_cannot_be_checked() -> None:
    assert await World(master=None).check() == GradeReport(TRAINER)
    with pytest.raises(UnreachableError, match="the master of epoch 1 of run 1 is not shown"):
        await World(master=None).check(1)
