"""Follows the chain: one task that reads new events and writes them into the database, for as long as we serve.

The place in the chain (block and hash) is kept in the database itself and moves in the transaction that writes the
events, so the two cannot part: a killed process has applied a piece of chain or it has not. When the block at our
place has another hash than it had, the chain was reorganised: what came from it is forgotten and read anew. A head
below our place proves nothing, as long as it does not last: a public endpoint's servers are not equally far.

A chain that falls silent is a reason not to be ready, not a reason to end: what is known stays known, and reading
goes on when it answers again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from sqlalchemy import Connection, select

from muster import telemetry
from muster.chain.client import Chain
from muster.chain.reads import LOG_SPAN, Absence
from muster.chain.types import Block
from muster.errors import ChainError, CheckError, StorageError, UnreachableError
from muster.settings import ChainSettings
from orchestrator.chainbook import INTERESTING, ChainBook
from orchestrator.database import Database, upsert
from orchestrator.ledger import Ledger
from orchestrator.tables import meta

STALE_SECONDS: Final = 30.0
"""Silence of the chain after which the service says that it is not ready."""

LOOK_SECONDS: Final = 3.0
"""Longest wait for the next look at the chain, on behalf of somebody who may be ahead of us."""

MAX_WAITING: Final = 64
"""Requests that may wait for the next look at the same time; others are answered from what is known."""

log = telemetry.logger("orchestrator")


class Follower:
    """Reads the chain into the database. Start it with `following`."""

    def __init__(self, chain: Chain, database: Database, ledger: Ledger, settings: ChainSettings) -> None:
        self._chain = chain
        self._database = database
        self._book = ChainBook(ledger)
        self._settings = settings
        self._place: tuple[int, bytes] | None = None
        self._absence = Absence()
        self._looks = 0
        self._looked = asyncio.Condition()
        self._waiting = 0
        self._last_look = float("-inf")
        self._behind = True
        self._problem = ""
        self.head_number = 0
        self.head_time = 0

    @property
    def silence_seconds(self) -> float:
        """Seconds since the chain was last read."""
        return time.monotonic() - self._last_look

    def unready(self) -> list[str]:
        """Why what we know of the chain is not good enough; empty when it is."""
        if self._problem:
            return [f"following the chain: {self._problem}"]
        if self.silence_seconds > STALE_SECONDS:
            return [f"following the chain: not read for {self.silence_seconds:.0f} s"]
        return ["following the chain: still reading old blocks"] if self._behind else []

    async def next_look(self) -> None:
        """Wait until a look at the chain that began after this call has ended, or LOOK_SECONDS have passed."""
        if self._waiting >= MAX_WAITING:
            return
        self._waiting += 1
        wanted = self._looks + 2  # the look under way may have begun before what the caller knows was mined
        try:
            async with self._looked:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._looked.wait_for(lambda: self._looks >= wanted)
        finally:
            self._waiting -= 1

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow the chain while inside. Should following end by a mistake of ours, what is inside ends too."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._follow(), name="follower")
            try:
                yield
            finally:
                task.cancel()

    async def _follow(self) -> None:
        while True:
            try:
                self._behind = not await self.look()
                self._problem = ""
                self._last_look = time.monotonic()
            except (UnreachableError, ChainError, CheckError, StorageError) as error:
                if str(error) != self._problem:
                    log.warning("chain", reason=str(error))
                self._problem = str(error)
            self._looks += 1
            async with self._looked:
                self._looked.notify_all()
            await asyncio.sleep(0 if self._behind and not self._problem else self._settings.poll_seconds)

    async def look(self) -> bool:
        """Read on from our place, at most LOG_SPAN blocks; whether the newest (confirmed) block is reached.

        After a reorg everything is read at once, however long the chain is.
        """
        head = await self._chain.head()
        self._place = self._place or await self._kept_place()
        last = head.number - self._settings.confirmations
        first, anew = self._chain.addresses.from_block, False
        if self._place is not None:
            number, digest = self._place
            anew = await self._is_gone(number, digest, head)
            if anew:
                log.warning("reorg", block=number)
            else:
                first = number + 1
        upto = last if anew else min(last, first + LOG_SPAN - 1)
        if first <= upto:
            await self._read(first, upto, await self._hash(upto, head), anew=anew)
        self.head_number, self.head_time = head.number, head.timestamp
        return upto >= last

    async def _is_gone(self, number: int, digest: bytes, head: Block) -> bool:
        """Whether a block is no longer part of the chain. Raises UnreachableError while its end may just lag."""
        if number > head.number:
            self._absence.endure(number)
            return True
        self._absence.end()
        return await self._hash(number, head) != digest

    async def _hash(self, number: int, head: Block) -> bytes:
        return head.hash if number == head.number else await self._chain.block_hash(number)

    async def _read(self, first: int, last: int, last_hash: bytes, *, anew: bool) -> None:
        """Apply the events of some blocks and move our place to their end, in one transaction.

        anew: forget what was read before, in the same transaction, so that nobody sees a run without members.
        The hash was asked for before the events: a reorg in between leaves a place that is not in the chain, which
        the next look notices.
        """
        events = await self._chain.events(INTERESTING, first, last)

        def write(connection: Connection) -> None:
            if anew:
                self._book.forget(connection)
            for event in events:
                self._book.apply(connection, event)
            upsert(connection, meta, {"key": "place", "value": f"{last} 0x{last_hash.hex()}"})

        await self._database.write(write, news=anew or bool(events))
        self._place = last, last_hash

    async def _kept_place(self) -> tuple[int, bytes] | None:
        query = select(meta.c.value).where(meta.c.key == "place")
        kept = await self._database.read(lambda connection: connection.execute(query).scalar())
        if kept is None:
            return None
        number, _, digest = kept.partition(" ")
        return int(number), bytes.fromhex(digest[2:])
