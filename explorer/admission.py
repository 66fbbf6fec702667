"""Admit readers when there are more than can be answered.

A request holds a slot until its answer is sent. Without a free slot it waits in a bounded queue; beyond that it is
refused with 503. One address gets at most half of the slots, and waiting requests are served address by address.
`/healthz`, `/readyz` and `/version` are always answered.
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from muster.runtime.http_limits import BoundedProtocol
from muster.runtime.slots import Slots, address_of, refuse

ALWAYS: Final = frozenset({"/healthz", "/readyz", "/version"})


class ReaderAdmission:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.slots = Slots(128, 1024)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ALWAYS:
            await self._app(scope, receive, send)
            return
        scope["path"] = scope["path"].removesuffix("\n")  # which the end of a route's pattern takes
        connection: BoundedProtocol = scope["state"]["connection"]
        party = address_of(connection, Headers(scope=scope))
        if not await self.slots.acquire(party):
            await refuse("reader")(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self.slots.release(party)
