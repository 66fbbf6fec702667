"""Follow the chain: one task reads new events and writes them into the database, for as long as the service runs.

The place in the chain (block and hash) is kept in the database itself and moves in the transaction that writes the
events. So a killed process has applied a piece of chain whole or not at all. When the block at this place has another
hash than it had, the chain was reorganised: what came from it is deleted and read again. A head below this place proves
nothing unless it lasts: the servers behind a public endpoint are not equally far.

While the chain does not answer, the service is not ready, but keeps running with what it has read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, select

from muster.chain.client import Chain
from muster.chain.reads import LOG_QUERIES, LOG_SPAN, OutageTimer
from muster.chain.types import Block
from muster.contracts import runs
from muster.contracts.codec import Call
from muster.errors import TRANSIENT, StorageError
from muster.runtime import telemetry
from muster.runtime.loop import AGAIN, IDLE, Next, PollLoop
from muster.settings.schema import ChainSettings
from orchestrator.attribution import Attribution
from orchestrator.chain_projection import INTERESTING, ChainProjection
from orchestrator.database import Database, upsert
from orchestrator.queries import Queries
from orchestrator.run_facts import ChainState
from orchestrator.tables import meta

STALE_SECONDS: Final = 30.0
"""Silence of the chain after which the service says that it is not ready."""

POLL_WAIT_SECONDS: Final = 3.0
"""Longest wait of a request for the next poll of the chain: its sender may have read further."""

OBSERVE_SECONDS: Final = 5.0
"""Between two reads of escrow and pause."""

MAX_WAITING: Final = 64
"""Requests that may wait for the next poll at the same time; others are answered from what is known."""

log = telemetry.logger("orchestrator")


@dataclass(eq=False)
class Follower:
    """Reads the chain into the database. Start it with `following`."""

    chain: Chain
    database: Database
    queries: Queries
    settings: ChainSettings
    attribution: Attribution | None = None

    def __post_init__(self) -> None:
        self._projection = ChainProjection(self.queries, self.attribution)
        self._observed = float("-inf")
        self._place: tuple[int, bytes] | None = None
        self._absence = OutageTimer()
        self._polls = 0
        self._polled = asyncio.Condition()
        self._waiting = 0
        self._last_poll, self._read_at = time.monotonic(), time.time()
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
        """Return the Unix second of the last read where that is longer ago than STALE_SECONDS; else None."""
        return self._read_at if self.silence_seconds > STALE_SECONDS else None

    def unready(self) -> list[str]:
        """Return why what is known of the chain is not good enough; empty when it is."""
        if self._problem:
            return [f"following the chain: {self._problem}"]
        if not self._has_polled:
            return [f"following the chain: not read yet, {self.silence_seconds:.0f} s after the start"]
        if self.silence_seconds > STALE_SECONDS:
            return [f"following the chain: not read for {self.silence_seconds:.0f} s"]
        return ["following the chain: still reading old blocks"] if self._behind else []

    async def next_poll(self) -> None:
        """Wait until a poll of the chain that began after this call has ended, or POLL_WAIT_SECONDS have passed."""
        if self._waiting >= MAX_WAITING:
            return
        self._waiting += 1
        wanted = self._polls + 2  # the poll under way may have begun before what the caller knows was mined
        try:
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
        """Poll the chain once and wake the requests that wait for it."""
        try:
            self._behind = not await self.poll()
            self._problem = ""
            self._last_poll, self._read_at, self._has_polled = time.monotonic(), time.time(), True
        except Exception as error:
            self._problem = str(error)
            raise
        finally:
            self._polls += 1
            async with self._polled:
                self._polled.notify_all()
        return AGAIN if self._behind else IDLE

    async def poll(self) -> bool:
        """Read on, at most LOG_SPAN blocks; return whether the newest confirmed block is reached.

        After a reorg everything is read at once, however long the chain is.
        """
        head = await self.chain.head()
        self._place = self._place or await self.database.read(_place_in)
        last = head.number - self.settings.confirmations
        first, from_start = self.chain.addresses.from_block, False
        if self._place is not None:
            number, digest = self._place
            from_start = await self._is_gone(number, digest, head)
            if from_start:
                log.warning("reorg", block=number)
            else:
                first = number + 1
        span = min(LOG_SPAN, LOG_QUERIES * self.chain.log_span.blocks)
        upto = last if from_start else min(last, first + span - 1)
        if first <= upto:
            await self._read(first, upto, await self._hash(upto, head), from_start=from_start)
        self.head_number, self.head_time = head.number, head.timestamp
        await self._observe(head)
        return upto >= last

    async def _observe(self, head: Block) -> None:
        """Read what changes without an event, every OBSERVE_SECONDS, and give the queries that and the chain's time."""
        seen = self.queries.chain
        if time.monotonic() - self._observed >= OBSERVE_SECONDS:
            calls: list[Call[Any]] = [runs.run_state(self.queries.run), runs.paused_until(), runs.min_validators()]
            state, paused_until, min_validators = await self.chain.call_all(calls)
            seen = ChainState(
                min_validators=min_validators,
                free_escrow=state.balance - state.reserved,
                paused_until=paused_until,
                sealed_through=state.sealed_through,
            )
            self._observed = time.monotonic()
        self.queries.chain = replace(seen, now=head.timestamp, read_at=time.monotonic())

    async def _is_gone(self, number: int, digest: bytes, head: Block) -> bool:
        """Return whether a block is gone from the chain. Raises UnreachableError while the endpoint may just lag."""
        if number > head.number:
            self._absence.endure(number)
            return True
        self._absence.end()
        return await self._hash(number, head) != digest

    async def _hash(self, number: int, head: Block) -> bytes:
        return head.hash if number == head.number else await self.chain.block_hash(number)

    async def _read(self, first: int, last: int, last_hash: bytes, *, from_start: bool) -> None:
        """Apply the events of some blocks and move the place to their end, in one transaction.

        from_start: delete what was read before, in the same transaction, so that no reader sees a run without members.
        The hash is read before the events: a reorg in between leaves a place that is not in the chain, which the next
        poll notices.
        """
        events = await self.chain.events(INTERESTING, first, last)
        times = await self.chain.block_times(self._projection.timed_blocks(events))

        def write(connection: Connection) -> None:
            if _place_in(connection) != self._place:
                raise StorageError("database: its place in the chain is another one than was written last")
            if from_start:
                self._projection.forget(connection)
            for event in events:
                self._projection.apply(connection, event, times)
            upsert(connection, meta, {"key": "place", "value": f"{last} 0x{last_hash.hex()}"})

        try:
            await self.database.write(write, news=from_start or bool(events))
        except StorageError:
            self._place = None  # read again: the write may have been kept, or a backup restored
            raise
        self._place = last, last_hash


def _place_in(connection: Connection) -> tuple[int, bytes] | None:
    """Return number and hash of the last block that the database has read; None for none."""
    kept = connection.execute(select(meta.c.value).where(meta.c.key == "place")).scalar()
    if kept is None:
        return None
    number, _, digest = kept.partition(" ")
    return int(number), bytes.fromhex(digest[2:])
