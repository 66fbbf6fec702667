"""Accepted work, from the trainer's own copy of log and chain to rollouts in memory.

What is accepted the journal says (`muster.protocol.acceptance`): validators' signatures were checked when it took their
verdicts in. Here files are fetched, and the recomputed root shows that each is the one they mean. A file that fails is
refused for good and reported; it never stops a step. In a run with private tests a file is of use once it is graded
(`trainer.grading`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from muster.clients.orchestrator import OrchestratorClient
from muster.clients.run_data import fetch_rollouts
from muster.constants import MAX_ACCEPTED
from muster.errors import ChainError, CheckError, NotFoundError, RefusedError, UnreachableError
from muster.protocol.hashes import content_hash, hash_bytes, hex_hash
from muster.protocol.messages import LeftOut
from muster.protocol.terms import Terms
from muster.rollouts.reader import RolloutReader
from muster.runtime import telemetry
from trainer.batches import FileRef, WorkFile, check_rows
from trainer.grading import Grader, with_grades
from trainer.look_journal import LookJournal

FETCHES: Final = 4
"""Files fetched at the same time."""
GONE_SECONDS: Final = 300.0
"""A file that no poll finds for so long is refused: what was accepted had been uploaded."""

log = telemetry.logger("trainer")
REFUSED = telemetry.counter("trainer_refused_files", "Accepted files that the trainer would not use")


@dataclass(frozen=True)
class PollResult:
    """What one poll brought."""

    fresh: int
    """Files that are new and good."""
    refused: tuple[LeftOut, ...]
    """Files that will never be used."""


class _Unused(NamedTuple):
    reason: Literal["gone", "unfit", "ungraded"]
    why: str


_NOT_OF_THE_FILE: Final = (UnreachableError, ChainError, RefusedError)
"""Errors that say nothing about the file itself."""


def accepted_files(journal: LookJournal, oldest: int, spent: Collection[str], terms: Terms) -> list[FileRef]:
    """Return accepted work of `oldest` and later steps, the oldest MAX_ACCEPTED, without files of these names."""
    jailed, found = journal.jailed, list[FileRef]()
    for known in journal.since(oldest):
        c, came = known.work, journal.came(known.work)
        decision = journal.decide(known, came, jailed, terms)
        if decision.state != "accepted":
            continue
        given = [one for one, _ in came if one.validator in decision.accepted_by]
        if given[0].file_hash not in spent:
            hashes = tuple(content_hash(one.to_bytes()) for one in given)
            ref = FileRef(c.step, c.node, c.index, given[0].file_hash, hex_hash(c.root), verdicts=hashes)
            found.append(ref)
        if len(found) == MAX_ACCEPTED:
            break
    return found


@dataclass
class AcceptedWork:
    """The files that could go into a batch. Bounded by what the run can commit within its async level."""

    client: OrchestratorClient
    reader: RolloutReader
    run: int
    terms: Terms
    vocabulary: int
    """Number of token ids that the model knows."""
    journal: LookJournal
    follow: Callable[[], Awaitable[None]]
    """Brings the journal up to now (`trainer.following`)."""
    grader: Grader | None = None
    """In a run with private tests. Set before the first poll."""
    _gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FETCHES), init=False)
    by_hash: dict[str, WorkFile] = field(default_factory=dict, init=False)
    _gone: dict[str, float] = field(default_factory=dict, init=False)
    """Files not found since this time."""

    @property
    def files(self) -> list[WorkFile]:
        """Return the files in memory, in order of arrival."""
        return list(self.by_hash.values())

    @property
    def waits(self) -> bool:
        """Return whether there is work, graded or not."""
        return bool(self.files or (self.grader and self.grader.names))

    def forget(self, hashes: Iterable[str], oldest_step: int) -> None:
        """Drop files that were used, and refusals of steps that cannot come again."""
        for name in hashes:
            self.by_hash.pop(name, None)
        self.journal.keep_from(oldest_step)

    def refuse_all(self) -> list[WorkFile]:
        """Refuse all files in memory, since none has a signal; return them."""
        files = self.files
        for name, file in self.by_hash.items():
            self.journal.leave_out(LeftOut(step=file.ref.step, file_hash=name, reason="no_signal"))
        self.by_hash.clear()
        return files

    async def poll(self, min_step: int, used: Iterable[str]) -> PollResult:
        """Fetch whatever was accepted since the last poll, and drop what is accepted no more.

        Raises UnreachableError, ChainError or CheckError when log or chain cannot be read now.
        """
        await self.follow()
        accepted = accepted_files(
            self.journal, min_step, {*used, *(one.file_hash for one in self.journal.left_out())}, self.terms
        )
        names = {work.file_hash for work in accepted}
        self.by_hash = {name: file for name, file in self.by_hash.items() if name in names}
        known = self.by_hash.keys() | (self.grader.names if self.grader else set())
        listed = [work for work in accepted if work.file_hash not in known][: self.grader.room if self.grader else None]
        self._gone = {name: since for name, since in self._gone.items() if name in names}
        results = [*zip(listed, await asyncio.gather(*(self._take(work) for work in listed)), strict=True)]
        graded = self.grader.collect(names) if self.grader else ()
        fresh, refused = 0, []
        of_graded = ((file.ref, _Unused("ungraded", why) if why else file) for file, why in graded)
        for work, found in [*results, *of_graded]:
            if isinstance(found, WorkFile) and self.grader and not found.ref.grades:
                self.grader.offer(found)
            elif isinstance(found, WorkFile):
                self.by_hash[work.file_hash] = found
                fresh += 1
            elif isinstance(found, _Unused):
                one = LeftOut(step=work.step, file_hash=work.file_hash, reason=found.reason)
                self.journal.leave_out(one)
                refused.append(one)
                REFUSED.inc()
                about = {"file": work.file_hash, "node": work.node, "index": work.index}
                log.warning("refused a file", **about, reason=found.why)
        return PollResult(fresh, tuple(refused))

    async def fetch(self, ref: FileRef) -> WorkFile:
        """Fetch a file of a closed batch. Raises CheckError when it is not the one that the batch names."""
        async with self._gate:
            name, root = ref.file_hash, hash_bytes(ref.root)
            rollouts = await fetch_rollouts(self.client, self.reader, name, root, self.terms)
        if ref.grades:
            rollouts = with_grades(rollouts, ref.grades)
        check_rows(rollouts, self.run, ref, self.terms, self.vocabulary)
        return WorkFile(ref, tuple(rollouts))

    async def _take(self, work: FileRef) -> WorkFile | _Unused | None:
        """Return the file, or why it will never be used, or None when that cannot be decided now."""
        known = work.file_hash in self._gone
        since = self._gone.pop(work.file_hash, time.monotonic())
        try:
            return await self.fetch(work)
        except _NOT_OF_THE_FILE as error:
            if isinstance(error, NotFoundError):
                if time.monotonic() - since > GONE_SECONDS:
                    return _Unused("gone", f"for {GONE_SECONDS:g} s now: {error}")
                self._gone[work.file_hash] = since
            if not known:
                log.warning("cannot fetch a file now", file=work.file_hash, error=str(error))
            return None
        except CheckError as error:
            return _Unused("unfit", str(error))
