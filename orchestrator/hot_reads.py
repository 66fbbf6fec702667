"""Answer what everybody asks all the time from bytes, before the framework: that would cost several times the rest.

Only questions in their plain form, and only with what can be answered. All others, and all refusals, are the routes'.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

from muster.errors import RefusedError, StorageError
from orchestrator.demand_board import MAX_HELD_SECONDS, DemandBoard

HEALTH: Final = b'{"status":"alive"}'
DEMAND_ROUTE: Final = "/v1/runs/{run}/demand"
DEMAND_PATH: Final = re.compile(r"/v1/runs/[0-9]+/demand")


WAITING: Final = re.compile(rb"wait=([0-9]{1,2})&seen=([0-9]{1,10}-[01]-[01])")
"""The query of a question that may be held: for how many seconds, and the tag of the answer that was seen."""


class _RoutePath(NamedTuple):
    """What measures a request by its route's path."""

    path: str


_HEALTH, _DEMAND, _HELD = _RoutePath("/healthz"), _RoutePath(DEMAND_ROUTE), _RoutePath(DEMAND_ROUTE + "?wait")


def wait_of(scope: Scope) -> tuple[int, str] | None:
    """Return for how many seconds a request may be held, and what it has seen; None where it asks for no such thing."""
    found = WAITING.fullmatch(scope["query_string"])
    if found is None or int(found[1]) > MAX_HELD_SECONDS or scope["method"] != "GET":
        return None
    if DEMAND_PATH.fullmatch(scope["path"]) is None:
        return None
    return int(found[1]), found[2].decode()


class HotReads:
    """ASGI middleware around the routes."""

    def __init__(self, app: ASGIApp, run: int, board: DemandBoard) -> None:
        self._app = app
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
        scope["route"], body, headers = answer
        headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json"), *headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope) -> tuple[_RoutePath, bytes, list[tuple[bytes, bytes]]] | None:
        """Return an answer: its route, body and further headers. None for what is left to the routes."""
        path, query = scope["path"], scope["query_string"]
        if path == "/healthz" and not query:
            return _HEALTH, HEALTH, []
        wait = wait_of(scope)
        if path != self._demand_path or (query and wait is None):
            return None
        if wait is None:
            route, answer = _DEMAND, await self._board.answer()
        else:
            route, answer = _HELD, await self._board.unseen(wait[1], wait[0], scope["state"]["connection"])
        return route, answer.body, [(b"etag", f'W/"{answer.tag}"'.encode())]
