"""Follow the chain: one task reads new events and writes them into the database, for as long as the service runs.

The place in the chain (block and hash) is kept in the database itself and moves in the transaction that writes the
events. So a killed process has applied a piece of chain whole or not at all. When the block at this place has another
hash than it had, the chain was reorganised: what was read after the last block that is still there is undone, in the
transaction that writes what is there instead. Of a reorg deeper than REORG_BLOCKS everything is deleted and read again,
piece by piece, and the service says meanwhile that it does not know the run. A head below the place proves nothing
unless it lasts: the servers behind a public endpoint are not equally far.

While old blocks are read, the next piece is fetched beside the writing of the last.

While the chain does not answer, the service is not ready, but keeps running with what it has read.

Of several processes on one database, the one that leads follows. After each poll it writes down what it knows beside
the rows, and the others poll that.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, delete, select

from muster.chain.client import Chain
from muster.chain.reads import LOG_QUERIES, LOG_SPAN, OutageTimer
from muster.chain.types import Block
from muster.contracts import run_terms, runs
from muster.contracts.codec import Call, Event
from muster.contracts.run_terms import Keys, Tenure
from muster.errors import TRANSIENT, StorageError
from muster.ledger import undo
from muster.ledger.attribution import Attribution
from muster.ledger.chain_projection import INTERESTING, ChainProjection
from muster.ledger.database import Database
from muster.ledger.queries import Queries
from muster.ledger.run_facts import ChainState
from muster.ledger.statements import insert_new, upsert
from muster.ledger.tables import meta, places
from muster.protocol.keys import RunKeys
from muster.runtime import problems, telemetry
from muster.runtime.loop import AGAIN, IDLE, Next, PollLoop
from muster.settings.schema import ChainSettings

STALE_SECONDS: Final = 30.0
"""Silence of the chain after which the service says that it is not ready."""

POLL_WAIT_SECONDS: Final = 3.0
"""Longest wait of a request for the next poll of the chain: its sender may have read further."""

PIECES: Final = 8
"""Most pieces, each of at most LOG_SPAN blocks and LOG_QUERIES log queries, that one poll reads."""

REORG_BLOCKS: Final = 4_096
"""Depth of a reorg that can be rolled back."""

OBSERVE_SECONDS: Final = 5.0
"""Between two reads of escrow and pause."""

MAX_WAITING: Final = 64
"""Requests that may wait for the next poll at the same time; others are answered from what is known."""

_REREADING: Final = "rereading"
"""Key in `meta` while the chain is read again."""

_SHARED: Final = (
    "_polls",
    "_complete_at",
    "_has_polled",
    "_behind",
    "_rereading",
    "_problem",
    "head_number",
    "head_time",
)
"""What a follower tells others of itself."""

log = telemetry.logger("orchestrator")


class SeenBlock(NamedTuple):
    """A block up to which the chain was read."""

    number: int
    hash: bytes


@dataclass(frozen=True)
class FetchedBlocks:
    """What there is to write of some blocks."""

    events: Sequence[Event] = ()
    times: Mapping[int, int] = field(default_factory=dict)
    end: SeenBlock | None = None
    """The last of the blocks; None where there are none."""


@dataclass(eq=False)
class Follower:
    """Reads the chain into the database. Start it with `following`."""

    chain: Chain
    database: Database
    queries: Queries
    settings: ChainSettings
    attribution: Attribution | None = None
    tells: bool = False
    """Whether the table `events` says what happened, for people."""

    def __post_init__(self) -> None:
        self._projection = ChainProjection(self.queries, self.attribution, tells=self.tells)
        self._observed = float("-inf")
        self._place: SeenBlock | None = None
        self._rereading = False
        self._absence = OutageTimer()
        self._polls = 0
        self._polled = asyncio.Condition()
        self._waiting = 0
        self._last_poll, self._complete_at = time.monotonic(), time.time()
        self._has_polled = False
        self._behind = True
        self._problem = ""
        self.head_number = 0
        self.head_time = 0

    @property
    def silence_seconds(self) -> float:
        """Return the seconds since the chain was last read, or since the start."""
        return time.monotonic() - self._last_poll

    @property
    def stale_since(self) -> float | None:
        """Return since which Unix second what is known may be out of date, or is not all; None while it is neither."""
        return self._complete_at if self.catching_up or self.silence_seconds > STALE_SECONDS else None

    @property
    def catching_up(self) -> str:
        """Return why members and work that are on chain may be unknown here; empty where all are known."""
        if self._rereading:
            return "reading the chain again after a deep reorganisation"
        return "still reading old blocks" if self._has_polled and self._behind else ""

    def expect_complete(self) -> None:
        """Raise RefusedError where an answer could lack what is on chain."""
        if self.catching_up:
            raise problems.not_ready(f"following the chain: {self.catching_up}")

    def unready(self) -> list[str]:
        """Return why what is known of the chain is not good enough; empty when it is."""
        if self._problem:
            return [f"following the chain: {self._problem}"]
        if not self._has_polled:
            return [f"following the chain: not read yet, {self.silence_seconds:.0f} s after the start"]
        if self.silence_seconds > STALE_SECONDS:
            return [f"following the chain: not read for {self.silence_seconds:.0f} s"]
        return [f"following the chain: {self.catching_up}"] if self.catching_up else []

    async def next_poll(self) -> None:
        """Wait until a poll of the chain that began after this call has ended, or POLL_WAIT_SECONDS have passed."""
        if self._waiting >= MAX_WAITING:
            return
        self._waiting += 1
        try:
            if not self.database.leads:
                await self._adopt()
            wanted = self._polls + 2  # the poll under way may have begun before what the caller knows was mined
            async with self._polled:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_WAIT_SECONDS):
                        await self._polled.wait_for(lambda: self._polls >= wanted)
        finally:
            self._waiting -= 1

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow the chain while the block runs. An unexpected error of the follower ends the block too."""
        async with asyncio.TaskGroup() as group:
            loop = PollLoop(log, "chain", self.settings.poll_seconds, transient=(*TRANSIENT, StorageError))
            task = group.create_task(loop.run(self._poll_and_notify), name="follower")
            try:
                yield
            finally:
                task.cancel()

    async def _poll_and_notify(self) -> Next:
        """Poll the chain once, or what its follower wrote, and wake the requests that wait for it."""
        try:
            await (self._follow() if self.database.leads else self._adopt())
        finally:
            async with self._polled:
                self._polled.notify_all()
        return AGAIN if self._behind and self.database.leads else IDLE

    async def _follow(self) -> None:
        """Poll the chain, and write down how that went."""
        try:
            self._behind = not await self.poll()
            self._problem = ""
            self._last_poll, self._has_polled = time.monotonic(), True
            if not self._behind:
                self._complete_at = time.time()
        except Exception as error:
            self._problem = str(error)
            raise
        finally:
            self._polls += 1
            if self.database.is_shared:
                await self._share()

    async def _share(self) -> None:
        state = {name: getattr(self, name) for name in _SHARED} | {"chain": asdict(self.queries.chain)}
        state["keys"] = [[*astuple(one.keys), one.from_] for one in self.queries.keys.tenures]
        state["read"] = time.time() - self.silence_seconds
        row = {"key": "chain", "value": json.dumps(state)}
        await self.database.write(lambda connection: upsert(connection, meta, row), news=False)

    async def _adopt(self) -> None:
        """Take over what the process that follows the chain knows of it."""
        kept = await self.database.read(lambda connection: _kept(connection, "chain"))
        if kept is None or self.database.leads:
            return
        state = json.loads(kept)
        vars(self).update({name: state[name] for name in _SHARED})
        self._last_poll = time.monotonic() - max(0.0, time.time() - state["read"])
        self.queries.chain = ChainState(**state["chain"] | {"read_at": self._last_poll})
        self.queries.keys = RunKeys(tuple(Tenure(Keys(*keys), since) for *keys, since in state["keys"]))
        self._place = None  # read again, should this process follow from here

    async def poll(self) -> bool:
        """Read on, at most PIECES of blocks; return whether the newest confirmed one is reached."""
        if self._place is None:
            self._place, self._rereading = await self.database.read(state_in)
        fork = self._place
        head = await self.chain.settled_head(fork.number if fork else self.chain.addresses.from_block - 1)
        if fork is not None and await self._is_gone(fork, head):
            fork = await self._fork(head)
            log.warning("reorg", fork=fork.number if fork else None)
        if fork is None and self._place is not None:
            await self._forget()
        newest = head.number - self.settings.confirmations
        first = self.chain.addresses.from_block if fork is None else fork.number + 1
        span = min(LOG_SPAN, LOG_QUERIES * self.chain.log_span.blocks)
        last = min(newest, first + PIECES * span - 1)
        await self._read_on(range(first, last + 1, span), last, head, fork)
        self.head_number, self.head_time = head.number, head.timestamp
        await self._observe(head)
        return last >= newest

    async def _observe(self, head: Block) -> None:
        """Read what changes without an event, every OBSERVE_SECONDS, and give the queries that and the chain's time."""
        seen = self.queries.chain
        if time.monotonic() - self._observed >= OBSERVE_SECONDS:
            run = self.queries.run
            calls: list[Call[Any]] = [runs.run_state(run), runs.paused_until(), runs.min_validators()]
            calls.append(run_terms.tenures(run))
            state, paused_until, min_validators, tenures = await self.chain.call_all(calls)
            self.queries.keys = RunKeys(tuple(tenures))
            seen = ChainState(
                min_validators=min_validators,
                free_escrow=state.balance - state.reserved,
                paused_until=paused_until,
                sealed_through=state.sealed_through,
            )
            self._observed = time.monotonic()
        self.queries.chain = replace(seen, now=head.timestamp, read_at=time.monotonic())

    async def _is_gone(self, place: SeenBlock, head: Block) -> bool:
        """Return whether a block is gone from the chain. Raises UnreachableError while the endpoint may just lag."""
        if place.number > head.number:
            self._absence.endure(place.number)
            return True
        self._absence.end()
        return await self.chain.hash_under(head, place.number) != place.hash

    async def _fork(self, head: Block) -> SeenBlock | None:
        """Return the last block of those that were read and are kept which is still in the chain, if one is."""
        kept = [place for place in await self.database.read(_places_in) if place.number <= head.number]
        low, high = 0, len(kept)
        while low < high:
            middle = (low + high) // 2
            if await self.chain.hash_under(head, kept[middle].number) == kept[middle].hash:
                low = middle + 1
            else:
                high = middle
        return kept[low - 1] if low else None

    async def _forget(self) -> None:
        """Delete all that was read. What replaces it is complete only when the newest block is reached."""

        def forget(connection: Connection) -> None:
            self._projection.forget(connection)
            upsert(connection, meta, {"key": _REREADING, "value": "yes"})

        await self._write(forget, None, news=True)
        self._rereading = True

    async def _read_on(self, starts: range, last: int, head: Block, fork: SeenBlock | None) -> None:
        """Read blocks in pieces with these starts, up to the `last`; the next is fetched while one is written.

        What was read after the fork is undone in the transaction that writes the first piece, so that no reader sees
        less than one of the two chains.
        """
        if not starts and fork != self._place:
            await self._apply(FetchedBlocks(), head, fork)
        ahead = None
        try:
            for start in starts:
                piece = await (ahead or self._fetch(start, min(last, start + starts.step - 1), head))
                following = start + starts.step
                end = min(last, following + starts.step - 1)
                ahead = asyncio.create_task(self._fetch(following, end, head)) if following <= last else None
                await self._apply(piece, head, fork)
                fork = piece.end
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    async def _fetch(self, first: int, last: int, head: Block) -> FetchedBlocks:
        """Read some blocks from the chain.

        The hash is read before the events: a reorg in between leaves a place that is not in the chain, which the next
        poll notices.
        """
        end = SeenBlock(last, await self.chain.hash_under(head, last))
        events = await self.chain.events_under(head, INTERESTING, first, last)
        times = await self.chain.block_times(self._projection.timed_blocks(events))
        self._last_poll = time.monotonic()
        return FetchedBlocks(events, times, end)

    async def _apply(self, piece: FetchedBlocks, head: Block, fork: SeenBlock | None) -> None:
        """Undo what was read after the fork, apply a piece, and move the place to its end, in one transaction."""
        oldest, place = head.number - REORG_BLOCKS, piece.end or fork
        complete = place is not None and place.number >= head.number - self.settings.confirmations

        def apply(connection: Connection) -> None:
            if fork is not None and fork != self._place:
                self._projection.roll_back(connection, fork.number)
                connection.execute(delete(places).where(places.c.block > fork.number))
            self._projection.apply(connection, piece.events, piece.times, oldest)
            _keep_places(connection, piece, oldest)
            if complete and self._rereading:
                connection.execute(delete(meta).where(meta.c.key == _REREADING))

        await self._write(apply, place, news=fork != self._place or bool(piece.events))
        self._rereading = self._rereading and not complete

    async def _write(self, work: Callable[[Connection], None], place: SeenBlock | None, *, news: bool) -> None:
        """Write, in one transaction, what moves the place in the chain to another one."""

        def write(connection: Connection) -> None:
            if state_in(connection)[0] != self._place:
                raise StorageError("database: its place in the chain is another one than was written last")
            work(connection)

        try:
            await self.database.write(write, news=news)
        except StorageError:
            self._place = None  # read again: the write may have been kept, or a backup restored
            raise
        self._place = place


def _keep_places(connection: Connection, piece: FetchedBlocks, oldest: int) -> None:
    """Keep the blocks of a piece that a reorg may go back to, and forget older ones."""
    if piece.end is None:
        return
    found = {event.at.block: event.at.block_hash for event in piece.events if event.at.block >= oldest}
    found |= [piece.end]
    rows = [{"block": number, "hash": "0x" + digest.hex()} for number, digest in found.items()]
    connection.execute(delete(places).where(places.c.block < min(oldest, piece.end.number)))
    insert_new(connection, places, rows)
    undo.prune(connection, oldest)


def _places_in(connection: Connection) -> list[SeenBlock]:
    """Return the blocks up to which the chain was read, as far as they are kept."""
    rows = connection.execute(select(places).order_by(places.c.block))
    return [SeenBlock(row.block, bytes.fromhex(row.hash[2:])) for row in rows]


def state_in(connection: Connection) -> tuple[SeenBlock | None, bool]:
    """Return the last block that was read, None for none, and whether the chain is being read again."""
    last = connection.execute(select(places).order_by(places.c.block.desc()).limit(1)).one_or_none()
    rereading = _kept(connection, _REREADING) is not None
    return SeenBlock(last.block, bytes.fromhex(last.hash[2:])) if last else None, rereading


def _kept(connection: Connection, key: str) -> str | None:
    return connection.execute(select(meta.c.value).where(meta.c.key == key)).scalar()
