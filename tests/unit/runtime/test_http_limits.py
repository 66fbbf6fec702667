"""Limits on untrusted connections: idle, dribbled and unread ones are cut, and the others are not.

A client that is refused or cut for room gets an answer. An early answer arrives although the body is unread.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from muster.runtime import connection_table
from muster.runtime.connection_table import ConnectionTable, Owner
from muster.runtime.http_limits import (
    HEADERS,
    PIPELINED,
    QUERY_KEYS,
    BoundedProtocol,
    ConnectionLimits,
    bounded_config,
)
from muster.runtime.http_server import LIMITS
from muster.runtime.process import quick_loop
from testbed.waiting import until

ANSWER = b"x" * (64 << 20)
QUIET_PART = b"y" * (8 << 20)
PATIENCE = 20.0
"""Seconds for what takes a fraction of one, on the clock that server and reader share: that of their event loop."""

QUICK = replace(LIMITS, head_seconds=1.0, idle_seconds=1.0, stall_seconds=1.0, linger_seconds=1.0)
PATIENT = replace(LIMITS, head_seconds=PATIENCE, idle_seconds=PATIENCE, stall_seconds=PATIENCE)

HOLD = asyncio.Event()
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer by path.

    /long answers with 64 MiB, /pieces with the same in pieces, /early before the body has come; /mine makes its
    connection a member's, /hold waits, /quiet pauses between its parts, /headers answers with the names of the headers;
    anything else with its body.
    """
    if scope["path"] == "/quiet":
        await be_quiet(send)
        return
    body = ANSWER if scope["path"] in ("/long", "/pieces") else b"early"
    connection = scope["state"]["connection"]
    if scope["path"] == "/mine":
        connection.table.claim(connection, Owner("0xmember", is_trainer=False))
    if scope["path"] == "/hold":
        await HOLD.wait()
    if scope["path"] not in ("/long", "/pieces", "/early"):
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
    if scope["path"] == "/headers":
        body = b" ".join(name for name, _ in scope["headers"])
    length = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    size = 1 << 16 if scope["path"] == "/pieces" else len(body) or 1
    for start in range(0, len(body), size):
        await send({"type": "http.response.body", "body": body[start : start + size], "more_body": True})
    await send({"type": "http.response.body"})


async def be_quiet(send: Any) -> None:
    """Send three parts, each more than a socket holds, with pauses that are longer than a reader may take."""
    length = str(3 * len(QUIET_PART)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    for number in range(3):
        await asyncio.sleep(2.0 * number)
        await send({"type": "http.response.body", "body": QUIET_PART, "more_body": True})
    await send({"type": "http.response.body"})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Start a server whose time-outs are short."""
    async with serving(ConnectionTable(1000), QUICK) as port:
        yield port


@asynccontextmanager
async def serving(
    table: ConnectionTable, limits: ConnectionLimits = LIMITS, early: Callable[..., bool] = BoundedProtocol.early
) -> AsyncIterator[int]:
    global HOLD
    HOLD = asyncio.Event()  # of this test's loop
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = uvicorn.Server(bounded_config(app, table, limits, early))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            HOLD.set()
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


async def test_silent_client_is_cut(port: int) -> None:
    assert await cut(await asyncio.open_connection("127.0.0.1", port))


async def test_dribbled_head_is_cut(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE):
            for byte in b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 10_000:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.02)
    assert await cut((reader, writer))


@pytest.mark.parametrize("more", [b"a" * 1024, b"\r\nA: a" * 200])
async def test_a_head_without_end_is_cut(more: bytes) -> None:
    async with serving(ConnectionTable(1000), replace(QUICK, head_seconds=3600)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nA: ")
        sent = 0
        with suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE):
                while True:
                    writer.write(more)
                    await writer.drain()
                    sent += len(more)
        assert sent >= LIMITS.head_bytes
        assert await cut((reader, writer))


@pytest.mark.parametrize("rest", [b"\r\n\r\n", b""])
async def test_too_long_a_head_is_refused_in_words(port: int, rest: bytes) -> None:
    """Whether it comes whole or not, and before it reaches the application."""
    streams = await asyncio.open_connection("127.0.0.1", port)
    streams[1].write(b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * LIMITS.head_bytes + rest)
    head, body = await answer(streams)
    assert head.startswith(b"HTTP/1.1 431 ")
    assert (json.loads(body)["title"], json.loads(body)["status"]) == ("Request Header Fields Too Large", 431)
    assert await cut(streams)


@pytest.mark.parametrize("keys", [QUERY_KEYS, QUERY_KEYS + 1])
@pytest.mark.parametrize("headers", [HEADERS, HEADERS + 1])
async def test_too_many_keys_or_headers_are_refused_in_words(port: int, keys: int, headers: int) -> None:
    """The framework walks both in quadratic time."""
    streams = await asyncio.open_connection("127.0.0.1", port)
    query = "&".join(f"k{number}=" for number in range(keys))
    lines = "".join(f"H{number}: x\r\n" for number in range(headers))
    streams[1].write(f"GET /?{query} HTTP/1.1\r\n{lines}\r\n".encode())
    head, body = await answer(streams)
    if (keys, headers) == (QUERY_KEYS, HEADERS):
        assert head.startswith(b"HTTP/1.1 200 ")
    else:
        assert head.startswith(b"HTTP/1.1 431 ")
        assert json.loads(body)["detail"] == "a request may have 32 query keys and 64 headers"
        assert await cut(streams)
    streams[1].close()


async def test_cookies_reach_no_application(port: int) -> None:
    """Python takes seconds to unquote one of 60 kB."""
    streams = await asyncio.open_connection("127.0.0.1", port)
    quoted = b'"' + b"\\a" * 30_000 + b'"'
    streams[1].write(b"GET /headers HTTP/1.1\r\nHost: x\r\nCookie: a=%b\r\ncOOKIE: b=1\r\nA: x\r\n\r\n" % quoted)
    assert (await answer(streams))[1] == b"host a"
    streams[1].close()


async def test_client_that_does_not_read_is_cut(port: int) -> None:
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


async def test_slow_reader_is_cut() -> None:
    """A steady reader is cut too: it takes about 6 MiB/s of an answer that requires 64 MiB/s."""
    async with serving(ConnectionTable(1000), replace(QUICK, slowest_rate=64 << 20, stall_seconds=3.0)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
        writer.write(b"GET /pieces HTTP/1.1\r\nHost: x\r\n\r\n")
        received = 0
        with suppress(ConnectionError):
            async with asyncio.timeout(2 * PATIENCE):
                while received < len(ANSWER) and (piece := await reader.read(1 << 17)):
                    received += len(piece)
                    await asyncio.sleep(len(piece) / (6 << 20))
        assert received < len(ANSWER)
        writer.close()


async def test_a_stream_that_is_quiet_by_itself_is_no_slow_readers() -> None:
    """Its reader takes each part at once: that there was none for a while is nothing it could help."""
    async with serving(ConnectionTable(1000), replace(QUICK, slowest_rate=64 << 20, stall_seconds=3.0)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /quiet HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(PATIENCE):
            for _ in range(3):
                assert await reader.readexactly(len(QUIET_PART)) == QUIET_PART
        assert await ask((reader, writer), "/headers") == b"HTTP/1.1 200 OK"
        writer.close()


async def test_reader_gets_a_long_answer_and_keeps_the_connection() -> None:
    async with serving(ConnectionTable(1000), PATIENT) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(len(ANSWER)) == ANSWER
        writer.close()


async def test_the_end_of_an_answer_is_awaited_as_long_as_its_middle_and_no_longer() -> None:
    """However short idle connections are kept, and although this answer ends its connection."""
    limits = replace(QUICK, idle_seconds=0.2, stall_seconds=3.0)
    table = ConnectionTable(1000)
    async with serving(table, limits) as port:
        for wanted in ("close", "keep-alive"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(f"GET /long HTTP/1.1\r\nHost: x\r\nConnection: {wanted}\r\n\r\n".encode())
            await asyncio.sleep(1.0)  # all of it is written, and waits
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(len(ANSWER)) == ANSWER
            assert await reader.read() == b""
            writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /long HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        await reader.readexactly(1)
        await until(lambda: len(table) == 0)
        writer.transport.abort()


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


# Answers that come before the body


def early(length: int, connection: str) -> bytes:
    return f"PUT /early HTTP/1.1\r\nHost: x\r\nConnection: {connection}\r\nContent-Length: {length}\r\n\r\n".encode()


async def answer(streams: Streams) -> tuple[bytes, bytes]:
    async with asyncio.timeout(PATIENCE):
        head = await streams[0].readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-l"))
        return head, await streams[0].readexactly(length)


async def ask(streams: Streams, path: str) -> bytes:
    streams[1].write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return (await answer(streams))[0].split(b"\r\n")[0]


async def test_an_answer_outlives_the_body_that_it_did_not_wait_for(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(early(32 << 20, "close"))
    await asyncio.sleep(0.2)  # the answer is out, and its half of the connection closed
    async with asyncio.timeout(PATIENCE):
        writer.write(bytes(32 << 20))
        await writer.drain()
    head, body = await answer((reader, writer))
    assert (head.split(b"\r\n")[0], body) == (b"HTTP/1.1 200 OK", b"early")
    assert await reader.read() == b"", "an orderly end, without a reset"
    writer.close()


async def test_the_connection_goes_on_after_the_rest_of_a_body(port: int) -> None:
    streams = await asyncio.open_connection("127.0.0.1", port)
    streams[1].write(early(1 << 20, "keep-alive") + bytes(1 << 20))
    assert (await answer(streams))[1] == b"early"
    assert await ask(streams, "/") == b"HTTP/1.1 200 OK"
    streams[1].close()


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
async def test_endless_sender_is_cut(connection: str) -> None:
    limits = replace(PATIENT, discarded_bytes=1 << 20, linger_seconds=PATIENCE)
    async with serving(ConnectionTable(1000), limits) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(early(1 << 40, connection))
        with pytest.raises(ConnectionError):
            await send_for_ever(writer)


async def send_for_ever(writer: asyncio.StreamWriter) -> None:
    async with asyncio.timeout(PATIENCE / 2):
        while True:
            writer.write(bytes(1 << 16))
            await writer.drain()


async def test_sender_that_stops_is_cut(port: int) -> None:
    streams = await asyncio.open_connection("127.0.0.1", port)
    streams[1].write(early(1 << 20, "close"))
    assert (await answer(streams))[1] == b"early"
    assert await cut(streams)
    assert not await ask_on_new_connection(port)


async def ask_on_new_connection(port: int) -> bytes:
    """Return the bytes after the answer on a new connection with `Connection: close`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    await answer((reader, writer))
    async with asyncio.timeout(PATIENCE):
        rest = await reader.read()
    writer.close()
    return rest


async def test_non_http_input_gets_a_problem_document(port: int) -> None:
    streams = await asyncio.open_connection("127.0.0.1", port)
    streams[1].write(b"what is this\r\n\r\n" + bytes(1 << 20))
    head, body = await answer(streams)
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["title"] == "Bad Request"
    assert await cut(streams)


async def test_non_http_input_after_an_early_answer_is_harmless(port: int) -> None:
    streams = await asyncio.open_connection("127.0.0.1", port)
    streams[1].write(b"PUT /early HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert (await answer(streams))[1] == b"early"
    streams[1].write(b"no length of a chunk\r\n")
    assert await cut(streams)
    assert await ask_on_new_connection(port) == b""


# Room


OpenMany = Callable[..., Awaitable[list[Streams]]]


@pytest.fixture
async def open_many() -> AsyncIterator[OpenMany]:
    """Open connections from an address of this machine: `open_many(port, count, source)`. Closed with the test."""
    opened: list[Streams] = []

    async def many(port: int, count: int, source: str = "127.0.0.1") -> list[Streams]:
        new = [await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0)) for _ in range(count)]
        opened.extend(new)
        return new

    yield many
    for _, writer in opened:
        writer.close()


async def ends(streams: Streams) -> bool:
    """Whether the server has closed its half, without an answer."""
    async with asyncio.timeout(PATIENCE):
        return await streams[0].read() == b""


async def test_idle_connections_make_room_strangers_first_and_the_largest_address_first(open_many: OpenMany) -> None:
    async with serving(ConnectionTable(6)) as port:
        member, (other,) = await open_many(port, 1), await open_many(port, 1, "127.0.0.2")
        assert await ask(member[0], "/mine") == b"HTTP/1.1 200 OK"
        assert await ask(other, "/") == b"HTTP/1.1 200 OK"
        crowd = await open_many(port, 4)
        for streams in crowd:
            assert await ask(streams, "/") == b"HTTP/1.1 200 OK"
        late = await open_many(port, 2, "127.0.0.3")
        for streams in late:
            assert await ask(streams, "/") == b"HTTP/1.1 200 OK"
        assert await ends(crowd[0])
        assert await ends(crowd[1])
        for streams in (*member, other, *crowd[2:], *late):
            assert await ask(streams, "/") == b"HTTP/1.1 200 OK", "the others stay"


async def hold(port: int, open_many: OpenMany, count: int, source: str = "127.0.0.1") -> list[Streams]:
    """Open connections whose requests are under way until HOLD is set."""
    busy = await open_many(port, count, source)
    for _, writer in busy:
        writer.write(b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n")
        await writer.drain()
    await asyncio.sleep(0.2)
    return busy


async def test_requests_of_one_address_do_not_cut_each_other_and_the_refusal_can_be_read(open_many: OpenMany) -> None:
    async with serving(ConnectionTable(3)) as port:
        busy = await hold(port, open_many, 3)
        (late,) = await open_many(port, 1)
        late[1].write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        head, body = await answer(late)
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nRetry-After: 1\r\n" in head
        assert json.loads(body)["detail"] == "no room for another connection"
        HOLD.set()
        for streams in busy:
            assert (await answer(streams))[0].startswith(b"HTTP/1.1 200 ")


async def test_an_address_that_holds_everything_makes_room_for_another(open_many: OpenMany) -> None:
    async with serving(ConnectionTable(4)) as port:
        busy = await hold(port, open_many, 4, "127.0.0.2")
        late = await open_many(port, 2)
        for streams in late:
            assert await ask(streams, "/") == b"HTTP/1.1 200 OK"
        assert [reader.at_eof() for reader, _ in busy].count(True) == 2
        HOLD.set()


async def test_health_is_answered_where_there_is_no_room(open_many: OpenMany) -> None:
    """On a connection that is good for nothing else."""
    table = ConnectionTable(3)
    async with serving(table) as port:
        for number in range(2, 5):
            await hold(port, open_many, 1, f"127.0.0.{number}")
        (monitor,) = await open_many(port, 1)
        for path in ("/healthz", "/readyz?x=1", "/healthz"):
            assert await ask(monitor, path) == b"HTTP/1.1 200 OK"
        assert len(table) == 3
        for path in ("/healthz/", "/", "/v1/healthz"):
            (other,) = await open_many(port, 1)
            assert await ask(other, path) == b"HTTP/1.1 503 Service Unavailable"
        monitor[1].write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await answer(monitor))[0].startswith(b"HTTP/1.1 503 ")
        assert await cut(monitor)


async def test_an_answer_on_its_way_is_not_cut_for_room(open_many: OpenMany) -> None:
    """Although the application is done with it."""
    async with serving(ConnectionTable(1), PATIENT) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        (late,) = await open_many(port, 1)
        assert await ask(late, "/") == b"HTTP/1.1 503 Service Unavailable"
        assert await reader.readexactly(len(ANSWER)) == ANSWER
        (later,) = await open_many(port, 1)
        assert await ask(later, "/") == b"HTTP/1.1 200 OK"
        assert await reader.read() == b"", "idle now, so there was room"
        writer.close()


async def test_client_that_pipelines_without_reading_is_cut(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.sleep(0.5)  # the whole answer waits in the stream
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.sleep(1.5)
    received = 0
    with suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE):
            while piece := await reader.read(1 << 20):
                received += len(piece)
    assert received < len(ANSWER)
    writer.close()


async def test_slow_heads_of_one_address_push_each_other_out(
    monkeypatch: pytest.MonkeyPatch, open_many: OpenMany
) -> None:
    monkeypatch.setattr(connection_table, "HEADS_PER_ADDRESS", 2)
    monkeypatch.setattr(connection_table, "HEAD_GRACE_SECONDS", 0.1)
    async with serving(ConnectionTable(1000)) as port:
        (served,) = await open_many(port, 1)
        assert await ask(served, "/") == b"HTTP/1.1 200 OK"
        slow = await open_many(port, 2)
        for _, writer in slow:
            writer.write(b"GET / HTTP/1.1\r\nA: ")
            await writer.drain()
        await asyncio.sleep(0.3)
        (late,) = await open_many(port, 1)
        assert (await answer(slow[0]))[0].startswith(b"HTTP/1.1 503 ")
        assert await ask(late, "/") == b"HTTP/1.1 200 OK"
        assert await ask(served, "/") == b"HTTP/1.1 200 OK", "who was served waits for nothing"


async def test_requests_that_wait_for_their_answers_are_bounded(port: int) -> None:
    """Each costs memory. As many as may wait are answered, in turn; one more, and the connection is cut."""
    first, more = b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    streams = await asyncio.open_connection("127.0.0.1", port)
    streams[1].write(first + more * (PIPELINED - 1))
    await asyncio.sleep(0.2)
    HOLD.set()
    assert [(await answer(streams))[0].split(b"\r\n")[0] for _ in range(PIPELINED)] == [b"HTTP/1.1 200 OK"] * PIPELINED
    HOLD.clear()
    streams[1].write(first + more * PIPELINED)
    assert await cut(streams)
    assert not HOLD.is_set(), "before any was answered"


async def test_what_is_taken_early_is_answered_in_its_turn() -> None:
    taken: list[tuple[BoundedProtocol, RequestResponseCycle]] = []

    def take(connection: BoundedProtocol, cycle: RequestResponseCycle) -> bool:
        if is_taken := cycle.scope["path"] == "/taken":
            taken.append((connection, cycle))
        return is_taken

    async def held(count: int) -> None:
        await until(lambda: len(taken) == count, "it is taken")

    request = b"GET /taken HTTP/1.1\r\nHost: x\r\n\r\n"
    async with serving(ConnectionTable(1000), PATIENT, take) as port:
        streams = await asyncio.open_connection("127.0.0.1", port)
        streams[1].write(request + b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + request)
        await held(1)
        taken[0][0].answer(taken[0][1], [(b"x-own", b"1")], b"first")
        head, body = await answer(streams)
        assert (b"\r\nx-own: 1\r\n" in head, b"\r\ndate: " in head, body) == (True, True, b"first")
        assert (await answer(streams))[1] == b"", "the application's"
        await held(2)
        taken[1][0].start(taken[1][1])
        assert (await answer(streams))[1] == b"", "given back to the application"
        streams[1].write(request)
        await held(3)
        lost = asyncio.Event()
        taken[2][0].on_lost = lost.set
        streams[1].close()
        await asyncio.wait_for(lost.wait(), PATIENCE)
        taken[2][0].answer(taken[2][1], [], b"too late")
        last = await asyncio.open_connection("127.0.0.1", port)
        last[1].write(b"GET /taken HTTP/1.0\r\n\r\n")
        assert (await answer(last))[1] == b"", "what ends its connection is the application's"
        last[1].close()


async def test_a_trailer_is_no_header(port: int) -> None:
    """Else a stranger behind a proxy could name an address of their choice."""
    streams = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /headers HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    streams[1].write(head + b"0\r\nX-Forwarded-For: 9.9.9.9\r\n\r\n")
    assert (await answer(streams))[1] == b"host transfer-encoding"
    streams[1].close()


async def test_a_refusal_never_lands_within_an_answer(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(b"GET /pieces HTTP/1.1\r\nHost: x\r\n\r\n")
    received = await reader.readuntil(b"\r\n\r\n")
    writer.write(b"\x00 garbage\r\n\r\n")
    with suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE):
            while more := await reader.read(1 << 16):
                received += more
    assert received.partition(b"\r\n\r\n")[2].strip(b"x") == b"", "bytes of the answer, and nothing else"
    writer.close()


@pytest.mark.parametrize("end", ["garbage", "gone"])
async def test_abandoned_answer_is_ended(port: int, caplog: pytest.LogCaptureFixture, end: str) -> None:
    """More input follows the request: the server ends the answer as well as that input."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    more = b"\x00 garbage" if end == "garbage" else b"GET / HTTP/1.1\r\nHost: x"
    writer.write(b"GET /pieces HTTP/1.1\r\nHost: x\r\n\r\n" + more + b"\r\n\r\n")
    await asyncio.sleep(0.3)
    if end == "garbage":
        assert await cut((reader, writer))
    writer.transport.abort()
    await asyncio.sleep(0.5)
    assert [r.message for r in caplog.records if r.levelname == "ERROR" or "socket.send" in r.message] == []


def test_limits_hold_on_uvloop() -> None:
    """Its transports are its own, and so are its buffers, half-closed connections and sockets."""
    pytest.importorskip("uvloop")

    async def story() -> None:
        assert "uvloop" in type(asyncio.get_running_loop()).__module__
        async with serving(ConnectionTable(1000), QUICK) as port:
            await test_silent_client_is_cut(port)
            await test_client_that_does_not_read_is_cut(port)
            await test_sender_that_stops_is_cut(port)
            await test_non_http_input_gets_a_problem_document(port)
            await test_requests_that_wait_for_their_answers_are_bounded(port)
            await test_what_is_taken_early_is_answered_in_its_turn()
            await test_an_answer_outlives_the_body_that_it_did_not_wait_for(port)
        await test_reader_gets_a_long_answer_and_keeps_the_connection()

    with asyncio.Runner(loop_factory=quick_loop) as runner:
        runner.run(story())
