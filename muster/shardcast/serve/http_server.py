"""A small HTTP/1.1 server for files: h11 parses requests, sendfile moves the bytes.

It answers GET and HEAD, one range at a time, and bounds everything a stranger decides: the length of a request's head,
how long it may take to arrive, how long a connection may be idle, how slowly an answer may be read, how many
connections there are. The handler decides what is served (`origin`, `relay`).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import socket
import sys
import termios
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, cast

import h11

from muster.errors import ConfigError
from muster.runtime import telemetry
from muster.shardcast.fetch.rate_limit import TokenBucket
from muster.shardcast.serve.reply import Body, FileProblem, FileRequest, Handler, Reply

PIECE_BYTES: Final = 1 << 20
"""Sent under one time-out."""
RUN_BYTES: Final = 8 << 20
"""Sent by a thread in one go, where nothing caps the rate."""

_READ_BYTES: Final = 4096
_LINGER_READS: Final = 64
_CLOSE_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 1.0
"""Between two polls of how much of an answer has arrived."""

_log = telemetry.logger("shardcast")


@dataclass(frozen=True)
class ServerLimits:
    """Bounds of what one stranger may take."""

    header_bytes: int = 16 * 1024
    """Of a request's head; up to a read more is taken in before that shows."""
    idle_seconds: float = 20
    """For a request's head to arrive, from the opening of the connection or the end of the last answer."""
    stall_seconds: float = 30
    """For PIECE_BYTES of an answer to be read."""
    connections: int = 256
    rate: int = 0
    """Bytes per second of files, over all connections; 0 for no bound."""


class FileServer:
    """Serves what `handler` answers, from `start` to `close`."""

    def __init__(self, handler: Handler, limits: ServerLimits | None = None) -> None:
        self.handler = handler
        self.limits = limits or ServerLimits()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.rate_limit = TokenBucket(self.limits.rate)
        self.threads = ThreadPoolExecutor(self.limits.connections, thread_name_prefix="sendfile")

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port (the one chosen, where 0 was asked for). Raises ConfigError when it is taken."""
        try:
            self._server = await asyncio.start_server(self._accept, host, port, limit=self.limits.header_bytes)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror}", hint="choose another shardcast.port"
            ) from error
        return self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and end all connections, answers under way included."""
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        self.threads.shutdown(wait=False, cancel_futures=True)

    @property
    def connections(self) -> int:
        return len(self._open)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        if len(self._open) >= self.limits.connections:
            writer.transport.abort()
            return
        self._open.add(task)
        try:
            await self._converse(_Connection(self, reader, writer))
        except (ConnectionError, TimeoutError, h11.RemoteProtocolError):
            writer.transport.abort()
        except asyncio.CancelledError:  # by close(); streams would log it as an error otherwise
            writer.transport.abort()
        finally:
            await _close(writer)
            self._open.discard(task)

    async def _converse(self, connection: _Connection) -> None:
        """Serve requests until either side closes the connection or a limit is hit."""
        while (request := await connection.request()) is not None:
            try:
                reply = await self._answer(request)
            except FileProblem as problem:
                reply = problem.reply()
            try:
                await connection.send(reply, with_body=request.method != "HEAD")
            except FileProblem as problem:  # the head is out: only closing can show that the rest will not come
                _log.warning("answer broken off", path=request.path, why=str(problem))
                raise ConnectionAbortedError from problem
            finally:
                if reply.body:
                    reply.body.file.close()
            if not connection.reusable:
                return

    async def _answer(self, request: FileRequest) -> Reply:
        if request.method not in ("GET", "HEAD"):
            raise FileProblem(405, "only GET and HEAD are understood", headers={"Allow": "GET, HEAD"})
        return await self.handler(request)


class _Connection:
    """One connection: h11 on a pair of asyncio streams; files leave in threads, past both."""

    def __init__(self, server: FileServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        limits = server.limits
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self._rate_limit = server.rate_limit
        self._threads = server.threads
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_bytes)

    @property
    def reusable(self) -> bool:
        return self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE

    async def request(self) -> FileRequest | None:
        """Receive the next request, which has no body; None when the other side has closed the connection.

        Raises TimeoutError when it does not arrive in time, h11.RemoteProtocolError, after saying so, when it is not
        HTTP as we speak it.
        """
        if self.reusable:
            self._protocol.start_next_cycle()
        try:
            async with asyncio.timeout(self._limits.idle_seconds):
                return await self._read()
        except h11.RemoteProtocolError as error:
            if self._protocol.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                await self.send(FileProblem(error.error_status_hint, str(error)).reply())
                await self._linger()
            raise

    async def _linger(self) -> None:
        """Read on for a moment: closing with unread bytes would make the system discard the answer."""
        self._writer.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                for _ in range(_LINGER_READS):
                    if not await self._reader.read(_READ_BYTES):
                        break

    async def _read(self) -> FileRequest | None:
        found: h11.Request | None = None
        while True:
            event = self._protocol.next_event()
            if event is h11.NEED_DATA:
                self._protocol.receive_data(await self._reader.read(_READ_BYTES))
            elif isinstance(event, h11.Request):
                found = event
            elif isinstance(event, h11.Data):
                raise h11.RemoteProtocolError("a request has no body here", error_status_hint=413)
            elif isinstance(event, h11.EndOfMessage) and found is not None:
                return FileRequest(
                    method=found.method.decode(),
                    path=found.target.decode("ascii", "replace").partition("?")[0],
                    headers={name.decode(): value.decode("latin-1") for name, value in found.headers},
                )
            else:  # closed
                return None

    async def send(self, reply: Reply, *, with_body: bool = True) -> None:
        """Send an answer.

        Raises TimeoutError when the other side does not read, FileProblem when the body stays incomplete.
        """
        headers = {"Content-Length": str(reply.length), **reply.headers}
        head = h11.Response(status_code=reply.status, headers=list(headers.items()))
        self._writer.write(self._protocol.send(head) or b"")
        if with_body and reply.body is None:
            self._writer.write(self._protocol.send(h11.Data(data=reply.content)) or b"")
            reply.count(len(reply.content))
        async with asyncio.timeout(self._limits.stall_seconds):
            await self._writer.drain()
        if with_body and reply.body is not None:
            await self._send_file(reply.body, reply.start, reply.stop, reply.count)
        self._protocol.send(h11.EndOfMessage())

    async def _send_file(self, body: Body, position: int, stop: int, count: Callable[[int], None]) -> None:
        most = PIECE_BYTES if self._limits.rate else RUN_BYTES
        available = position
        await self._emptied()
        while position < stop:
            if position >= available:
                available = await body.ready(position, stop)
            size = min(most, available - position)
            # h11 only keeps the count here: sendfile moves the bytes.
            self._protocol.send_with_data_passthrough(h11.Data(data=cast("bytes", range(size))))
            sent = await self._in_thread(body.file.fileno(), position, size)
            count(sent)
            if sent != size:
                raise FileProblem(500, f"the file ends at byte {position + sent}")
            position += size
            if wait := self._rate_limit.spend(size):
                await asyncio.sleep(wait)

    async def _emptied(self) -> None:
        """Wait until the stream itself has nothing left to send: the answer's head."""
        transport = self._writer.transport
        low, high = transport.get_write_buffer_limits()
        transport.set_write_buffer_limits(0)
        try:
            async with asyncio.timeout(self._limits.stall_seconds):
                await self._writer.drain()
        finally:
            transport.set_write_buffer_limits(high, low)

    async def _in_thread(self, file: int, position: int, size: int) -> int:
        """Send `size` bytes of a file; return how many there were. Raises TimeoutError, ConnectionError.

        In a thread, because the loop would wake for every buffer that the other side has emptied.
        """
        sock = self._writer.get_extra_info("socket")
        # Descriptors of its own: whatever is closed meanwhile, their numbers cannot become another connection's.
        owned: list[int] = []
        try:
            owned.append(os.dup(sock.fileno()))
            owned.append(os.dup(file))
            doing = self._threads.submit(send_file, owned[0], owned[1], position, size, self._limits.stall_seconds)
        except (OSError, RuntimeError) as error:  # the connection is gone, or there are no descriptors or threads left
            _close_all(owned)
            raise ConnectionAbortedError(str(error)) from error
        doing.add_done_callback(lambda _: _close_all(owned))
        sending = asyncio.wrap_future(doing)
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # which ends the thread's wait
            await asyncio.wait([sending], timeout=_CLOSE_SECONDS)
            raise


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def send_file(descriptor: int, file: int, position: int, size: int, stall: float) -> int:
    """Send bytes of a file into a socket that does not block; return how many, fewer where the file ends. Blocks.

    Raises TimeoutError when the other side takes longer than `stall` seconds to receive PIECE_BYTES, ConnectionError
    when it is gone.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    sent, received = 0, -unsent_bytes(descriptor)  # what is left of the run before goes first
    deadline = time.monotonic() + stall
    while sent < size:
        try:
            count = os.sendfile(descriptor, file, position + sent, size - sent)
        except BlockingIOError:
            # Room in the buffer shows only when a good part of it is free: what has left it is asked for by itself.
            if (now := sent - unsent_bytes(descriptor)) - received >= PIECE_BYTES:
                received, deadline = now, time.monotonic() + stall
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError("an answer is read too slowly") from None
            poll.poll(min(left, _POLL_SECONDS) * 1000)
            continue
        if count == 0:
            break
        sent += count
    return sent


def unsent_bytes(descriptor: int) -> int:
    """Return the bytes in a socket's buffer that the other side has not acknowledged."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


async def _close(writer: asyncio.StreamWriter) -> None:
    """End a connection: the last thing its task does, so a cancellation only makes it abrupt."""
    writer.close()
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await writer.wait_closed()
    except (ConnectionError, TimeoutError, asyncio.CancelledError):
        writer.transport.abort()
