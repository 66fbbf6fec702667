"""The run's demand as bytes, made once for each version of it, and who waits until it changes.

A worker without work asks for what it has not seen (`Demand.tag`) and is held until there is that, or its time is over.
While anybody is held, the demand is looked at a few times a second. What changes for no worker wakes none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from muster.errors import RefusedError, StorageError
from muster.protocol.messages import Demand
from muster.runtime.http_limits import BoundedProtocol
from orchestrator.queries import Queries

MAX_HELD_SECONDS: Final = 30
"""Longest time for which an answer is held."""

LOOK_SECONDS: Final = 0.25
"""Between two looks at the demand while somebody is held."""

SLICE: Final = 64
"""Answers that are sent in one go, so that thousands delay no other."""

SLICE_SECONDS: Final = 0.005


@dataclass(frozen=True)
class DemandAnswer:
    """An answer, encoded once."""

    demand: Demand
    body: bytes
    tag: str


class DemandBoard:
    """Shows the demand of one run. One per service."""

    def __init__(self, queries: Queries, expect_complete: Callable[[], None] = lambda: None) -> None:
        """`expect_complete` raises RefusedError while the run is not known well enough for an answer."""
        self._queries = queries
        self._expect_complete = expect_complete
        self._answer: DemandAnswer | None = None
        self._held: dict[Callable[[], None], None] = {}
        """What wakes each that is held, oldest first."""
        self._watching: asyncio.Task[None] | None = None
        self._is_stopped = False

    async def answer(self) -> DemandAnswer:
        """Return the answer as it is now. Raises StorageError, RefusedError."""
        self._expect_complete()
        demand = await self._queries.demand()
        if self._answer is None or self._answer.demand is not demand:
            self._answer = DemandAnswer(demand, demand.model_dump_json().encode(), demand.tag)
        return self._answer

    async def unseen(self, seen: str, seconds: float, connection: BoundedProtocol) -> DemandAnswer:
        """Return the answer once its tag is not `seen` any more, after `seconds`, or when the connection is gone."""
        answer = await self.answer()
        if answer.tag != seen or self._is_stopped or connection.transport.is_closing():
            return answer
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        timer, connection.on_lost, self._held[wake] = loop.call_later(seconds, wake), wake, None
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(seen), name="demand")
        try:
            await woken
        finally:
            timer.cancel()
            connection.on_lost = None
            self._held.pop(wake, None)
        return await self.answer()

    async def _watch(self, seen: str) -> None:
        """Wake those that are held whenever the tag is another one than was `seen`, until none is left."""
        while self._held:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                tag = (await self.answer()).tag
            except (StorageError, RefusedError):
                continue  # the answers that are due say so
            if tag != seen:
                seen = tag
                await self._wake()

    async def _wake(self) -> None:
        held = list(self._held)
        for first in range(0, len(held), SLICE):
            for wake in held[first : first + SLICE]:
                wake()
            await asyncio.sleep(SLICE_SECONDS)

    def stop(self) -> None:
        """Answer all that are held, and hold none from now on."""
        self._is_stopped = True
        for wake in self._held:
            wake()
