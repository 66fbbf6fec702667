"""Serve files over HTTP/1.1: a handler (`origin`, `relay`) says what, uvicorn and `muster.runtime.http_limits` how.

Paths and headers come from strangers; a handler turns a `FileRequest` into a `Reply` or raises a `FileProblem`. Only
GET and HEAD are answered, one range at a time. Of a file one piece for each connection is in memory: the next is read
when it has left.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO, Final

from uvicorn.server import ServerState

from muster.errors import ConfigError, MusterError
from muster.runtime import telemetry
from muster.runtime.connection_table import ConnectionTable
from muster.runtime.http_limits import BoundedProtocol, ConnectionLimits, bounded_config
from muster.runtime.problem_document import Problem
from muster.shardcast.fetch.rate_limit import TokenBucket
from muster.shardcast.format.manifest import MANIFEST_NAME, name_problem

PIECE_BYTES: Final = 1 << 20
"""Read, sent and waited for at a time."""

READERS: Final = 16
"""Threads that read files, so that a slow disk holds up nothing else."""

_RANGE: Final = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")
_CLOSE: Final = {"Connection": "close"}
RETRY_SOON: Final = {"Retry-After": "1"}
_log = telemetry.logger("shardcast")


@dataclass(frozen=True)
class FileRequest:
    method: str
    path: str
    headers: Mapping[str, str]
    """By lower-case name."""


@dataclass
class OpenFile:
    """An open file that is complete. A relay's file may still lack bytes (`relay.IncomingFile`)."""

    file: BinaryIO
    size: int

    async def ready(self, start: int, stop: int) -> int:
        """Wait until byte `start` can be served; return the end, at most `stop`, of what can be served with it.

        Raises FileProblem when that takes too long.
        """
        return stop


@dataclass(frozen=True)
class Reply:
    """An answer: either `content`, or bytes `start` to `stop` of `body`."""

    status: int
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: OpenFile | None = None
    start: int = 0
    stop: int = 0
    count: Callable[[int], None] = lambda _: None
    """Called with how many bytes were sent, after each piece."""

    @property
    def length(self) -> int:
        return self.stop - self.start if self.body else len(self.content)


class FileProblem(Exception):  # noqa: N818 (it is an answer, not a failure)
    """An answer other than success, written as a problem document (RFC 9457)."""

    def __init__(self, status: int, detail: str = "", *, hint: str = "", headers: Mapping[str, str] | None = None):
        super().__init__(detail)
        self.status = status
        self.hint = hint
        self.headers = headers or {}

    def reply(self) -> Reply:
        problem = Problem(title=HTTPStatus(self.status).phrase, status=self.status, detail=str(self), hint=self.hint)
        headers = {"Content-Type": "application/problem+json", **self.headers}
        return Reply(self.status, problem.model_dump_json().encode(), headers)


Handler = Callable[[FileRequest], Awaitable[Reply]]
Send = Callable[[Any], Awaitable[None]]


def open_file(version: Path, name: str) -> OpenFile:
    """Open one file of a version's folder, never following a link. Raises FileProblem 404.

    Not in a thread: a task that is cancelled meanwhile would lose an open file.
    """
    if name != MANIFEST_NAME and name_problem(name):
        raise FileProblem(404, "no version has a file of this name")
    try:
        descriptor = os.open(version / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise FileProblem(404, f"no such file: {error.strerror}", hint="see /v1/weights/index.json") from error
    file, status = os.fdopen(descriptor, "rb"), os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise FileProblem(404, "not a regular file", hint="see /v1/weights/index.json")
    return OpenFile(file, status.st_size)


def requested_range(request: FileRequest, size: int) -> tuple[int, int] | None:
    """Return (start, stop) of the one range asked for, None for the whole file.

    Several ranges, or something that is no range, ask for the whole file, as RFC 9110 allows. Raises FileProblem 416
    for a range that holds no byte of the file.
    """
    match = _RANGE.fullmatch(request.headers.get("range", ""))
    if not match or match[0] == "bytes=-":
        return None
    first, last = match[1], match[2]
    if first and last and int(first) > int(last):
        return None
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= stop:
        raise FileProblem(416, f"the file has {size} bytes", headers={"Content-Range": f"bytes */{size}"})
    return start, stop


def json_reply(value: object, status: int = 200) -> Reply:
    return Reply(status, json.dumps(value).encode(), {"Content-Type": "application/json"})


class FileServer:
    """Serves what `handler` answers, from `start` to `close`.

    connections: open at the same time. rate: bytes per second of files, over all of them; 0 for no bound. A reader's
    `stall_seconds` are for PIECE_BYTES.
    """

    def __init__(
        self,
        handler: Handler,
        limits: ConnectionLimits | None = None,
        *,
        connections: int = 256,
        rate: int = 0,
    ) -> None:
        self.handler = handler
        self.limits = limits or ConnectionLimits()
        self._rate_limit = TokenBucket(rate)
        self._turn = asyncio.Lock()
        """Held by the answer that waits for the rate."""
        self._table = ConnectionTable(connections)
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="files")
        self._state = ServerState()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port (the one chosen, where 0 was asked for). Raises ConfigError when it is taken."""
        config = bounded_config(self._answer, self._table, self.limits)
        config.load()
        # uvicorn's protocol without its Server, which would take the process's signals and end by polling.
        connection = partial(config.http_protocol_class, config, self._state, {})  # type: ignore[arg-type]
        try:
            self._server = await asyncio.get_running_loop().create_server(connection, host, port)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror}", hint="choose another shardcast.port"
            ) from error
        return self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and end all connections, answers under way included."""
        if self._server is not None:
            self._server.close()
        for connection in self._state.connections:
            connection.transport.abort()
        for answer in self._state.tasks:
            answer.cancel()
        await asyncio.gather(*self._state.tasks, asyncio.sleep(0), return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def connections(self) -> int:
        return len(self._table)

    async def _answer(self, scope: Any, _: object, send: Send) -> None:
        """Answer one request: the ASGI application."""
        connection: BoundedProtocol = scope["state"]["connection"]
        task = asyncio.current_task()
        assert task is not None
        connection.on_lost = task.cancel  # else what waits for bytes, or for the rate, outlives its connection
        try:
            await self._send(await self._reply(scope), scope, connection, send)
        except FileProblem as problem:  # the head is out: only closing can show that the rest will not come
            _log.warning("answer broken off", path=scope["path"], why=str(problem))
            await _cut(connection)
        except (ConnectionError, asyncio.CancelledError):  # the other side is gone; or close()
            await _cut(connection)
        finally:
            connection.on_lost = None

    async def _reply(self, scope: Any) -> Reply:
        """Return the handler's answer to a request, or why it gets none."""
        try:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
                raise FileProblem(413, "a request has no body here", headers=_CLOSE)
            if scope["http_version"] == "1.1" and "host" not in headers:
                raise FileProblem(400, "a request names its host", headers=_CLOSE)
            if scope["method"] not in ("GET", "HEAD"):
                raise FileProblem(405, "only GET and HEAD are understood", headers={"Allow": "GET, HEAD"})
            path = scope["raw_path"].decode("ascii", "replace")
            return await self.handler(FileRequest(scope["method"], path, headers))
        except FileProblem as problem:
            return problem.reply()
        except (MusterError, OSError) as error:
            _log.warning("cannot answer", path=scope["path"], why=str(error))
            return FileProblem(500, "the server cannot read what was asked for").reply()

    async def _send(self, reply: Reply, scope: Any, connection: BoundedProtocol, send: Send) -> None:
        """Send an answer. Raises FileProblem when the body stays incomplete, ConnectionError when the client leaves."""
        headers = {"Content-Length": str(reply.length), **reply.headers}
        lines = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        content = b"" if scope["method"] == "HEAD" or reply.body else reply.content
        try:
            await send({"type": "http.response.start", "status": reply.status, "headers": lines})
            if reply.body and scope["method"] != "HEAD":
                await self._send_file(reply, reply.body, connection, send)
            await send({"type": "http.response.body", "body": content})
            reply.count(len(content))
        finally:
            if reply.body:
                reply.body.file.close()

    async def _send_file(self, reply: Reply, body: OpenFile, connection: BoundedProtocol, send: Send) -> None:
        reading = asyncio.get_running_loop().run_in_executor
        buffer = memoryview(bytearray(min(PIECE_BYTES, reply.length)))
        position = available = reply.start
        while position < reply.stop:
            if position >= available:
                available = await body.ready(position, reply.stop)
            await connection.flow.drain()  # until the buffer has left
            size = min(PIECE_BYTES, available - position)
            async with self._turn:  # a client that leaves while it waits spends nothing
                await asyncio.sleep(self._rate_limit.spend(0))
                self._rate_limit.spend(size)
            if connection.transport.is_closing():
                raise ConnectionAbortedError
            try:
                read = await reading(self._threads, os.preadv, body.file.fileno(), [buffer[:size]], position)
            except OSError as error:
                raise FileProblem(500, f"the file cannot be read: {error.strerror}") from error
            if not read:
                raise FileProblem(500, f"the file ends at byte {position}")
            await send({"type": "http.response.body", "body": buffer[:read], "more_body": True})
            reply.count(read)
            position += read


async def _cut(connection: BoundedProtocol) -> None:
    """Close a connection at once, and let uvicorn know first: to it, an answer that ends early is an error."""
    connection.on_lost = None
    connection.transport.abort()
    await asyncio.sleep(0)
