"""Give each request an id: the client's, or one made here. Its log lines have it, and its answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from muster.runtime import telemetry

_HEADER: Final = telemetry.REQUEST_ID_HEADER.lower().encode()
LOGGED: Final = frozenset({408, 409, 413, 422})
"""Refusals of signed writes that are logged. Those that strangers can provoke at will are only counted."""

log = telemetry.logger("orchestrator")


def answer_header(headers: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    """Return the header by which an answer names its request: the id in the request's headers, or one made here."""
    given = next((value for name, value in headers if name == _HEADER), b"")
    return _HEADER, telemetry.request_id(given.decode("latin-1")).encode()


class RequestIds:
    """ASGI middleware around all others."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        header = answer_header(scope["headers"])

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), header]
                if message["status"] in LOGGED and scope["method"] in ("POST", "PUT"):
                    log.info("refused", method=scope["method"], path=scope["path"], status=message["status"])
            await send(message)

        telemetry.name_request(header[1].decode())  # each request has its own task
        await self._app(scope, receive, send_named)
