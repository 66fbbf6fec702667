"""Connections of strangers to the orchestrator: those that idle, dribble or do not read are cut, the others are not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import uvicorn

from orchestrator import connections
from orchestrator.connections import MAX_HEAD_BYTES, BoundedProtocol

ANSWER = b"x" * (64 << 20)
PATIENCE = 20.0
"""Seconds for what takes a fraction of one on a machine that is not busy."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """/long answers with 64 MiB; anything else with its body."""
    body = ANSWER
    if scope["path"] != "/long":
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
    length = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """A server that has little patience."""
    monkeypatch.setattr(connections, "IDLE_SECONDS", 1.0)
    monkeypatch.setattr(connections, "STALL_SECONDS", 1.0)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, http=BoundedProtocol, lifespan="off", log_config=None))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        yield listener.getsockname()[1]
        server.should_exit = server.force_exit = True
        await task


async def cut(streams: Streams) -> bool:
    """Whether the server hangs up."""
    reader, writer = streams
    with suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE):
            while await reader.read(1 << 16):
                pass
    writer.close()
    return True


async def test_who_never_asks_is_cut(port: int) -> None:
    assert await cut(await asyncio.open_connection("127.0.0.1", port))


async def test_who_dribbles_a_head_is_cut(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE):
            for byte in b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 10_000:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.02)
    assert await cut((reader, writer))


@pytest.mark.parametrize("more", [b"a" * 1024, b"\r\nA: a" * 200])
async def test_a_head_without_end_is_cut(port: int, monkeypatch: pytest.MonkeyPatch, more: bytes) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS", 3600)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nA: ")
    sent = 0
    with suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE):
            while True:
                writer.write(more)
                await writer.drain()
                sent += len(more)
    assert sent >= MAX_HEAD_BYTES
    assert await cut((reader, writer))


async def test_who_does_not_read_is_cut(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.sleep(2)
    received = 0
    with suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE):
            while piece := await reader.read(1 << 20):
                received += len(piece)
    assert received < len(ANSWER)
    writer.close()


async def test_who_reads_gets_all_of_a_long_answer_and_may_go_on(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("IDLE_SECONDS", "STALL_SECONDS"):  # server and reader share a thread: be patient on a busy machine
        monkeypatch.setattr(connections, bound, PATIENCE)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(2):
        writer.write(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert await reader.readexactly(len(ANSWER)) == ANSWER
    writer.close()


async def test_a_body_may_take_its_time(port: int) -> None:
    """How long a body takes is bounded where it is read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n")
    for byte in b"slow":
        await asyncio.sleep(0.3)
        writer.write(bytes([byte]))
    await reader.readuntil(b"\r\n\r\n")
    assert await reader.readexactly(4) == b"slow"
    writer.close()
