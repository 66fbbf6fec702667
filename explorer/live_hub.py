"""Send the state of the run to very many watchers as server-sent events, without delaying workers.

- The state is read at most once a second, while there are watchers, and only when something changed; less often for
  very many, so that no more than MESSAGES_A_SECOND are sent. Each message is encoded once for all who are equally far.
- Watchers are written to a few at a time, spread over that time. Meanwhile requests of others are answered.
- A watcher that lags gets the newest state, with the events it missed from a buffer; states in between are never sent.
  The server's limits (`muster/runtime/http_limits.py`) disconnect a watcher that reads nothing.
- `id:` is the database's identity and the newest event. A browser that connects again says it as Last-Event-ID, and
  gets what it missed; the buffer is read from the database at the start, so this holds across a restart too.
- Streams end at once when the process gets a signal to stop.
"""

from __future__ import annotations

import asyncio
import socket
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from typing import Final, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from explorer.feed import FeedLine
from explorer.live import MAX_LINES, LiveState, Snapshot
from muster.errors import StorageError
from muster.runtime import telemetry
from muster.runtime.http_limits import BoundedProtocol

PERIOD_SECONDS: Final = 1.0
"""Least time between two states."""
MESSAGES_A_SECOND: Final = 125
"""Of more watchers each gets fewer."""
TICK_SECONDS: Final = 0.2
"""Between two checks for a change."""
SPREAD: Final = 0.8
"""Share of the time between two states over which one is written to all watchers, where they are more than SLICE."""
SLICE: Final = 8
"""Watchers that are written to in one go, where they are few; else MOST_SLICES are made of them."""
MOST_SLICES: Final = 64
SILENCE_SECONDS: Final = 15.0
"""After which a comment is sent, so that no client takes a quiet stream for a broken one."""
RETRY_MILLISECONDS: Final = 2_000
BUFFER_LINES: Final = 500
"""Notable events that a watcher can have missed."""
FIRST_LINES: Final = 50
"""Events that a new watcher gets."""
MAX_ENCODED: Final = 256
"""Forms of one state that are kept."""
SEND_BUFFER: Final = 64 * 1024
"""Bytes that the kernel keeps for one watcher: one that reads nothing is noticed soon, and 1,000 take little memory."""

COMMENT: Final = b":\n\n"
HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # a reverse proxy that collects answers would hold everything back
    (b"x-content-type-options", b"nosniff"),
]
WATCHING: Final = telemetry.gauge("watchers", "Streams of the run's state that are open")
log = telemetry.logger("orchestrator")


class SnapshotSource(Protocol):
    """What the hub reads: `explorer.live.LiveSource`."""

    identity: str
    """Of the database whose events are numbered."""

    async def mark(self) -> object: ...
    async def read(self, after: int, limit: int) -> Snapshot: ...


class Watcher:
    """One open stream."""

    def __init__(self, hub: LiveHub, connection: BoundedProtocol, seen: int | None) -> None:
        self.version = 0
        """Of the state that it has got."""
        self.seen = seen
        """The newest event that it knows of; None for one that knows of none."""
        self.is_gone = False
        self.connection = connection
        self._hub = hub
        self._waits: asyncio.Future[bytes] | None = None

    async def next_message(self) -> bytes:
        """Return what to send next, once there is anything; nothing once the stream ends."""
        while not (self.is_gone or self._hub.is_stopped):
            if self.version != self._hub.version:
                return self._hub.message_to(self)
            self._waits = asyncio.get_running_loop().create_future()
            if comment := await self._waits:
                return comment
        return b""

    def wake(self, comment: bytes = b"") -> None:
        """Wake it, if it waits: to send a comment, or the newest state."""
        if self._waits is not None and not self._waits.done():
            self._waits.set_result(comment)

    def leave(self) -> None:
        self.is_gone = True
        self.wake()

    def stop(self) -> None:
        """End the stream now, and the connection if its reader lags."""
        if self.connection.flow.write_paused:
            self.connection.transport.abort()
        self.wake()


class LiveHub:
    """The streams of one run. One per service; `running` while it serves."""

    def __init__(self, source: SnapshotSource) -> None:
        self._source = source
        self.version = 0
        """Of the state; grows with every one that is read."""
        self.is_stopped = False
        self._watchers: dict[Watcher, None] = {}
        self._watched = asyncio.Event()
        self._reading = asyncio.Lock()
        self._mark: object = None
        self._read_at = float("-inf")
        self._state: LiveState | None = None
        self._lines: deque[FeedLine] = deque(maxlen=BUFFER_LINES)
        self._last = 0
        """The newest event, notable or not."""
        self._floor = 0
        """Events up to this one may be missing in the buffer."""
        self._metrics_since = 0
        """Version since which the state has these metrics."""
        self._encoded = lru_cache(MAX_ENCODED)(self._encode)
        """Returns messages with the present state, by what their watchers have."""
        WATCHING.set_function(lambda: self.count)

    @property
    def count(self) -> int:
        return len(self._watchers)

    # Reading

    async def refresh(self) -> None:
        """Read the state again if it has changed and is older than `period`. Raises StorageError."""
        async with self._reading:
            loop, mark = asyncio.get_running_loop(), await self._source.mark()
            if mark == self._mark or loop.time() - self._read_at < period(self.count):
                return
            self._read_at = loop.time()
            found = await self._source.read(self._last, BUFFER_LINES)
            if found.last < self._last:  # a reorg took events back, and their numbers are given again
                self._lines.clear()
                found = await self._source.read(0, BUFFER_LINES)
            if not found.is_whole and found.lines:
                self._floor = found.lines[0].id - 1
            self._lines.extend(found.lines)
            if len(self._lines) == BUFFER_LINES:
                self._floor = max(self._floor, self._lines[0].id - 1)
            self.version += 1
            if self._state is None or _metrics(found.state) != _metrics(self._state):
                self._metrics_since = self.version
            self._state, self._last, self._mark = found.state, found.last, mark
            self._encoded.cache_clear()

    def message_to(self, watcher: Watcher) -> bytes:
        """Return the present state as a message to a watcher, and note that it has it."""
        message = self._encoded(watcher.version, watcher.seen)
        watcher.version, watcher.seen = self.version, self._last
        return message

    def _encode(self, version: int, seen: int | None) -> bytes:
        assert self._state is not None
        if seen is None:
            lines, skipped = list(self._lines)[-FIRST_LINES:], 0
        else:
            missed = list(self._lines)[bisect_right(self._lines, seen, key=lambda line: line.id) :]
            lines = missed[-MAX_LINES:]
            skipped = len(missed) - len(lines) + max(0, self._floor - seen)
        new = {"events": lines, "skipped": skipped}
        if version >= self._metrics_since:
            new |= {"metrics": {}, "metrics_step": None}
        document = self._state.model_copy(update=new).model_dump_json()
        return f"id: {self._source.identity}.{self._last}\ndata: {document}\n\n".encode("utf-8", "backslashreplace")

    # Sending

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send what changes while the block runs."""
        task = asyncio.create_task(self._send_changes(), name="live")
        try:
            yield
        finally:
            self.stop()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _send_changes(self) -> None:
        loop = asyncio.get_running_loop()
        sent, spoke = self.version, loop.time()
        while True:
            await self._watched.wait()
            began = loop.time()
            try:
                await self.refresh()
            except StorageError as error:
                log.warning("watchers wait", reason=str(error))
            if self.version != sent:
                sent, spoke = self.version, began
                await self._wake_all()
            elif began - spoke >= SILENCE_SECONDS:
                spoke = began
                await self._wake_all(COMMENT)
            await asyncio.sleep(TICK_SECONDS)

    async def _wake_all(self, comment: bytes = b"") -> None:
        """Let all watchers go on, a slice at a time."""
        waiting = list(self._watchers)
        size = max(SLICE, -(-len(waiting) // MOST_SLICES))
        pause = SPREAD * period(len(waiting)) * size / max(1, len(waiting))
        for first in range(0, len(waiting), size):
            if first:
                await asyncio.sleep(pause)
            for watcher in waiting[first : first + size]:
                watcher.wake(comment)

    # Watchers

    async def stream(self, last_event_id: str) -> Response:
        """Return the answer to a new watcher. Raises StorageError while there is no state to begin with."""
        await self.refresh()
        return _EventStream(self, self._seen(last_event_id))

    def _seen(self, last_event_id: str) -> int | None:
        """Return the event that a watcher saw last; None for one of another database, or of none."""
        identity, _, number = last_event_id.partition(".")
        known = identity == self._source.identity and number.isascii() and number.isdigit() and len(number) < 19
        return int(number) if known else None

    def add(self, watcher: Watcher) -> None:
        self._watchers[watcher] = None
        self._watched.set()

    def remove(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)
        if not self._watchers:
            self._watched.clear()

    def stop(self) -> None:
        """End all streams now, and every later one at its beginning."""
        self.is_stopped = True
        for watcher in list(self._watchers):
            watcher.stop()


class _EventStream(Response):
    """A stream of messages, until the watcher goes away or the hub stops."""

    def __init__(self, hub: LiveHub, seen: int | None) -> None:
        super().__init__()
        self._hub = hub
        self._seen = seen

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: BoundedProtocol = scope["state"]["connection"]
        watcher = Watcher(self._hub, connection, self._seen)
        connection.on_lost = watcher.leave
        if connection.transport.is_closing():  # lost before, so no callback comes; its socket may be closed
            watcher.leave()
        else:
            connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._hub.add(watcher)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            begin = b"retry: %d\n\n" % RETRY_MILLISECONDS
            while message := await watcher.next_message():
                await send({"type": "http.response.body", "body": begin + message, "more_body": True})
                begin = b""
            await send({"type": "http.response.body"})
        finally:
            connection.on_lost = None
            self._hub.remove(watcher)


def period(watchers: int) -> float:
    """Return the seconds between two states for so many watchers. Pure."""
    return max(PERIOD_SECONDS, watchers / MESSAGES_A_SECOND)


def _metrics(state: LiveState) -> tuple[int | None, dict[str, float | None]]:
    return state.metrics_step, state.metrics
