"""Slots for the bodies under way: bounded in number and bytes, first come first served, the slowest cut.

- Rollout files, environments and messages have slots of separate kinds, messages of members and of others too. The
  trainer's messages need none. A file below is a body of any kind.
- A file takes a slot, and of the spool the bytes that its head announces. Without room it waits in order, for
  WAIT_SECONDS at most.
- While none waits, a file may arrive as slowly as `orchestrator/auth.py` allows. While others wait, the slowest files
  below a floor of speed lose their slots, one for each that waits. The more wait for each slot, the higher the floor
  and the shorter the time over which speed is measured.
- A file that has arrived is never cut: a proxy that buffers requests hands it over at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from starlette.requests import Request

from muster.constants import SLOWEST_BYTES_PER_SECOND
from muster.runtime import problems, telemetry
from orchestrator.auth import Caller, announced_bytes, read_body

FILE_SECONDS: Final = 120.0
"""Longest time for a file to arrive, and besides what a slow connection needs for its bytes. A sender that sends
nothing holds its slot no longer."""

WAIT_SECONDS: Final = 10.0
"""Longest wait for a slot; clients wait longer for their answer."""

WINDOW_SECONDS: Final = 2.0
"""Time over which speed is measured while few wait."""

MAX_PRESSURE: Final = 8.0
"""The floor rises, and the window shrinks, by this factor at most: a full house of honest senders must get on."""

TICK_SECONDS: Final = 0.125
"""How finely speed is measured, and how often the slowest are looked for."""

UNDER_WAY: Final = telemetry.gauge("uploads_under_way", "Bodies under way, those that wait for a slot included")
CUT: Final = telemetry.counter("uploads_cut", "Such bodies cut for their speed while others waited")


class Transfer:
    """One file on its way."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.begun = self._loop.time()
        self._ticks: deque[tuple[int, int]] = deque(maxlen=int(WINDOW_SECONDS / TICK_SECONDS) + 1)
        """(tick, bytes that arrived in it), oldest first; none of an empty tick."""
        self._limit: asyncio.Timeout | None = None

    def received(self, count: int) -> None:
        """Note that `count` bytes have arrived."""
        tick = int(self._loop.time() / TICK_SECONDS)
        if self._ticks and self._ticks[-1][0] == tick:
            count += self._ticks.pop()[1]
        self._ticks.append((tick, count))

    def speed(self, now: float, seconds: float) -> float:
        """Return the bytes per second of the last `seconds`."""
        oldest = int((now - seconds) / TICK_SECONDS)
        return sum(count for tick, count in self._ticks if tick >= oldest) / seconds

    @asynccontextmanager
    async def arriving(self) -> AsyncIterator[None]:
        """Receive the file in this context. Raises RefusedError once the transfer is cut."""
        try:
            async with asyncio.timeout(None) as self._limit:
                yield
        except TimeoutError as error:
            hint = "try again, on a faster connection if this persists"
            raise problems.too_slow("others wait, and this body was the slowest", hint) from error
        finally:
            self._limit = None

    @property
    def is_arriving(self) -> bool:
        return self._limit is not None and self._limit.when() is None

    def cut(self) -> None:
        assert self._limit is not None
        self._limit.reschedule(self._loop.time())
        CUT.inc()


class UploadSlots:
    """`at_once` slots and `spool_bytes` of room for files under way."""

    def __init__(self, at_once: int, spool_bytes: int) -> None:
        self._at_once = self._free = at_once
        self._free_bytes = spool_bytes
        self._queue: dict[asyncio.Future[None], int] = {}
        """Sizes of the waiting files, in order."""
        self._transfers: set[Transfer] = set()
        self._review_due = False

    @asynccontextmanager
    async def transfer(self, size: int) -> AsyncIterator[Transfer]:
        """Yield a transfer of at most `size` bytes once there is room. Raises RefusedError after WAIT_SECONDS."""
        with UNDER_WAY.track_inprogress():
            await self._acquire(size)
            transfer = Transfer()
            self._transfers.add(transfer)
            try:
                yield transfer
            finally:
                self._transfers.discard(transfer)
                self._release(size)

    @asynccontextmanager
    async def body(self, request: Request, caller: Caller, *, limit: int, seconds: float) -> AsyncIterator[bytes]:
        """Yield the whole body of a request, in a slot. Raises RefusedError as `transfer` and `read_body`."""
        async with self.transfer(announced_bytes(request, limit) or limit) as transfer:
            async with transfer.arriving():
                body = await read_body(request, caller, limit=limit, seconds=seconds, received=transfer.received)
            yield body

    async def _acquire(self, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue[turn] = size
        self._serve()
        try:
            if not turn.done():
                self._review_later()
                await asyncio.wait([turn], timeout=WAIT_SECONDS)
        except asyncio.CancelledError:
            if turn.done():
                self._release(size)
            raise
        finally:
            if self._queue.pop(turn, None) is not None:
                self._serve()  # those behind a large file may fit
        if not turn.done():
            raise problems.try_later("as many bodies as this orchestrator takes at once are under way")

    def _release(self, size: int) -> None:
        self._free += 1
        self._free_bytes += size
        self._serve()

    def _serve(self) -> None:
        """Give the first in the queue their turns while there is room."""
        while self._queue and self._free:
            turn, size = next(iter(self._queue.items()))
            if size > self._free_bytes:
                return
            del self._queue[turn]
            self._free -= 1
            self._free_bytes -= size
            turn.set_result(None)

    def _review_later(self) -> None:
        if not self._review_due:
            self._review_due = True
            asyncio.get_running_loop().call_later(TICK_SECONDS, self._review)

    def _review(self) -> None:
        """Cut the slowest transfers below the floor, one for each file that waits."""
        self._review_due = False
        if not self._queue:
            return
        now = asyncio.get_running_loop().time()
        pressure = min(MAX_PRESSURE, 1 + (len(self._queue) - 1) / self._at_once)
        floor, window = SLOWEST_BYTES_PER_SECOND * pressure, WINDOW_SECONDS / pressure
        judged = (one for one in self._transfers if one.is_arriving and now - one.begun >= window)
        slow = {one: speed for one in judged if (speed := one.speed(now, window)) < floor}
        for one in sorted(slow, key=slow.__getitem__)[: len(self._queue)]:
            one.cut()
        self._review_later()
