"""Private tests at the trainer: files get grades beside the update loop, and masters are shown once they may be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from muster.chain.masters_file import write_masters
from muster.errors import ConfigError, MismatchError, UnreachableError
from muster.protocol.hashes import hex_hash
from muster.protocol.messages import LeftOut, ShownMaster
from muster.tasksets.masters import Masters
from testbed.samples.commitments import committed, honest_rows, rules
from testbed.samples.private_tests import MASTERS, right_text, sealed_rows, sealed_rules
from testbed.samples.trainer import Orchestrator, accepted_work_of, commit, journal_in, judge
from testbed.waiting import until
from trainer.accepted_work import PollResult
from trainer.batches import FileRef, WorkFile
from trainer.grading import WAITING, Grader, load_grade_masters

NAMES = ["0x" + f"{number:064x}" for number in range(WAITING + 2)]


class Tasks:
    """Has every shard, or none."""

    away: Exception | None = None

    async def ensure_slots(self, slots: Iterable[int], epoch: int) -> None:
        assert (set(slots), epoch) == ({row.task for row in sealed_rows()}, 1)
        if self.away:
            raise self.away


class Shown:
    """An orchestrator that keeps what it is shown."""

    def __init__(self, *refusals: Exception) -> None:
        self.masters: list[ShownMaster] = []
        self._refusals = list(refusals)

    async def add_document(self, kind: str, shown: ShownMaster) -> None:
        assert kind == "master"
        if self._refusals:
            raise self._refusals.pop(0)
        self.masters.append(shown)


def ungraded(name: str = NAMES[0]) -> WorkFile:
    work = committed(sealed_rows())
    return WorkFile(FileRef(work.step, work.node, work.index, name, hex_hash(work.root)), tuple(sealed_rows()))


def grader_of(client: Shown | None = None, masters: Masters = MASTERS, **terms: Any) -> Grader:
    made = sealed_rules()
    made = replace(made, terms=replace(made.terms, **terms))
    return Grader(cast(Any, client or Shown()), cast(Any, Tasks()), made, masters)


async def test_a_file_gets_the_grades_that_its_tests_give() -> None:
    grader = grader_of()
    assert (await grader.grade_next(), grader.names) == (False, set())
    grader.offer(ungraded())
    assert (grader.room, grader.names) == (WAITING - 1, {NAMES[0]})
    assert await grader.grade_next()
    assert (grader.room, grader.names) == (WAITING, {NAMES[0]})
    [(file, why)] = grader.collect([NAMES[0]])
    assert (file.ref.grades, why, grader.names) == (right_text(), "", set())
    assert [row.task_reward for row in file.rollouts] == [row.task_reward for row in honest_rows()]


async def test_files_that_are_accepted_no_more_are_forgotten() -> None:
    grader = grader_of()
    grader.offer(ungraded())
    await grader.grade_next()
    grader.offer(ungraded(NAMES[1]))
    grader.offer(ungraded(NAMES[2]))
    assert grader.collect([NAMES[2]]) == []
    assert grader.names == {NAMES[2]}


async def test_a_file_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.grading.GRADE_SECONDS", -1.0)
    grader = grader_of()
    grader.offer(ungraded())
    await grader.grade_next()
    [(file, why)] = grader.collect(NAMES)
    assert (file.ref, why) == (ungraded().ref, "its rows take longer than -1 s to grade")


async def test_a_row_of_no_task_of_the_run_is_refused() -> None:
    grader, file = grader_of(), ungraded()
    rows = (replace(file.rollouts[0], task=sealed_rules().task_set.size), *file.rollouts[1:])
    grader.offer(replace(file, rollouts=rows))
    await grader.grade_next()
    [(_, why)] = grader.collect(NAMES)
    assert why == "row 0 names a task that the run does not have"


@pytest.mark.parametrize("error", [UnreachableError("no answer"), MismatchError("another shard")])
async def test_a_file_whose_tasks_cannot_be_had_is_fetched_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tasks, "away", error)
    grader = grader_of()
    grader.offer(ungraded())
    with pytest.raises(type(error)):
        await grader.grade_next()
    assert grader.names == set()


# Accepted work


async def test_accepted_work_is_of_use_once_it_is_graded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    taken: list[str] = []

    async def take(listed: FileRef) -> WorkFile:
        taken.append(listed.file_hash)
        return ungraded(listed.file_hash)

    with journal_in(tmp_path) as journal:
        work = accepted_work_of(Orchestrator(), journal)
        monkeypatch.setattr(work, "_take", take)
        grader = work.grader = grader_of()
        commit(journal)
        judge(journal, file_hash=NAMES[0])
        for _ in range(2):
            assert await work.poll(0, ()) == PollResult(0, ())
            assert (work.files, work.waits, taken) == ([], True, NAMES[:1])
        await grader.grade_next()
        assert (await work.poll(0, ())).fresh == 1
        assert [(file.ref.file_hash, file.ref.grades) for file in work.files] == [(NAMES[0], right_text())]

        # As many wait as there is room for.
        for index, name in enumerate(NAMES[1:], 1):
            commit(journal, index)
            judge(journal, index, file_hash=name)
        await work.poll(0, ())
        assert (taken, grader.room) == (NAMES[: WAITING + 1], 0)

        # What gets no grades is refused for good.
        monkeypatch.setattr("trainer.grading.GRADE_SECONDS", -1.0)
        await grader.grade_next()
        left_out = LeftOut(step=ungraded().ref.step, file_hash=NAMES[1], reason="ungraded")
        polled = await work.poll(0, ())
        assert (polled, work.journal.left_out()) == (PollResult(0, (left_out,)), [left_out])


# Masters

THREE = Masters(3, b"\x09" * 32)
SERIES = {"grade_tip": THREE.tip, "grade_epochs": 3, "grade_epoch_steps": 10, "async_level": 2}


def shown(epoch: int) -> ShownMaster:
    return ShownMaster(run=rules().run, epoch=epoch, master=hex_hash(THREE.of(epoch)))


async def test_a_master_is_shown_once_no_work_of_its_epoch_can_be_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.grading.POLL_SECONDS", 0.001)
    monkeypatch.setattr("trainer.grading.RETRY_SECONDS", 0.001)
    client, ended, step = Shown(UnreachableError("no answer")), asyncio.Event(), 11
    grader = grader_of(client, THREE, **SERIES)
    running = asyncio.create_task(grader.run(lambda: step, ended))
    await asyncio.sleep(0.05)
    assert client.masters == []
    step = 12
    await until(lambda: client.masters == [shown(1)], "the first master is shown, at the second try")
    step = 1_000
    await until(lambda: client.masters == [shown(1), shown(2)], "the second is; the last epoch goes on")
    ended.set()
    await running
    await grader.show_all(step)
    await grader.show_all(step)
    assert client.masters == [shown(1), shown(2), shown(3)]


async def test_grading_goes_on_while_a_master_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.grading.RETRY_SECONDS", 0.001)
    client, ended = Shown(*[UnreachableError("no answer")] * 1_000), asyncio.Event()
    grader = grader_of(client, async_level=0, grade_epochs=2, grade_epoch_steps=4)
    grader.offer(ungraded())
    running = asyncio.create_task(grader.run(lambda: 7, ended))
    await until(lambda: grader.done, "the file is graded")
    ended.set()
    await running
    assert client.masters == []


async def test_a_run_that_ends_early_shows_the_epochs_that_have_begun() -> None:
    client = Shown()
    await grader_of(client, THREE, **SERIES).show_all(10)
    assert client.masters == [shown(2)]


def test_the_trainer_needs_the_masters_of_its_run(tmp_path: Path) -> None:
    terms = sealed_rules().terms
    assert load_grade_masters(None, rules().terms) is None
    with pytest.raises(ConfigError, match="no masters are here") as caught:
        load_grade_masters(None, terms)
    assert "trainer.grade_masters" in caught.value.hint
    for name, masters in {"right": MASTERS, "other": THREE}.items():
        write_masters(tmp_path / name, masters)
    assert load_grade_masters(tmp_path / "right", terms) == MASTERS
    with pytest.raises(ConfigError, match="another run"):
        load_grade_masters(tmp_path / "other", terms)
