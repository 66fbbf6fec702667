"""Ask servers on this machine, past any proxy, and be one on a free port: one that answers, or one that misbehaves."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

from testbed.waiting import BOUND

NO_CONTENT: Final = b"HTTP/1.1 204 No Content\r\n\r\n"
DRIP: Final = b"one line of the head after the other, without an end"


class Held(bytes):
    """An answer, or a part of one, after which the connection stays open."""


Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def get(url: str) -> tuple[int, bytes]:
    """Return status and body of a plain GET; (0, b"") when no server answers."""
    try:
        with open_url(url, timeout=BOUND) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


def get_json(url: str) -> Any:
    """Return a JSON answer; {} when no server answers, or the request is refused."""
    status, body = get(url)
    return json.loads(body) if status == 200 else {}


@dataclass(frozen=True)
class Reply:
    """What `serving` answers."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler], Reply]) -> Iterator[str]:
    """Answer every request in a separate thread, until left; yields the URL. Answers have no date of their own."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            reply = answer(self)
            self.send_response_only(reply.status)
            for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body)

        do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815 (as the base class names them)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@asynccontextmanager
async def connecting(serve: Connected) -> AsyncIterator[str]:
    """Let `serve` deal with each connection to a free port, until left; yields the URL."""
    served: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        served[task] = writer
        await serve(reader, writer)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for _ in range(8):  # what was accepted a moment ago takes some turns of the loop to be connected
            await asyncio.sleep(0)
            for task, writer in served.items():
                writer.transport.abort()
                if not task.cancelling():
                    task.cancel()
        await asyncio.gather(*served, return_exceptions=True)


async def read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """Return the head and the body of a request."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    lengths = [line.partition(":")[2] for line in head.lower().split("\r\n") if line.startswith("content-length:")]
    return head, await reader.readexactly(int(lengths[0]) if lengths else 0)


def answer(status: str, *headers: str, body: bytes = b"") -> bytes:
    """Return a whole answer, after which the connection ends."""
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "Connection: close", "", ""]
    return "\r\n".join(lines).encode() + body


class ScriptedServer:
    """Answers each request with the next of `answers`, repeats the last one, and closes the connection.

    A Held answer leaves it open; DRIP never ends the head of its answer.
    """

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers or (NO_CONTENT,))
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.url = ""
        self.end = asyncio.Event()

    @property
    def posts(self) -> list[Any]:
        """Return the requests' bodies, which are JSON."""
        return [json.loads(body) for body in self.bodies]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head, body = await read_request(reader)
            self.heads.append(head)
            self.bodies.append(body)
            given = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            writer.write(b"HTTP/1.1 200 OK\r\n" if given is DRIP else given)
            while given is DRIP and not self.end.is_set():
                writer.write(b"X-More: 1\r\n")
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.end.wait(), 0.05)
            await writer.drain()
            if isinstance(given, Held):
                await self.end.wait()
        writer.close()


@asynccontextmanager
async def scripted(*answers: bytes, path: str = "") -> AsyncIterator[ScriptedServer]:
    """Yield a ScriptedServer on a free port; its URL has this path."""
    server = ScriptedServer(*answers)
    async with connecting(server.serve) as url:
        server.url = url + path
        yield server
        server.end.set()
