"""Hide what depends on verdicts until the seals of their hour are closed, in a run with traps.

There verdicts, grades and the trainer's reports wait in tables of their own, which nothing reads that answers
strangers. Once the seals are closed (`muster.protocol.seals`), the process with the lease moves them to the tables
that everything is read from, where they have the effect that they have at once in other runs. So a new answer needs no
more rules, and a process that ends leaves the next one what is not moved.

Until then the trainer reads them by its signature (`Queries.trainable`), and a node what was said of its own work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Table, and_, bindparam, delete, exists, select

from muster.constants import HOUR_SECONDS
from muster.errors import TRANSIENT, StorageError
from muster.protocol.seals import verdicts_hidden
from muster.protocol.terms import Terms
from muster.runtime import telemetry
from muster.runtime.loop import IDLE, Next, PollLoop
from orchestrator.chain_follower import Follower
from orchestrator.database import Database
from orchestrator.tables import commitments, hidden_grades, hidden_spent, hidden_steps, hidden_verdicts, uploads

POLL_SECONDS: Final = 10.0
AT_ONCE: Final = 256
"""Rows that one transaction moves."""

log = telemetry.logger("orchestrator")


def closed_hour(terms: Terms, now: int) -> int:
    """Return the newest hour about which nothing is hidden. `now`: the chain's second."""
    hour = now // HOUR_SECONDS
    while verdicts_hidden(terms, hour * HOUR_SECONDS, now):
        hour -= 1
    return hour


def _about_work(table: Table) -> Any:
    """Return the statement for the first rows of a table about commitments that are not later than an hour."""
    about = and_(commitments.c.node == table.c.node, commitments.c.index == table.c.index)
    return select(table).join(commitments, about).where(commitments.c.hour <= bindparam("hour")).order_by(table.c.id)


_FILES: Final = hidden_spent.join(uploads, uploads.c.file_hash == hidden_spent.c.file_hash).join(
    commitments, and_(*(uploads.c[name] == commitments.c[name] for name in ("node", "index", "root")))
)
_LATER: Final = and_(hidden_spent.c.step == hidden_steps.c.step, commitments.c.hour > bindparam("hour"))
_DUE: Final[Mapping[Table, Any]] = {
    hidden_verdicts: _about_work(hidden_verdicts).limit(AT_ONCE),
    hidden_grades: _about_work(hidden_grades).limit(AT_ONCE),
    hidden_steps: select(hidden_steps).where(~exists().select_from(_FILES).where(_LATER)).order_by(hidden_steps.c.step),
}
"""What is public from an hour's closing on: of reports, those whose files are all of that hour or earlier ones."""


class Release:
    """Shows what was hidden. Start it with `releasing`."""

    def __init__(
        self,
        follower: Follower,
        database: Database,
        shows: Mapping[Table, Callable[[Connection, Sequence[Any]], None]],
    ) -> None:
        """Take, by hidden table, what writes its rows to public ones: in this order, as grades follow verdicts."""
        self._follower, self._queries, self._database = follower, follower.queries, database
        self._shows = shows

    @asynccontextmanager
    async def releasing(self) -> AsyncIterator[None]:
        """Release what is due while the block runs."""
        loop = PollLoop(log, "release", POLL_SECONDS, transient=(*TRANSIENT, StorageError))
        task = asyncio.create_task(loop.run(self.poll), name="release")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def poll(self) -> Next:
        """Release what is due, unless another process leads or the chain is not read. Raises StorageError."""
        if self._follower.unready():
            await self._follower.next_poll()
        if self._database.leads and not self._follower.unready():
            await self.release()
        return IDLE

    async def release(self) -> None:
        """Show all that is about hours whose seals are closed."""
        hour = closed_hour(self._queries.terms, self._queries.chain.now)
        for table, show in self._shows.items():
            while await self._database.read(partial(_due, table=table, hour=hour)):
                moved = await self._database.write(partial(_move, table=table, hour=hour, show=show))
                log.info("shown, the seals are closed", kind=table.name, rows=moved)


def _due(connection: Connection, table: Table, hour: int) -> Sequence[Any]:
    return connection.execute(_DUE[table], {"hour": hour}).all()


def _move(connection: Connection, table: Table, hour: int, show: Callable[[Connection, Sequence[Any]], None]) -> int:
    rows = _due(connection, table, hour)
    key = next(iter(table.primary_key.columns))
    connection.execute(delete(table).where(key.in_([getattr(row, key.name) for row in rows])))
    show(connection, rows)
    return len(rows)
