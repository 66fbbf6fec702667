"""Answer what people ask of the whole run: overview, leaderboards, charts. Each answer is made once for all who ask.

An answer is at most a second old, or up to MOST_SECONDS where making it takes long. So the page of a large run shows
numbers of a moment ago, and delays no worker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from sqlalchemy import Connection

from explorer import series
from explorer.addresses import AddressView, address_view
from explorer.assets import pack
from explorer.current import Current
from explorer.feed_log import EventFeed, OverviewFeed, read_events, read_overview_feed
from explorer.leaderboard import Others, ValidatorOrder, ValidatorPage, WorkerOrder, WorkerPage
from explorer.log_reader import LogReader
from explorer.members import Members, read_members, read_others
from explorer.overview import Overview, RunIdentity, RunState, key_lines, read_overview
from explorer.series import MetricList, SeriesPage
from explorer.source import PageSource
from explorer.summary import Summary, read_summary
from muster.ledger.chain_follower import Follower
from muster.runtime import problems
from muster.runtime.kept import KeptAnswers

SUMMARY_SECONDS: Final = 0.5
SUMMARY_SHARE: Final = 0.05
"""A summary is given again for so long, or longer where making it would take more than this share of the time."""
LEAST_SECONDS: Final = 1.0
MOST_SECONDS: Final = 10.0
SHARE: Final = 0.01
"""Of the time may go into making one answer again and again, between these bounds."""

MAX_CHARTS: Final = 32
"""Answers about metrics that are kept at the same time."""

T = TypeVar("T")


@dataclass(eq=False)
class Boards:
    """Answers about one run. One per service."""

    known: RunIdentity
    source: PageSource
    follower: Follower
    reader: LogReader
    current: Current
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._kept = KeptAnswers(LEAST_SECONDS, self.clock)
        # Of their own: who asks for many displaces no others. Few, since one may take a megabyte.
        self._charts = KeptAnswers(LEAST_SECONDS, self.clock, most=MAX_CHARTS)
        self._summary = KeptAnswers(
            lambda took: min(MOST_SECONDS, max(SUMMARY_SECONDS, took / SUMMARY_SHARE)), self.clock
        )
        self._costly = KeptAnswers(lambda took: min(MOST_SECONDS, took / SHARE), self.clock)

    async def overview(self) -> Overview:
        async def make() -> Overview:
            members, state = await self.members(), await self.state()
            return await self._read_costly("overview", lambda one: read_overview(one, self.known, state, members))

        return await self._kept.get("overview", make)

    async def state(self) -> RunState:
        """Return what changes without a write to the database."""
        follower, queries = self.follower, self.source.queries
        return RunState(
            block=follower.head_number,
            block_time=follower.head_time,
            stale_since=self.stale_since,
            escrow_free=queries.chain.free_escrow,
            facts=await queries.facts(),
            demand=await queries.demand(),
            keys=key_lines(queries.keys, queries.chain.now),
        )

    @property
    def stale_since(self) -> float | None:
        """Return since which Unix second chain or log are not read up to now; None while both are."""
        return min(filter(None, (self.follower.stale_since, self.reader.stale_since)), default=None)

    async def summary_json(self) -> bytes:
        """Return the summary as JSON, a moment old."""

        async def make() -> bytes:
            state = await self.state()

            def read(connection: Connection) -> Summary:
                return read_summary(connection, self.known, state, self.source.attribution.lines(connection))

            return (await self.source.database.read(read)).model_dump_json().encode()

        return await self._summary.get("", make)

    async def workers(self, order: WorkerOrder, offset: int, limit: int, search: str = "") -> WorkerPage:
        total, lines = (await self.members()).workers.page(order, offset, limit, search)
        return WorkerPage(run=self.known.run, order=order, offset=offset, total=total, workers=lines)

    async def validators(self, order: ValidatorOrder, offset: int, limit: int, search: str = "") -> ValidatorPage:
        total, lines = (await self.members()).validators.page(order, offset, limit, search)
        return ValidatorPage(run=self.known.run, order=order, offset=offset, total=total, validators=lines)

    async def feed(self) -> OverviewFeed:
        """Return what the overview tells of the newest events."""
        read = self.source.database.read
        return await self._kept.get("feed", lambda: read(lambda one: read_overview_feed(one, time.time())))

    async def events(self, kind: str, before: int | None, limit: int) -> EventFeed:
        """Return all events before an id, newest first, of one kind or of all."""
        run, read = self.known.run, self.source.database.read
        return await self._kept.get(
            ("events", kind, before, limit), lambda: read(lambda one: read_events(one, run, kind, before, limit))
        )

    async def others(self) -> Others:
        def read(connection: Connection) -> Others:
            authors = self.source.attribution.lines(connection)
            trainer = self.source.queries.keys_now.trainer
            return read_others(connection, self.known.run, trainer, self.current.relays, authors)

        return await self._kept.get("others", lambda: self._read_costly("others", read))

    async def address(self, address: str) -> AddressView:
        """Return what is known of a checksummed address. Raises RefusedError for an unknown one."""
        keys = self.source.queries.keys_now
        found = address_view(address, self.known, keys, await self.members(), await self.others())
        if found is None:
            raise problems.no_node(address, self.known.run)
        return found

    async def metrics(self) -> MetricList:
        run = self.known.run
        return await self._kept.get(
            "metrics", lambda: self.source.database.read(lambda connection: series.metric_list(connection, run))
        )

    async def series(self, names: Sequence[str], first: int, last: int | None, points: int) -> SeriesPage:
        """Return metrics over the steps from `first` to `last`, by default the newest."""

        def read(connection: Connection) -> SeriesPage:
            until = series.newest_step(connection) if last is None else last
            until = max(first, until or 0)
            return series.read_series(connection, self.known.run, names, first, until, points)

        return await self.source.database.read(read)

    async def series_json(self, names: Sequence[str], first: int, last: int | None, points: int) -> tuple[bytes, bytes]:
        """Return the same as JSON, plain and compressed, kept for a while: browsers ask for nothing that is longer."""

        async def make() -> tuple[bytes, bytes]:
            plain = (await self.series(names, first, last, points)).model_dump_json().encode()
            return plain, await asyncio.to_thread(pack, plain)

        return await self._charts.get((tuple(names), first, last, points), make)

    async def members(self) -> Members:
        now = self.source.chain.now

        def read(connection: Connection) -> Members:
            return read_members(connection, self.known.terms, now)

        return await self._kept.get("members", lambda: self._read_costly("members", read))

    async def _read_costly(self, key: str, make: Callable[[Connection], T]) -> T:
        """Return an answer, read again only after a time that follows from how long reading it took."""
        return await self._costly.get(key, lambda: self.source.database.read(make))
