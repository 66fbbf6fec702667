"""A real HTTP server in the place of a chat's webhook: it keeps what was posted and answers as a test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from testbed.waiting import BOUND

OK = b"HTTP/1.1 204 No Content\r\n\r\n"


DRIP = b"one line of the head after the other, without an end"


def answer(status: str, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "Content-Length: 0", "", ""]).encode()


class Webhook:
    """Answers each request with the next of `answers`, and with the last one from then on.

    b"" closes without an answer; None never answers; DRIP never ends the head of its answer; bytes that are no whole
    head leave the client waiting.
    """

    def __init__(self, *answers: bytes | None) -> None:
        self.answers: list[bytes | None] = list(answers or (OK,))
        self.posts: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self.url = ""
        self._news = asyncio.Event()
        self.end = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1]) for line in head.lower().split("\r\n") if line.startswith("content-length")
        )
        body = await reader.readexactly(length)
        self.heads.append(head)
        self.posts.append(json.loads(body))
        self._news.set()
        given = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if given is None:
            await self.end.wait()
        elif given is DRIP:
            writer.write(b"HTTP/1.1 200 OK\r\n")
            while not self.end.is_set():
                writer.write(b"X-More: 1\r\n")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.end.wait(), 0.05)
        else:
            writer.write(given)
            await writer.drain()
            if not given.endswith(b"\r\n\r\n") and given:
                await self.end.wait()
        writer.close()

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait until a condition on what was posted holds."""
        async with asyncio.timeout(BOUND):
            while not done():
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def webhook(*answers: bytes | None) -> AsyncIterator[Webhook]:
    """A server on a free port of 127.0.0.1, until left."""
    made = Webhook(*answers)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/services/T0/B0/a-secret-path"
    try:
        yield made
    finally:
        made.end.set()
        server.close()
        await server.wait_closed()
