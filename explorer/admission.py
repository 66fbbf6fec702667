"""Admit readers when there are more than can be answered.

A request holds a slot until its answer is sent, and a watcher of the run's state one of another kind for as long as it
watches. Without a free slot a request waits in a bounded queue; beyond that it is refused with 503. One address gets at
most half of the slots, and waiting requests are served address by address. `/healthz`, `/readyz` and `/version` are
always answered.
"""

from __future__ import annotations

import re
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from muster.runtime.connection_table import ConnectionTable
from muster.runtime.http_limits import BoundedProtocol
from muster.runtime.slots import Slots, address_of, refuse

ALWAYS: Final = frozenset({"/healthz", "/readyz", "/version"})
LIVE: Final = re.compile(r"/v1/runs/[^/]+/live")


class Admission:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, table: ConnectionTable, watchers: int) -> None:
        """`watchers` may watch at the same time, but never on more than half of the connections that there can be."""
        self._app = app
        self.slots = {"reader": Slots(128, 1024), "watcher": Slots(min(watchers, table.budget // 2), 0)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ALWAYS:
            await self._app(scope, receive, send)
            return
        scope["path"] = scope["path"].removesuffix("\n")  # which the end of a route's pattern takes
        connection: BoundedProtocol = scope["state"]["connection"]
        kind, party = (
            "watcher" if LIVE.fullmatch(scope["path"]) else "reader",
            address_of(connection, Headers(scope=scope)),
        )
        slots = self.slots[kind]
        if not await slots.acquire(party):
            await refuse(kind)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            slots.release(party)
