"""Bound the time and the bytes that each connection of uvicorn may take; each server states its `ConnectionLimits`.

- A request's head must arrive in time and be no longer than allowed. Between two requests a connection may be idle for
  a while only.
- A reader that takes nothing of a long answer for `stall_seconds` is cut, and so is one that takes less of it than
  `slowest_rate` on average beyond that time. Only the time in which the answer waits for its reader counts: an answer
  that has nothing to send for a while is no slow reader's.
- A request may be answered before its body has arrived (413, 401 ...). What is left of the body is read and discarded,
  up to `discarded_bytes`: closing a socket with unread bytes resets it, and the answer is lost with it. Where the
  answer ends the connection, our half is closed at once and the rest is awaited for `linger_seconds`.
- What is refused before it reaches the application is a problem document too: 400 for what is no HTTP, 431 for too long
  a head or one with more than QUERY_KEYS or HEADERS, 503 with `Retry-After` where there is no room.
  (`muster/runtime/connection_table.py` says who gets room; HEALTH needs none.)
- No service of ours has cookies, so none reaches an application: Python parses them in quadratic time.
- PIPELINED requests of a connection may be without their answers; one that sends more is cut.
- A client that closes its half of the connection is taken to be gone: nothing is answered any more.

What the application takes early is answered without a task: a request that is held for long then costs little.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from muster.runtime.connection_table import ConnectionTable, Owner, address_group

UNSENT_BYTES: Final = 256 * 1024
"""Of an answer in the kernel that are not on their way: reading is noticed in halves of this, and memory bounded."""

QUERY_KEYS: Final = 32
HEADERS: Final = 64
"""Of one request. The framework's time grows with the square of either."""

HEALTH: Final = frozenset({b"/healthz", b"/readyz"})
"""Paths that are answered on a connection for which there is no room."""

PIPELINED: Final = 32
"""Requests of one connection that are not answered yet."""


_UNHEARD: Final = asyncio.Event()
"""Of requests that were taken early: their bodies are not awaited."""


@dataclass(frozen=True)
class ConnectionLimits:
    """What one connection may take: bytes, seconds, bytes per second."""

    head_bytes: int = 16 * 1024
    """Of one request's head; up to a read more is taken in before that shows."""
    head_seconds: float = 20
    """From the opening of a connection, or the first byte of a further request, to the end of the request's head."""
    idle_seconds: float = 20
    """From the end of an answer to the first byte of the next request."""
    stall_seconds: float = 30
    """Until a reader has taken what was sent of an answer, where that is too long for the socket's buffer."""
    linger_seconds: float = 2
    """For the rest of a body to arrive after an answer that ends its connection."""
    discarded_bytes: int = 256 * 1024
    """Of one body after its answer."""
    slowest_rate: int = 0
    """Of an answer, on average; 0 for no bound."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection, which is cut when it takes too long or too much. `bounded_config` makes the class of a server."""

    __slots__ = (
        *("address", "proxied", "owner", "busy", "since", "on_lost"),
        *("_answer_bytes", "_answer_waited", "_body_arrived", "_broken", "_discarded", "_head_bytes", "_in_head"),
        *("_lingering", "_paused_at", "_timer", "_unanswered"),
    )  # a dictionary of them all would take another kilobyte

    table: ConnectionTable
    limits: ConnectionLimits
    owner: Owner | None
    on_lost: Callable[[], object] | None
    """Called when the connection is gone; the application sets it while it answers."""
    early: Early = staticmethod(lambda *_: False)
    """Takes a request that it gives to `answer` or to `start` later, or returns False."""

    _timer: asyncio.TimerHandle | None
    _unanswered: list[RequestResponseCycle]
    """The request under way, and those that came with it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.address, self.proxied, self.owner, self.busy, self.since = "", False, None, False, 0.0
        self.on_lost = self._timer = None
        self._in_head, self._body_arrived, self._lingering, self._broken = False, True, False, False
        self._head_bytes = self._discarded = self._answer_bytes = 0
        self._answer_waited = self._paused_at = 0.0
        self._unanswered = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow, self.pipeline = _Flow(transport), _Queue()  # type: ignore[assignment]
        transport.set_write_buffer_limits(0)  # so `flow.drain` ends when everything has left
        # A socket that waits for room shows only when a third of its buffer, which may be megabytes, has been taken.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        host = self.client[0] if self.client else ""
        self.address, self.proxied = address_group(host), self.table.is_proxy(host)
        self.since = self.loop.time()
        self._cut_after(self.limits.head_seconds)
        self.table.add(self, self.since)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cut_after(None)
        self.table.remove(self)
        self._answer_no_more()
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    # What comes in

    def data_received(self, data: bytes) -> None:
        if self._broken:
            self._discard(len(data))
            return
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if self._in_head else 0
        if self._head_bytes > self.limits.head_bytes:
            self.refuse(431)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()
        self.scope["state"]["connection"] = self  # type: ignore[typeddict-item]
        if not self.busy and not self._lingering and self.cycle is not None:
            self._await_head()  # of the first request it is awaited since the connection was opened

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)
        else:  # a trailer, which must not become part of the head
            self._discard(len(name) + len(value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._lingering:
            return  # another request after the one whose answer ends the connection
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > self.limits.head_bytes:
            self.refuse(431)
            raise ValueError("the head is too long")  # which ends the parsing
        if len(self.headers) > HEADERS or self.url.partition(b"?")[2].count(b"&") >= QUERY_KEYS:
            self.refuse(431, f"a request may have {QUERY_KEYS} query keys and {HEADERS} headers")
            raise ValueError("too many keys or headers")
        if self in self.table.refused and self.url.partition(b"?")[0] not in HEALTH:
            self.refuse(503, "no room for another connection")
            raise ValueError("no room")
        self.headers[:] = [header for header in self.headers if header[0] != b"cookie"]
        if len(self._unanswered) >= PIPELINED:
            self.transport.abort()
            raise ValueError("too many requests at once")
        self.table.head_arrived(self)
        self.busy, self._body_arrived, self._discarded = True, False, 0
        if not self.flow.write_paused:  # else the answer before has still to be read
            self._cut_after(None)
        super().on_headers_complete()
        self.cycle.transport = AnswerTransport(self)  # type: ignore[assignment]
        self._unanswered.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:
            self._discard(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._body_arrived = True
        super().on_message_complete()
        if self._lingering:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self.refuse(400, msg)

    def refuse(self, status: int, detail: str = "") -> None:
        """Answer what cannot reach the application, and close."""
        if self._broken:
            return
        self._broken = True
        if self._lingering:
            self.transport.close()
            return
        if self._unanswered and self._unanswered[0].response_started:
            self.transport.abort()  # the refusal would land in the middle of an answer
            return
        self._answer_no_more()
        self.transport.write(refusal(status, HTTPStatus(status).phrase, detail))
        self._linger()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self.flow.write_paused or not cycle.keep_alive or not self.early(self, cycle):
            super()._start_asgi_task(cycle, app)
        else:
            cycle.message_event = _UNHEARD

    def start(self, cycle: RequestResponseCycle) -> None:
        """Let the application answer a request that was taken early."""
        cycle.message_event = asyncio.Event()
        if cycle.body or not cycle.more_body:
            cycle.message_event.set()
        super()._start_asgi_task(cycle, self.app)  # type: ignore[arg-type]

    # What goes out

    def answer(self, cycle: RequestResponseCycle, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """Send the whole answer (200) to a request that was taken early."""
        if cycle.disconnected:
            return
        cycle.response_started = cycle.response_complete = True
        lines = b"".join(b"%b: %b\r\n" % header for header in (*cycle.default_headers, *headers))
        self.write_answer(b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n%b" % (lines, len(body), body))
        self.on_response_complete()
        if not cycle.keep_alive:  # the server ends
            self.close_after_answer()

    def on_response_complete(self) -> None:
        if self._unanswered:
            self._unanswered.pop(0)
        if self._lingering:
            return
        super().on_response_complete()
        if self.pipeline:
            self.flow.pause_reading()  # which uvicorn has resumed
        if self.transport.is_closing():
            self._cut_after(self.limits.stall_seconds)  # there will be no other request
        elif self.cycle.response_complete:  # else the next request came with this one
            self._answer_bytes, self._answer_waited = 0, 0.0
            if not self.flow.write_paused:
                self._rest()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._paused_at = self.loop.time()
        seconds, rate = self.limits.stall_seconds, self.limits.slowest_rate
        if rate:
            seconds = min(seconds, seconds + self._answer_bytes / rate - self._answer_waited)
        self._cut_after(seconds)

    def write_answer(self, data: bytes) -> None:
        """Send a part of an answer."""
        self._answer_bytes += len(data)
        self.transport.write(data)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._lingering:
            return
        if self.transport.is_closing():
            self._cut_after(self.limits.stall_seconds)
        elif self.cycle.response_complete:
            self._rest()
        else:
            self._answer_waited += self.loop.time() - self._paused_at
            self._cut_after(None)

    def close_after_answer(self) -> None:
        """Close now, or once the rest of the request has arrived and the client can have read the answer."""
        if self._body_arrived or self.transport.is_closing():
            self.transport.close()
        else:
            self._linger()

    def speed(self, now: float) -> float:
        """Return the bytes per second of the answer under way, on average since its request began."""
        return (self._answer_bytes - self.transport.get_write_buffer_size()) / max(1.0, now - self.since)

    def close_for_room(self, why: str) -> None:
        """Close, with a refusal where a request has begun or may have."""
        if not self._lingering and (self._in_head or self.cycle is None):
            detail = "request heads arrive too slowly" if why == "slow heads" else "no room for another connection"
            self.transport.write(refusal(503, "Too many connections", detail))
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # a client that reads nothing would keep the descriptor
        else:
            self.transport.close()

    def _answer_no_more(self) -> None:
        """End the unanswered requests: their client is gone, and would not read their answers."""
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        self._unanswered.clear()
        self.pipeline.clear()

    # Clocks

    def _rest(self) -> None:
        """Be idle: the answer has left."""
        self.busy, self.since = False, self.loop.time()
        if self._in_head:
            self._await_head()
        else:
            self._cut_after(self.limits.idle_seconds)

    def _await_head(self) -> None:
        self.since = self.loop.time()
        self._cut_after(self.limits.head_seconds)
        self.table.head_awaited(self, self.since)

    def _linger(self) -> None:
        """Send nothing more, and discard what comes until the client closes its half."""
        if self.transport.is_closing():
            return
        self._lingering, self.busy = True, False
        self.since = self.loop.time()
        self._unset_keepalive_if_required()
        with suppress(OSError):  # reset by the other side, which shows later
            self.transport.write_eof()
        self.flow.resume_reading()
        self._cut_after(self.limits.linger_seconds)

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > self.limits.discarded_bytes:
            self.transport.abort()

    def _cut_after(self, seconds: float | None) -> None:
        """Cut the connection in so many seconds, None for no bound, instead of what was said before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


Early = Callable[[BoundedProtocol, RequestResponseCycle], bool]


class _Flow(FlowControl):
    """uvicorn's, which makes its event when somebody waits for it: an event takes a kilobyte."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.read_paused = self.write_paused = False
        self._waiting: list[asyncio.Future[None]] = []

    async def drain(self) -> None:
        while self.write_paused:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()


class _Queue(list):
    """What uvicorn does with a deque, in a tenth of its memory."""

    __slots__ = ()

    def appendleft(self, item: Any) -> None:
        self.insert(0, item)


class AnswerTransport:
    """A connection's transport as an answer sees it: closing it does not lose the answer."""

    __slots__ = ("_connection",)

    def __init__(self, connection: BoundedProtocol) -> None:
        self._connection = connection

    def write(self, data: bytes) -> None:
        self._connection.write_answer(data)

    def is_closing(self) -> bool:
        return self._connection.transport.is_closing()

    def close(self) -> None:
        self._connection.close_after_answer()


def bounded_config(
    app: Any,
    table: ConnectionTable,
    limits: ConnectionLimits,
    early: Early = BoundedProtocol.early,
    **options: Any,
) -> uvicorn.Config:
    """Return what serves an ASGI application by uvicorn within these limits, its connections kept in `table`."""
    return uvicorn.Config(
        app,
        http=type(
            "BoundedProtocol",
            (BoundedProtocol,),
            {"table": table, "limits": limits, "early": staticmethod(early), "__slots__": ()},
        ),
        ws="none",  # a connection handed to another protocol would never leave the table
        interface="asgi3",
        lifespan="off",
        log_config=None,
        log_level="error",  # what strangers send is no news: each bad request would be a line
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=limits.idle_seconds,  # type: ignore[arg-type]
        **options,
    )


def refusal(status: int, title: str, detail: str) -> bytes:
    """Return the bytes of a problem document as an answer that ends its connection."""
    body = json.dumps({"type": "about:blank", "title": title, "status": status, "detail": detail, "hint": ""}).encode()
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "Content-Type: application/problem+json"]
    lines += [f"Content-Length: {len(body)}", "Connection: close"]
    if status == 503:
        lines.append("Retry-After: 1")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
