"""Let readers at the end of the log wait until it grows.

A reader that waits holds none of the slots of those who read, but one of the kind "held" (`admission.py`). Where none
is free it is answered at once. While any waits, the log is looked at once a second.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from starlette.datastructures import Headers, QueryParams
from starlette.types import ASGIApp, Receive, Scope, Send

from muster.errors import StorageError
from muster.ledger.database import Database
from muster.runtime.kept import KeptAnswers
from muster.runtime.slots import Slots, address_of
from orchestrator.demand_board import MAX_HELD_SECONDS
from orchestrator.log import head_of

LOOK_SECONDS: Final = 1.0
"""Between two looks at the log while a reader waits: readers of a busy log are answered no more often."""


class LogTail:
    """ASGI middleware before admission."""

    def __init__(self, app: ASGIApp, run: int, database: Database, held: Slots) -> None:
        self._app, self._database, self._held = app, database, held
        self._path = f"/v1/runs/{run}/log"
        self._heads = KeptAnswers(LOOK_SECONDS / 2)
        self._news = asyncio.Event()
        """Of the next growth: another one after each."""
        self._waiting = 0
        self._watching: asyncio.Task[None] | None = None
        self._is_stopped = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (asked := self._asked(scope)) is not None:
            party = address_of(scope["state"]["connection"], Headers(scope=scope))
            if self._held.take(party):
                try:
                    with suppress(StorageError):  # which the route says
                        await self._wait(*asked)
                finally:
                    self._held.release(party)
        await self._app(scope, receive, send)

    def stop(self) -> None:
        """Let no reader wait any more."""
        self._is_stopped = True
        self._news.set()

    def _asked(self, scope: Scope) -> tuple[int, int] | None:
        """Return from which place on a request reads, and for how many seconds it may wait; None where it may not."""
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"] != self._path:
            return None
        asked = QueryParams(scope["query_string"])
        try:
            after, seconds = int(asked.get("after", "0")), int(asked.get("wait", "0"))
        except ValueError:
            return None
        return (after, seconds) if 0 < seconds <= MAX_HELD_SECONDS else None

    async def _wait(self, after: int, seconds: int) -> None:
        """Return once the log has grown or the time is over; at once where a reader is not at its end."""
        if self._is_stopped or await self._head() != after:
            return
        self._waiting += 1
        try:
            if self._watching is None or self._watching.done():
                self._watching = asyncio.create_task(self._watch(after), name="log tail")
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()
        finally:
            self._waiting -= 1

    async def _watch(self, seen: int) -> None:
        while self._waiting and not self._is_stopped:
            await asyncio.sleep(LOOK_SECONDS)
            with suppress(StorageError):
                if (head := await self._head()) != seen:
                    seen, news, self._news = head, self._news, asyncio.Event()
                    news.set()

    async def _head(self) -> int:
        return await self._heads.get("", lambda: self._database.read(head_of))
