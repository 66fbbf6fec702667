"""Connections of strangers: uvicorn's protocol, which bounds how many there are, with a bound on what each may take.

Without it, connections that never ask or never read what they asked for stay open for ever, until as many are open as
the service takes, and a request's head may be of any length.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES: Final = 64 * 1024
"""Of one request's head; up to a read more is taken in before that shows."""

IDLE_SECONDS: Final = 60.0
"""From the opening of a connection, or the end of an answer, to the end of the next request's head."""

STALL_SECONDS: Final = 60.0
"""Without a reader taking anything of an answer that is too long for the socket's buffer."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection, which is cut when it takes too long or too much."""

    _timer: asyncio.TimerHandle | None = None
    _in_head = False
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._cut_after(IDLE_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    # What comes in

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if self._in_head else 0
        if self._head_bytes > MAX_HEAD_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._wait_no_more()
        super().on_headers_complete()

    # What goes out

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # or else the next request came with this one
            self._cut_after(IDLE_SECONDS)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._cut_after(STALL_SECONDS)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.cycle.response_complete:
            self._wait_no_more()

    def _cut_after(self, seconds: float) -> None:
        self._wait_no_more()
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _wait_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
