"""Bound how much of the time goes into what strangers look at, however many addresses they ask for.

Answers are kept by their address, so a client that asks for another address each time has each one made. Workers
share the process with that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

SHARE: Final = 0.5
"""Of the time that one kind of work may take for long."""
BURST_SECONDS: Final = 1.0
"""Of work that may be done at once after a rest: so people who open a page wait for nothing."""


class TimeShare:
    """One kind of work: a piece at a time, BURST_SECONDS of it at once, and SHARE of the time in the long run."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._free = BURST_SECONDS
        """Seconds of work that may be done now; below 0 after a piece that took more."""
        self._earned_at = clock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the turn of a piece of work, which is done in the block."""
        async with self._lock:
            if (wait := self._earn()) > 0:
                await asyncio.sleep(wait)
                self._earn()
            began = self._clock()
            try:
                yield
            finally:
                self._free -= self._clock() - began

    def _earn(self) -> float:
        """Count the time that has passed; return the seconds until a piece may begin."""
        now = self._clock()
        self._free = min(BURST_SECONDS, self._free + (now - self._earned_at) * SHARE)
        self._earned_at = now
        return -self._free / SHARE
