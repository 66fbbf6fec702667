"""The run's demand as bytes, made once for each version of it, and who waits until it changes.

A worker without work asks for what it has not seen (`Demand.tag`) and is held until there is that, or its time is over.
While any is held, the demand is looked at a few times a second. What changes for no worker wakes none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from muster.errors import RefusedError, StorageError
from muster.ledger.queries import Queries
from muster.protocol.messages import Demand

MAX_HELD_SECONDS: Final = 30
"""Longest time for which an answer is held."""

LOOK_SECONDS: Final = 0.25
"""Between two looks at the demand while a question is held."""

SLICE: Final = 256
"""Answers that are sent in one go, so that thousands delay no other."""

SLICE_SECONDS: Final = 0.002


@dataclass(frozen=True)
class DemandAnswer:
    """An answer, encoded once."""

    demand: Demand
    body: bytes
    tag: str


Deliver = Callable[[DemandAnswer | None], None]
"""Sends the answer to a question that was held; None: there is none now, which its route says."""


class DemandBoard:
    """Shows the demand of one run. One per service."""

    def __init__(self, queries: Queries, expect_complete: Callable[[], None] = lambda: None) -> None:
        """`expect_complete` raises RefusedError while the run is not known well enough for an answer."""
        self._queries = queries
        self._expect_complete = expect_complete
        self._answer: DemandAnswer | None = None
        self._seen_last: DemandAnswer | None = None
        """What the last look found, while any is held."""
        self._held: dict[Deliver, tuple[str, asyncio.TimerHandle]] = {}
        """Questions that are held, oldest first: the tag that each has seen, and what ends it in time."""
        self._watching: asyncio.Task[None] | None = None
        self._is_stopped = False

    async def answer(self) -> DemandAnswer:
        """Return the answer as it is now. Raises StorageError, RefusedError."""
        self._expect_complete()
        demand = await self._queries.demand()
        if self._answer is None or self._answer.demand is not demand:
            self._answer = DemandAnswer(demand, demand.model_dump_json().encode(), demand.tag)
        return self._answer

    def hold(self, seen: str, seconds: float, deliver: Deliver) -> None:
        """Let an answer be delivered once its tag is not `seen` any more, or after `seconds`; never before this ends.

        It is LOOK_SECONDS old at most.
        """
        loop, last = asyncio.get_running_loop(), self._seen_last
        if self._is_stopped or (last is not None and last.tag != seen):
            loop.call_soon(deliver, last)
            return
        self._held[deliver] = seen, loop.call_later(seconds, self._end, deliver)
        if self._watching is None or self._watching.done():
            self._watching = loop.create_task(self._watch(), name="demand")

    def forget(self, deliver: Deliver) -> bool:
        """Hold a question no more; return whether it was held."""
        held = self._held.pop(deliver, None)
        if held is not None:
            held[1].cancel()
        return held is not None

    def stop(self) -> None:
        """Answer all that are held, and hold none from now on."""
        self._is_stopped = True
        for deliver in list(self._held):
            self._end(deliver)

    def _end(self, deliver: Deliver) -> None:
        if self.forget(deliver):
            deliver(self._seen_last)

    async def _watch(self) -> None:
        """Answer those whose tag is not the demand's any more, until none is held."""
        while self._held:
            try:
                self._seen_last = await self.answer()
            except (StorageError, RefusedError):
                self._seen_last = None  # the answers that are due say so
            else:
                await self._wake(self._seen_last.tag)
            await asyncio.sleep(LOOK_SECONDS)
        self._seen_last = None

    async def _wake(self, tag: str) -> None:
        due = [deliver for deliver, (seen, _) in self._held.items() if seen != tag]
        for first in range(0, len(due), SLICE):
            for deliver in due[first : first + SLICE]:
                self._end(deliver)
            await asyncio.sleep(SLICE_SECONDS)
