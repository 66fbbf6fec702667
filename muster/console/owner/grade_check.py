"""Grade private tests again by the masters that a run's trainer has shown, and name what it said that is not so.

Nothing is believed here that the chain does not bind: what a step was trained on is what hashes to its batch root, a
file's grades are what hash to the word that this names, its rows are what its commitment's root says, and a master is
what leads to the tip in the terms. So a trainer that changes one of them is found on any machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.chain.reads import ChainReader
from muster.clients.orchestrator import OrchestratorClient
from muster.clients.run_data import RunTasks, fetch_rollouts
from muster.contracts.runs import CheckpointPublished, WorkCommitted
from muster.errors import CheckError, MalformedError, MismatchError, NotFoundError, RefusedError, UnreachableError
from muster.protocol.hashes import hash_bytes
from muster.protocol.masters import check_master, earlier_master, epoch_of, epochs_trained
from muster.protocol.messages import StepFile
from muster.rollouts.reader import RolloutReader
from muster.tasksets.grades import RowGrade, differences, parse_grades
from muster.verification.checks import grade_rows
from muster.verification.rules import CommittedWork, Rules


@dataclass
class GradeReport:
    """What grading again came to."""

    trainer: str
    """The run's, whose words `lies` are."""
    epochs: list[int] = field(default_factory=list)
    """Whose work was graded again."""
    files: int = 0
    grades: int = 0
    """Rows of private tests in these files, but those of `unsure`."""
    reproduced: int = 0
    """Rows that come to the same reward, parts and fuel."""
    unsure: int = 0
    """Rows that another processor may grade otherwise than this one: they show nothing."""
    void: int = 0
    """Rows whose sealed reference does not open, or cannot be scored by."""
    lies: list[str] = field(default_factory=list)
    """What the trainer said that is not so."""
    unchecked: list[str] = field(default_factory=list)
    """What cannot be checked here, and why."""


@dataclass
class GradeCheck:
    """Checks what the trainer of one run said of private tests."""

    chain: ChainReader
    client: OrchestratorClient
    reader: RolloutReader
    rules: Rules
    tasks: RunTasks
    report: GradeReport = field(init=False)

    async def run(self, epoch: int | None = None) -> GradeReport:
        """Check the work of one epoch, or of all whose masters are shown.

        Raises UnreachableError where the master of `epoch` is not shown, and as chain and client.
        """
        run, level = self.rules.run, self.rules.terms.async_level
        report = self.report = GradeReport((await self.chain.keys_now(run)).trainer)
        steps = {one.step: one.batch_root for one in await self.chain.all_events(CheckpointPublished) if one.run == run}
        shown, master = await self._shown(max(steps, default=0))
        if epoch is not None and epoch > shown and not report.lies:
            raise UnreachableError(
                f"the master of epoch {epoch} of run {run} is not shown",
                hint="its trainer shows it once no work of the epoch can be trained on",
            )
        masters = {one: earlier_master(master, shown, one) for one in range(1, shown + 1) if epoch in (None, one)}
        report.epochs = list(masters)
        works = [CommittedWork.of(event) for event in await self.chain.all_events(WorkCommitted) if event.run == run]
        made = {(work.node.lower(), work.index): work for work in works}
        for step, batch_root in sorted(steps.items()):
            policies = range(max(0, step - 1 - level), step)
            if step and any(self._epoch(policy) in masters for policy in policies):
                for file in await self._files(step, batch_root):
                    if self._epoch(file.step) in masters and (work := self._work(file, made)):
                        await self._check(work, file, masters[self._epoch(file.step)])
        return report

    def _epoch(self, step: int) -> int:
        return epoch_of(self.rules.terms.grade_series, step)

    async def _shown(self, step: int) -> tuple[int, bytes]:
        """Return the last epoch whose master is shown, 0 for none, and that master. `step`: the newest one on chain."""
        series = self.rules.terms.grade_series
        due = epochs_trained(series, step - 1, self.rules.terms.async_level)
        for epoch in range(self._epoch(step), 0, -1):
            try:
                master = hash_bytes((await self.client.shown_master(self.rules.run, epoch)).master)
                check_master(series, epoch, master)
            except MismatchError as error:
                self.report.lies.append(str(error))
            except NotFoundError:
                if epoch <= due:
                    self.report.lies.append(f"the master of epoch {epoch} is withheld, whose work trains nothing more")
            else:
                return epoch, master
        return 0, b""

    async def _files(self, step: int, batch_root: bytes) -> list[StepFile]:
        """Return the files that a step was trained on; none where its trainer's word on them is not kept."""
        try:
            return (await self.client.step_document(self.rules.run, batch_root)).files
        except MismatchError as error:
            self.report.lies.append(f"step {step}: its batch root on chain is of another document: {error}")
        except CheckError as error:
            self.report.unchecked.append(f"step {step}: what its batch root names cannot be had: {error}")
        return []

    def _work(self, file: StepFile, made: Mapping[tuple[str, int], CommittedWork]) -> CommittedWork | None:
        """Return the commitment of a file, of all that the chain has."""
        work = made.get((file.node.lower(), file.index))
        if work is None or (work.step, work.root) != (file.step, hash_bytes(file.root)):
            about = f"commitment {file.index} of {file.node}"
            self.report.lies.append(f"{about} is not on chain with the root and step that the batch names")
            return None
        return work

    async def _check(self, work: CommittedWork, file: StepFile, master: bytes) -> None:
        """Grade a file's rows again, and compare."""
        about, report = f"commitment {work.index} of {work.node}", self.report
        if file.grades is None:
            report.lies.append(f"{about}: its batch names no grades")
            return
        try:
            stated = parse_grades(await self.client.grades_text(self.rules.run, file.grades))
        except (MismatchError, MalformedError) as error:
            report.lies.append(f"{about}: what is published as its grades is not what its batch names: {error}")
            return
        except (RefusedError, UnreachableError) as error:
            report.unchecked.append(f"{about}: its grades cannot be had: {error}")
            return
        try:
            ours = await self._grade(work, file.file_hash, master)
        except (CheckError, UnreachableError) as error:
            report.unchecked.append(f"{about} cannot be graded here: {error}")
            return
        wrong = differences(ours, stated)
        unsure = sum(one.unsure for one in ours)
        rows = len({one.position for one in (*ours, *stated)}) - unsure
        report.files += 1
        report.grades += rows
        report.reproduced += rows - len(wrong)
        report.unsure += unsure
        report.void += sum(not one.parts and not one.unsure for one in ours)
        said, here = ({one.position: one for one in grades} for grades in (stated, ours))
        report.lies += [
            f"row {at} of {about} is graded {_words(said.get(at))}, and comes to {_words(here.get(at))}" for at in wrong
        ]

    async def _grade(self, work: CommittedWork, file_hash: str, master: bytes) -> tuple[RowGrade, ...]:
        rows = await fetch_rollouts(self.client, self.reader, file_hash, work.root, self.rules.terms)
        slots = {row.task for row in rows if 0 <= row.task < self.rules.task_set.size}
        await self.tasks.ensure_slots(slots, self._epoch(work.step))
        return await asyncio.to_thread(lambda: tuple(grade_rows(rows, self.rules, master)))


def _words(grade: RowGrade | None) -> str:
    if grade is None:
        return "not at all"
    return "unsure" if grade.unsure else f"{grade.reward} of parts {list(grade.parts)} with fuel {grade.fuel}"
