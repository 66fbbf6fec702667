"""Answer what everybody asks all the time from bytes, before the framework: that would cost several times the rest.

Only questions in their plain form, and only with what can be answered. All others, and all refusals, are the routes'.
A question that is held is answered without a task of its own (`HeldQuestion`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from muster.errors import RefusedError, StorageError
from muster.runtime.http_limits import BoundedProtocol
from muster.runtime.http_metrics import measure
from muster.runtime.request_ids import answer_header
from orchestrator.demand_board import MAX_HELD_SECONDS, DemandAnswer, DemandBoard

DEMAND_ROUTE: Final = "/v1/runs/{run}/demand"
HELD_ROUTE: Final = DEMAND_ROUTE + "?wait"
WAITING: Final = re.compile(rb"wait=([0-9]{1,2})&seen=([0-9]{1,10}-[01]-[01])")
"""The query of a question that may be held: for how many seconds, and the tag of the answer that was seen."""

TYPED: Final = ((b"content-type", b"application/json"), (b"x-content-type-options", b"nosniff"))


class _RoutePath(NamedTuple):
    """What measures a request by its route's path."""

    path: str


_DEMAND: Final = _RoutePath(DEMAND_ROUTE)


def wait_of(scope: Scope, run: int) -> tuple[int, str] | None:
    """Return for how many seconds a request may be held, and what it has seen; None where it asks for no such thing."""
    found = WAITING.fullmatch(scope["query_string"])
    if found is None or int(found[1]) > MAX_HELD_SECONDS or scope["method"] != "GET":
        return None
    return (int(found[1]), found[2].decode()) if scope["path"] == DEMAND_ROUTE.format(run=run) else None


class HeldQuestion:
    """A question for the demand whose answer the board delivers."""

    __slots__ = ("_asked", "_board", "_connection", "_cycle", "_release")

    def __init__(
        self,
        board: DemandBoard,
        connection: BoundedProtocol,
        cycle: RequestResponseCycle,
        wait: tuple[int, str],
        release: Callable[[], None],
    ) -> None:
        """Hold it; `release` is called once, when it is answered or its connection is gone."""
        self._asked, self._board, self._connection, self._cycle = time.perf_counter(), board, connection, cycle
        self._release = release
        connection.on_lost = self._lost
        board.hold(wait[1], wait[0], self._deliver)

    def _deliver(self, answer: DemandAnswer | None) -> None:
        connection, cycle = self._connection, self._cycle
        if connection.on_lost is None:  # lost since
            return
        connection.on_lost = None
        self._release()
        if answer is None:
            connection.start(cycle)
            return
        connection.answer(cycle, (*TYPED, _tag(answer), answer_header(cycle.scope["headers"])), answer.body)
        measure("GET", HELD_ROUTE, 200, self._asked)

    def _lost(self) -> None:
        self._connection.on_lost = None
        self._board.forget(self._deliver)
        self._release()


def _tag(answer: DemandAnswer) -> tuple[bytes, bytes]:
    return b"etag", b'W/"%b"' % answer.tag.encode()


class HotReads:
    """ASGI middleware around the framework."""

    def __init__(self, app: ASGIApp, run: int, board: DemandBoard) -> None:
        self._app = app
        self._run = run
        self._board = board
        self._demand_path = DEMAND_ROUTE.format(run=run)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._answer(scope) if scope["method"] == "GET" else None
        except (StorageError, RefusedError):
            answer = None  # the route refuses it
        if answer is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = _DEMAND
        headers = [(b"content-length", b"%d" % len(answer.body)), *TYPED, _tag(answer)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, scope: Scope) -> DemandAnswer | None:
        """Return an answer, or None for what is left to the routes."""
        plain = scope["path"] == self._demand_path and not scope["query_string"]
        return await self._board.answer() if plain or wait_of(scope, self._run) is not None else None
