"""Count the completion tokens of accepted files: one file at a time, newest steps first, while nothing else waits.

Every poll looks through the newest steps. Older ones are looked through once in a while, a range of steps at a poll,
since a case can end, or a database be rebuilt, long after. Their files are read at a bounded rate: after a rebuild that
is all files of a run. A file that is missing or malformed counts as 0 for good. One that this machine fails to read is
tried again after the next start. Of several processes on one database, the one that leads counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, func, select

from muster.errors import TRANSIENT, RefusedError, StorageError, UnreachableError
from muster.runtime import telemetry
from muster.runtime.loop import AGAIN, IDLE, Next, PollLoop
from orchestrator.database import Database
from orchestrator.page.reading import ReadingProcess
from orchestrator.queries import same_work
from orchestrator.tables import commitments, file_tokens, uploads
from orchestrator.tallies import count_tokens

POLL_SECONDS: Final = 5.0
NEWEST_STEPS: Final = 32
"""Steps that are looked through at every poll."""
OLDER_STEPS: Final = 64
"""Older steps that are looked through at a poll."""
SWEEP_SECONDS: Final = 3600.0
"""Between two sweeps of all older steps."""
FILES_AT_ONCE: Final = 8
"""Files counted between two queries."""
OLDER_BYTES_A_SECOND: Final = 4 << 20
"""Of the files of older steps that are read, on average."""
MAX_FAILED: Final = 1_000

COUNTED: Final = telemetry.counter("counted_files", "Accepted files whose tokens were counted", ("outcome",))
log = telemetry.logger("orchestrator")


@dataclass(frozen=True)
class AcceptedFile:
    file_hash: str
    node: str
    size: int


class TokenCounter:
    """Counts for one run. Start it with `counting`."""

    def __init__(
        self, database: Database, reading: ReadingProcess, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._reading = reading
        self._clock = clock
        self.is_busy: Callable[[], bool] = lambda: False
        """Whether members wait for answers: then nothing is counted."""
        self._below: int | None = None
        """Older steps below this one are still to be looked through in this sweep; None between two sweeps."""
        self._swept = float("-inf")
        self._older_from = float("-inf")
        """When the next file of an older step may be read."""
        self._failed: set[str] = set()
        """Files that this machine could not read."""

    @asynccontextmanager
    async def counting(self) -> AsyncIterator[None]:
        """Count while the block runs."""
        loop = PollLoop(log, "counting tokens", POLL_SECONDS, transient=(*TRANSIENT, StorageError))
        task = asyncio.create_task(loop.run(self.poll), name="token counter")
        task.add_done_callback(_say_end)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def poll(self) -> Next:
        """Count some files. Raises StorageError when storage or database fails."""
        files = [] if self.is_busy() or not self._database.leads else await self._database.read(self._find)
        for file in files:
            if self.is_busy():
                return IDLE
            await self._count(file)
        return AGAIN if files else IDLE

    def _find(self, connection: Connection) -> list[AcceptedFile]:
        """Return some files that are to be counted, newest first."""
        latest = connection.execute(select(func.max(commitments.c.step))).scalar()
        if latest is None:
            return []
        newest = latest - NEWEST_STEPS + 1
        if found := self._wanted(uncounted(connection, newest, latest, FILES_AT_ONCE + len(self._failed))):
            return found
        if self._below is None and self._clock() - self._swept >= SWEEP_SECONDS:
            self._below = newest
        if self._below is None or self._clock() < self._older_from:
            return []
        first = max(0, self._below - OLDER_STEPS)
        limit = FILES_AT_ONCE + len(self._failed)
        if found := self._wanted(uncounted(connection, first, self._below - 1, limit))[:1]:
            self._older_from = self._clock() + found[0].size / OLDER_BYTES_A_SECOND
            return found
        self._below = first
        if first == 0:
            self._below, self._swept = None, self._clock()
        return []

    def _wanted(self, files: Sequence[AcceptedFile]) -> list[AcceptedFile]:
        return [file for file in files if file.file_hash not in self._failed][:FILES_AT_ONCE]

    async def _count(self, file: AcceptedFile) -> None:
        try:
            answer = await self._reading.ask(file.file_hash)
        except RefusedError:
            return None  # too many requests wait for the reading process
        except UnreachableError as error:
            return self._give_up(file, str(error))
        if answer.failure == "storage":
            raise StorageError(answer.why)
        if answer.failure == "machine":
            return self._give_up(file, answer.why)
        if answer.failure:
            log.warning("an accepted file counts as 0 tokens", file=file.file_hash, why=answer.why or answer.failure)
        COUNTED.labels(answer.failure or "counted").inc()
        await self._database.write(
            lambda connection: count_tokens(connection, file.file_hash, file.node, answer.tokens), news=False
        )
        return None

    def _give_up(self, file: AcceptedFile, why: str) -> None:
        """Leave a file out until the next start."""
        log.warning("a file was not counted", file=file.file_hash, why=why)
        COUNTED.labels("not_read").inc()
        if len(self._failed) >= MAX_FAILED:
            self._failed.clear()
        self._failed.add(file.file_hash)


def _say_end(task: asyncio.Task[None]) -> None:
    """Log an error that no poll expects: numbers on a page are no reason to end the service."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("tokens are counted no more", error=type(error).__name__, reason=str(error))


def uncounted(connection: Connection, first: int, last: int, limit: int) -> list[AcceptedFile]:
    """Return files of accepted commitments of the steps from `first` to `last` that were not counted, newest first."""
    query: Any = (
        select(*uploads.c["file_hash", "node", "size"])
        .join(commitments, same_work(uploads, commitments.c))
        .outerjoin(file_tokens, file_tokens.c.file_hash == uploads.c.file_hash)
        .where(commitments.c.step.between(first, last), commitments.c.status == "accepted")
        .where(file_tokens.c.file_hash.is_(None))
        .order_by(commitments.c.step.desc(), commitments.c.node, commitments.c.index.desc())
        .limit(limit)
    )
    return [AcceptedFile(*row) for row in connection.execute(query)]
