"""Private tests at the trainer: it grades accepted work beside the update loop, and shows the masters.

Only it and the owner have the masters, and pay does not depend on grades. So that the trainer cannot change them later,
a batch names the hash of each file's grades, and their text is published before the batch is anchored. A master is
shown once no work of its epoch can be trained on: from then on `muster grades check` grades again on any machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from muster.chain.masters_file import read_masters
from muster.clients.orchestrator import OrchestratorClient
from muster.clients.run_data import RunTasks
from muster.errors import TRANSIENT, ConfigError, MismatchError
from muster.protocol.hashes import hex_hash
from muster.protocol.masters import epoch_of, epochs_trained
from muster.protocol.messages import ShownMaster
from muster.protocol.terms import Terms
from muster.rollouts.schema import Rollout
from muster.runtime import telemetry
from muster.runtime.loop import wait_for_event
from muster.tasksets.grades import grades_text, parse_grades
from muster.tasksets.masters import Masters
from muster.verification.checks import grade_rows
from muster.verification.rules import Rules
from trainer.batches import WorkFile

WAITING: Final = 16
"""Files that wait for their grades at most: others are fetched later."""
GRADE_SECONDS: Final = 600.0
"""Longest that the rows of one file are graded. A file that takes longer is refused: it is paid, and trains nothing."""
POLL_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 5.0

log = telemetry.logger("trainer")


def load_grade_masters(path: Path | None, terms: Terms) -> Masters | None:
    """Read the masters of a run's private tests; None where it has none. Raises ConfigError when they are another's."""
    if not terms.has_private_tests:
        return None
    hint = "set trainer.grade_masters to the file that muster tasks seal wrote for this run"
    if path is None:
        raise ConfigError("the run has private tests, which its trainer grades, and no masters are here", hint=hint)
    masters = read_masters(path)
    if (masters.tip, masters.epoch) != (terms.grade_tip, terms.grade_epochs):
        raise ConfigError(f"{path} holds the masters of another run", hint=hint)
    return masters


@dataclass(eq=False)
class Grader:
    """Grades the files of one run, one after another, and shows its masters."""

    client: OrchestratorClient
    tasks: RunTasks
    rules: Rules
    masters: Masters
    waiting: dict[str, WorkFile] = field(default_factory=dict, init=False)
    """Files without grades, by hash, the oldest first."""
    done: list[tuple[WorkFile, str]] = field(default_factory=list, init=False)
    """Files with grades, or without them and why they get none."""
    _shown: int = field(default=0, init=False)
    """The last epoch whose master is shown."""

    @property
    def room(self) -> int:
        """Return how many more files can wait."""
        return WAITING - len(self.waiting)

    @property
    def names(self) -> set[str]:
        """Return the hashes of the files that are here."""
        return self.waiting.keys() | {file.ref.file_hash for file, _ in self.done}

    def offer(self, file: WorkFile) -> None:
        """Take a file that is to be graded."""
        self.waiting[file.ref.file_hash] = file

    def collect(self, wanted: Iterable[str]) -> list[tuple[WorkFile, str]]:
        """Return what is done of the files that are still wanted, and why a file gets no grades; forget the others."""
        names, done = set(wanted), self.done
        self.waiting = {name: file for name, file in self.waiting.items() if name in names}
        self.done = []
        return [(file, why) for file, why in done if file.ref.file_hash in names]

    async def run(self, step: Callable[[], int], ended: asyncio.Event) -> None:
        """Grade what waits, and show what is due at `step`, until training has ended."""
        series, level = self.rules.terms.grade_series, self.rules.terms.async_level
        while not ended.is_set():
            try:
                pause = 0.0 if await self.grade_next() else POLL_SECONDS
                await self.show(epochs_trained(series, step(), level))
            except TRANSIENT as error:
                log.warning("cannot grade or show a master now", error=str(error), hint=error.hint)
                pause = RETRY_SECONDS
            if pause:
                await wait_for_event(ended, pause)

    async def show(self, epoch: int) -> None:
        """Show the master of an epoch, and so those before it, unless it is shown. Raises as the client."""
        if epoch > self._shown:
            master = hex_hash(self.masters.of(epoch))
            await self.client.add_document("master", ShownMaster(run=self.rules.run, epoch=epoch, master=master))
            self._shown = epoch
            log.info("showed a master of private tests", epoch=epoch)

    async def show_all(self, step: int) -> None:
        """Show the masters of all epochs that have begun: no more is trained. Raises as the client."""
        await self.show(epoch_of(self.rules.terms.grade_series, step))

    async def grade_next(self) -> bool:
        """Grade the file that waits longest; return whether there was one.

        Raises TRANSIENT errors that are not the file's, which is then fetched again.
        """
        file = next(iter(self.waiting.values()), None)
        if file is None:
            return False
        epoch, size = epoch_of(self.rules.terms.grade_series, file.ref.step), self.rules.task_set.size
        try:
            await self.tasks.ensure_slots({row.task for row in file.rollouts if 0 <= row.task < size}, epoch)
            self.done.append(await asyncio.to_thread(graded, file, self.rules, self.masters.of(epoch)))
        finally:
            self.waiting.pop(file.ref.file_hash, None)
        return True


def graded(file: WorkFile, rules: Rules, master: bytes) -> tuple[WorkFile, str]:
    """Return a file with its grades, or without them and why it gets none. Blocks. Raises as `Rules.grade`."""
    grades, deadline = [], time.monotonic() + GRADE_SECONDS
    try:
        for grade in grade_rows(file.rollouts, rules, master):
            grades.append(grade)
            if time.monotonic() > deadline:
                return file, f"its rows take longer than {GRADE_SECONDS:g} s to grade"
    except MismatchError as error:
        return file, str(error)
    ref = replace(file.ref, grades=grades_text(grades))
    return WorkFile(ref, with_grades(file.rollouts, ref.grades)), ""


def with_grades(rollouts: Sequence[Rollout], text: str) -> tuple[Rollout, ...]:
    """Return a commitment's rows with the rewards of its grades."""
    grades = {grade.position: grade for grade in parse_grades(text)}
    rewarded = []
    for row in rollouts:
        if grade := grades.get(row.position):
            parts = np.array(grade.parts, np.int64)
            row = replace(row, task_reward=grade.reward, parts=parts, fuel=max(0, grade.fuel))
        rewarded.append(row)
    return tuple(rewarded)
