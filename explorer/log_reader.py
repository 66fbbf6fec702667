"""Follow the run's log by its cursor into the database, once the chain is read.

The place to go on from is kept in the database and moves in the transaction that writes what the documents lead to, so
a process that is killed has taken in a page whole or not at all. A document is taken in once the chain is read up to
the second of its arrival: what it refers to on chain is then known.

Of days whose deadlines are over the log may have nothing left; their signed summaries take the place of their
documents, here as in the orchestrator.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Final

from sqlalchemy import Connection, select

from explorer.documents import Documents
from muster.clients.orchestrator import OrchestratorClient
from muster.errors import TRANSIENT, CheckError, MismatchError, NotFoundError, StorageError
from muster.ledger.chain_follower import STALE_SECONDS, Follower
from muster.ledger.database import Database
from muster.ledger.statements import upsert
from muster.ledger.summaries import DayOfWork, due_days, forget_day, is_of_its_day, read_day, restore
from muster.ledger.tables import meta
from muster.protocol.eip712 import Domain
from muster.runtime import telemetry
from muster.runtime.loop import AGAIN, IDLE, Next, PollLoop, Waiting

POLL_SECONDS: Final = 1.0
"""Between two looks at the end of the log."""
WAIT_SECONDS: Final = 10
"""For so long the orchestrator may hold a look there, until the log has grown."""
DAYS_SECONDS: Final = 300.0
"""Between two looks for days that are over."""
_READ: Final = "0x" + 64 * "0"
"""In place of a summary's name, which only its storage has."""
_PLACE: Final = "log place"
"""The next place to read, in the table `meta`."""

log = telemetry.logger("explorer")


@dataclass(eq=False)
class LogReader:
    """Reads one run's log. Start it with `reading`."""

    where: Domain
    client: OrchestratorClient
    database: Database
    follower: Follower
    documents: Documents
    unbonding: int
    """`Registry.UNBONDING`, in seconds."""
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._queries = self.follower.queries
        self._has_read = False
        self._complete_at, self._last_read = time.time(), self.clock()
        self._days_at = float("-inf")

    @property
    def stale_since(self) -> float | None:
        """Return since which Unix second the log is not read to its end; None while it is."""
        is_silent = self.clock() - self._last_read > STALE_SECONDS
        return self._complete_at if is_silent or not self._has_read else None

    def unready(self) -> list[str]:
        """Return why what is known of the log is not good enough; empty when it is."""
        return ["following the log: not read to its end"] if self.stale_since is not None else []

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Read while the block runs. An unexpected error ends the block too."""
        transient = (*TRANSIENT, StorageError, CheckError)
        async with asyncio.TaskGroup() as group:
            loop = PollLoop(log, "log", POLL_SECONDS, transient=transient)
            task = group.create_task(loop.run(self.poll), name="log")
            try:
                yield
            finally:
                task.cancel()

    async def poll(self) -> Next | Waiting:
        """Read the next page of the log. Raises TRANSIENT errors, StorageError, CheckError."""
        if self.follower.unready():
            return Waiting("the chain is not read yet")
        if self.clock() - self._days_at >= DAYS_SECONDS:
            await self._restore_days()
            self._days_at = self.clock()
        place = await self.database.read(place_in)
        page = await self.client.log(self._queries.run, place, wait=WAIT_SECONDS)
        known = [*takewhile(lambda one: one.came <= self._queries.chain.now, page.entries)]
        found = await asyncio.to_thread(lambda: [*filter(None, map(self.documents.open, known))])
        if known:
            following = known[-1].place + 1 if len(known) < len(page.entries) else page.cursor

            def write(connection: Connection) -> None:
                if place_in(connection) != place:
                    raise StorageError("database: its place in the log is another one than was read last")
                self.documents.project(connection, found)
                upsert(connection, meta, {"key": _PLACE, "value": str(following)})

            await self.database.write(write)
        if page.entries and len(known) == len(page.entries):
            return AGAIN
        if not page.entries or page.entries[len(known)].came <= time.time() + STALE_SECONDS:
            self._has_read, self._complete_at, self._last_read = True, time.time(), self.clock()
        return IDLE

    async def _restore_days(self) -> None:
        """Let the summaries of days whose deadlines are over count, where the run forgets such days."""
        queries = self._queries
        phases = queries.terms.commit_phase + queries.terms.reveal_phase
        is_over = partial(due_days, now=queries.chain.now, phases=phases, unbonding=self.unbonding)
        for day in await self.database.read(is_over):
            try:
                data = await self.client.day_summary(queries.run, day)
                work = await asyncio.to_thread(read_day, self.where, queries.keys, data)
                await self.database.write(partial(self._restore, day=day, work=work))
            except NotFoundError:
                return  # this day's documents are kept, and so are those of later ones
            except CheckError as error:
                log.warning("left out", kind="summary", day=day, reason=str(error))
                return
            log.info("day of work replaced by its summary", day=day)

    def _restore(self, connection: Connection, *, day: int, work: DayOfWork) -> None:
        if (work.run, work.day) != (self._queries.run, day) or not is_of_its_day(connection, work):
            raise MismatchError("it is not about the commitments of its day")
        restore(connection, work, _READ)
        forget_day(connection, self._queries, work)


def place_in(connection: Connection) -> int:
    """Return the next place of the log to read."""
    return int(connection.execute(select(meta.c.value).where(meta.c.key == _PLACE)).scalar() or 0)
