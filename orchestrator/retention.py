"""Delete the detail of work once its deadlines are over: no case can be opened, voted on or graded again any more.

A UTC day of the chain's clock goes as a whole, once `muster.protocol.windows.needed_until` is over for its last hour
and no case about its work is open:

1. The day is closed: nothing is taken about its work any more, so what is left of it stays as it is.
2. Its summary (`muster.ledger.summaries`) is written to storage.
3. The database lets the summary's outcomes count, then deletes the rows of verdicts, calls and uploads, and the log's
   documents, a few at a time, and notes which files they leave behind.
4. These files are deleted, each only once no row names it.

A process that ends anywhere in between leaves the next one a day to resume. Evidence goes by the hour at which it was
posted, and so do grades of private tests; lists of looks, but the latest, go with the day of their hour. Where days do
not go (`orchestrator.retention`), this does all the same, after a day: a file that no commitment names, and evidence
that no verdict or case does. The process with the lease does all this.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import Any, Final

from sqlalchemy import Connection, and_, delete, func, select, tuple_, update

from muster.clients.storage import ContentStore, SegmentStore
from muster.constants import HOUR_SECONDS, MAX_SUMMARY_BYTES, UNNAMED_SECONDS
from muster.errors import TRANSIENT, CheckError, StorageError
from muster.ledger.chain_follower import Follower, state_in
from muster.ledger.database import Database
from muster.ledger.queries import OF_NODE
from muster.ledger.summaries import (
    DayOfWork,
    close,
    documents_of,
    forget,
    forget_lists,
    last_hour,
    leave,
    read_day,
    restore,
    settle,
    sign_day,
    summarise,
    within,
)
from muster.ledger.tables import (
    OPEN,
    calls,
    cases,
    commitments,
    files,
    hour_tallies,
    outcomes,
    summaries,
    uploads,
    verdicts,
)
from muster.ledger.tallies import DAY_HOURS
from muster.protocol.acceptance import date_of
from muster.protocol.eip712 import Domain, TypedSigner
from muster.protocol.hashes import content_hash
from muster.protocol.messages import Upload
from muster.protocol.windows import needed_until
from muster.runtime import telemetry
from muster.runtime.failpoints import failpoint
from muster.runtime.loop import IDLE, Next, PollLoop
from orchestrator.uploads import IS_COMMITTED

POLL_SECONDS: Final = 30.0
ENDINGS_AT_ONCE: Final = 32
"""Whose rows one transaction deletes."""
FILES_AT_ONCE: Final = 256
UNNAMED_AT_ONCE: Final = 1_000
"""Uploads that one transaction deletes."""
SAID_SECONDS: Final = 30 * 24 * HOUR_SECONDS
"""For so long a reader of a deleted file hears that it is gone, and not that there is none."""

log = telemetry.logger("orchestrator")


class Retention:
    """Sweeps one run. Start it with `sweeping`."""

    def __init__(
        self,
        where: Domain,
        signer: TypedSigner,
        follower: Follower,
        database: Database,
        *,
        unbonding: int,
        storage_url: str,
        days: bool = True,
    ) -> None:
        """`unbonding`: `Registry.UNBONDING`, in seconds; `days`: whether days of work go."""
        self._where, self._signer = where, signer
        self._follower, self._queries, self._database = follower, follower.queries, database
        self._unbonding, self._days = unbonding, days
        self._looked = 0
        """The chain's hour of the last look for what nothing names, which reads all uploads."""
        self.summaries = ContentStore(storage_url, "summaries")
        self._stores = {kind: ContentStore(storage_url, kind) for kind in KINDS}
        self._segments = SegmentStore(storage_url, "log")
        self._shared: set[tuple[str, str]] = set()
        """Files that other rows still name; looked at again after the next day."""

    @asynccontextmanager
    async def sweeping(self) -> AsyncIterator[None]:
        """Sweep while the block runs."""
        loop = PollLoop(log, "retention", POLL_SECONDS, transient=(*TRANSIENT, StorageError, CheckError))
        async with loop.running(self.poll):
            yield

    async def poll(self) -> Next:
        """Sweep what is due, unless another process leads or the chain is not read. Raises StorageError."""
        if self._follower.unready():
            await self._follower.next_poll()
        if self._database.leads and not self._follower.unready():
            await self.sweep()
        return IDLE

    async def sweep(self) -> None:
        """Let everything go that is due by the chain's clock."""
        while self._days and (day := await self._database.read(self._next_day)) is not None:
            await self._let_go(day)
        await self._database.write(self._let_others_go, news=False)
        if self._looked != (hour := self._queries.chain.now // HOUR_SECONDS):
            while found := await self._database.read(self.unnamed):
                await self._database.write(partial(forget_uploads, rows=found), news=False)
            self._looked = hour
        while await self._delete_files():
            pass

    # Which day

    def _is_over(self, hour: int) -> bool:
        terms = self._queries.terms
        phases = terms.commit_phase + terms.reveal_phase
        return needed_until(hour, phases, self._unbonding) < self._queries.chain.now

    def _next_day(self, connection: Connection) -> int | None:
        """Return a day to go on with, or the first that is due; None where none is."""
        begun = connection.execute(select(summaries.c.day).where(summaries.c.name == "").limit(1)).scalar()
        begun = connection.execute(_UNSWEPT).scalar() if begun is None else begun
        if begun is not None:
            return begun
        known, day = set(connection.execute(select(summaries.c.day)).scalars()), 0
        while True:
            first = select(func.min(hour_tallies.c.hour)).where(hour_tallies.c.hour >= day * DAY_HOURS)
            hour = connection.execute(first).scalar()
            if hour is None or not self._is_over(last_hour(day := hour // DAY_HOURS)):
                return None
            if day not in known and not self._is_needed(connection, day):
                return day
            day += 1

    def _is_needed(self, connection: Connection, day: int) -> bool:
        """Return whether a case about a day's work is open."""
        about = and_(cases.c.node == commitments.c.node, cases.c.index == commitments.c.index)
        hours = commitments.c.hour.between(day * DAY_HOURS, last_hour(day))
        found = select(cases.c.id).join(commitments, about).where(OPEN, hours).limit(1)
        return connection.execute(found).scalar() is not None

    # A day

    async def _let_go(self, day: int) -> None:
        """Replace the detail of a day by its summary, from wherever an earlier process stopped."""
        is_new = await self._database.write(lambda connection: close(connection, day), news=False)
        failpoint("orchestrator.closed")
        done = select(summaries.c.name).where(summaries.c.day == day)
        if not await self._database.read(lambda connection: connection.execute(done).scalar()):
            work, name = (None, "") if is_new else await self._written(day)
            is_old = work is not None
            if work is None:
                work = await self._database.read(lambda connection: summarise(connection, self._queries.run, day))
                name = await self.summaries.put(await asyncio.to_thread(sign_day, self._signer, self._where, work))
            failpoint("orchestrator.summarised")
            await self._database.write(partial(self._settle, work, name, is_old))
            if await self._database.read(lambda connection: connection.execute(done).scalar()) != name:
                await self.summaries.delete(name)  # another process was faster, for a moment with the lease too
        while await self._database.write(lambda connection: self._delete_rows(connection, day)):
            pass
        self._shared.clear()
        failpoint("orchestrator.swept")
        log.info("day of work replaced by its summary", day=date_of(day))

    async def _written(self, day: int) -> tuple[DayOfWork | None, str]:
        """Return the summary of a day that a process which ended has left in storage, and its name."""
        for name in sorted([name async for name in self.summaries.names()]):
            data = await self.summaries.get(name, MAX_SUMMARY_BYTES * 2)
            try:
                work = read_day(self._where, self._queries.keys, data)
            except CheckError:
                continue
            if (work.run, work.day) == (self._queries.run, day):
                return work, name
        return None, ""

    def _settle(self, work: DayOfWork, name: str, is_old: bool, connection: Connection) -> None:
        is_new = settle(connection, work, name)
        if is_new:
            forget_lists(connection, work)
        if is_new and is_old:  # a validator may have been convicted since it was written
            for node in work.nodes:
                self._queries.update_statuses(connection, OF_NODE, node=node)

    def restore(self, connection: Connection, work: DayOfWork, name: str) -> bool:
        """Put a summary from storage in the place of what the database has of its day; return whether it counts."""
        if not restore(connection, work, name):
            return False
        forget_lists(connection, work)
        for node in work.nodes:
            self._queries.update_statuses(connection, OF_NODE, node=node)
        while self._delete_rows(connection, work.day):
            pass
        return True

    def _delete_rows(self, connection: Connection, day: int) -> bool:
        """Delete the rows of some commitments of a day, and note their files; return whether there were any."""
        some = select(outcomes).where(outcomes.c.day == day, outcomes.c.swept.is_(False)).limit(ENDINGS_AT_ONCE)
        rows = connection.execute(some).all()
        for row in rows:
            self._forget(connection, day, row.node, row.first, row.last)
        done = tuple_(outcomes.c.node, outcomes.c.last).in_([(row.node, row.last) for row in rows])
        if rows:
            connection.execute(update(outcomes).where(done).values(swept=True))
        return bool(rows)

    def _forget(self, connection: Connection, day: int, node: str, first: int, last: int) -> None:
        """Delete what members sent about some commitments of a node, and note its files."""
        left, own = list[tuple[str, str]](), within(uploads, node, first, last)
        for row in connection.execute(select(*uploads.c["file_hash", "document"]).where(*own)).all():
            left += [("files", row.file_hash), ("uploads", content_hash(row.document.encode()))]
        for table in (verdicts, calls, uploads):
            connection.execute(delete(table).where(*within(table, node, first, last)))
        leave(connection, left, day)
        forget(connection, day, *documents_of(node, first, last))

    # What belongs to no commitment

    def _let_others_go(self, connection: Connection) -> None:
        """Note evidence that nothing names, or whose deadlines are over, and what the trainer showed so long ago."""
        now = self._queries.chain.now
        connection.execute(delete(files).where(files.c.holder == "", files.c.since < now - SAID_SECONDS))
        named = files.c.name.in_(select(cases.c.evidence))
        unnamed = files.c.kind == "evidence", files.c.expiry.between(1, time.time()), ~named
        gone = connection.execute(delete(files).where(*unnamed).returning(files.c.name)).scalars().all()
        leave(connection, [("evidence", name) for name in gone], 0)
        if not self._days:
            return
        # What was posted since the last sweep begins its time now.
        connection.execute(update(files).where(files.c.hour == 0).values(hour=now // HOUR_SECONDS))
        is_asked = files.c.name.in_(select(cases.c.evidence).where(OPEN))
        old = select(*files.c["kind", "holder", "name", "hour"]).order_by(files.c.hour)
        for row in connection.execute(old.where(files.c.hour > 0, ~is_asked).limit(FILES_AT_ONCE)).all():
            if self._is_over(row.hour):
                own = [files.c[name] == getattr(row, name) for name in ("kind", "holder", "name")]
                connection.execute(delete(files).where(*own))
                leave(connection, [(row.kind, row.name)], row.hour // DAY_HOURS)

    def unnamed(self, connection: Connection) -> list[Any]:
        """Return some uploads that have had no commitment for a day, by the chain's clock and this machine's."""
        if state_in(connection)[1]:  # commitments are missing while the chain is read again
            return []
        columns = uploads.c["node", "index", "root", "file_hash", "document", "received"]
        query = select(*columns).where(~IS_COMMITTED, uploads.c.received < time.time() - UNNAMED_SECONDS)
        day_ago = self._queries.chain.now - UNNAMED_SECONDS
        rows = connection.execute(query)
        old = (row for row in rows if Upload.model_validate_json(row.document).receipt.stored_at < day_ago)
        return list(islice(old, UNNAMED_AT_ONCE))

    # Files

    async def _delete_files(self) -> bool:
        """Delete some files that no row names; return whether there were any to look at."""
        waiting = select(*files.c["kind", "name"]).where(files.c.holder == "", files.c.since.is_(None))
        waiting = waiting.order_by(files.c.kind).limit(FILES_AT_ONCE + len(self._shared))
        found = await self._database.read(lambda connection: connection.execute(waiting).all())
        some = [(row.kind, row.name) for row in found if (row.kind, row.name) not in self._shared]
        gone = list[tuple[str, str]]()
        for kind, name in some:
            if await self._is_shared(kind, name):
                self._shared.add((kind, name))
            else:
                await (self._segments.delete(int(name)) if kind == "log" else self._stores[kind].delete(name))
                gone.append((kind, name))
        done = files.c.holder == "", tuple_(files.c.kind, files.c.name).in_(gone)
        since = update(files).where(*done).values(since=self._queries.chain.now)
        if gone:
            await self._database.write(lambda connection: connection.execute(since), news=False)
            log.info("files deleted, their deadlines are over", files=len(gone))
        return bool(some)

    async def _is_shared(self, kind: str, name: str) -> bool:
        """Return whether a file is needed by what has not gone."""
        held = select(files.c.name).where(files.c.name == name, files.c.kind == kind, files.c.holder != "")
        names = select(uploads.c.file_hash).where(uploads.c.file_hash == name) if kind == "files" else held
        return await self._database.read(lambda connection: connection.execute(names.limit(1)).scalar()) is not None


def forget_uploads(connection: Connection, rows: Sequence[Any]) -> None:
    """Delete uploads that still have no commitment, and note their files."""
    for row in rows:
        own = [uploads.c[name] == getattr(row, name) for name in ("node", "index", "root", "received")]
        if connection.execute(delete(uploads).where(*own, ~IS_COMMITTED)).rowcount:
            leave(connection, [("files", row.file_hash), ("uploads", content_hash(row.document.encode()))], 0)


KINDS: Final = ("files", "uploads", "evidence", "grades")
"""Kinds of files that go, besides those of the log."""
_UNSWEPT: Final = select(outcomes.c.day).where(outcomes.c.swept.is_(False)).limit(1)
