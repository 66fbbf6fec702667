"""The file server: ranges as RFC 9110 has them, and bounds on everything a stranger decides. Real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.errors import ConfigError, MalformedError
from muster.runtime.http_limits import HEADERS, QUERY_KEYS, ConnectionLimits
from muster.shardcast.format.manifest import Manifest
from muster.shardcast.publish import publish
from muster.shardcast.serve.http_server import (
    PIECE_BYTES,
    FileProblem,
    FileRequest,
    FileServer,
    OpenFile,
    Reply,
    json_reply,
    requested_range,
)
from muster.shardcast.serve.origin import Origin
from muster.shardcast.serve.routes import Stats, WeightRoutes
from testbed.waiting import until
from testbed.weights.checkpoints import make_checkpoint

STALL_SECONDS = 20.0
LIMITS = ConnectionLimits(head_bytes=4096, head_seconds=0.5, idle_seconds=0.5, stall_seconds=0.5)
CONNECTIONS = 8


@dataclass
class Running:
    """An origin over one published version, in this process."""

    url: str
    port: int
    manifest: Manifest
    model: bytes
    stats: Stats
    server: FileServer

    def target(self, name: str) -> str:
        return f"/v1/weights/{self.manifest.id}/{name}"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """Yield a folder with one version in it, and that version."""
    folder = tmp_path_factory.mktemp("published")
    checkpoint = make_checkpoint(folder / "checkpoint", model_bytes=3_000_000)
    return folder, publish(checkpoint, folder / "out", 1, 2, shard_bytes=1 << 20)


@pytest.fixture
async def origin(published: tuple[Path, Manifest], tmp_path: Path) -> AsyncIterator[Running]:
    folder, manifest = published
    shutil.copytree(folder / "out", tmp_path / "out")
    (tmp_path / "secret.json").write_text("secret")
    os.symlink(tmp_path / "secret.json", tmp_path / "out" / manifest.id / "link.json")
    (tmp_path / "out" / manifest.id / "stray.py").write_text("secret")
    stats = Stats()
    service = WeightRoutes("origin", Origin(tmp_path / "out"), stats)
    server = FileServer(service.handle, LIMITS, connections=CONNECTIONS)
    port = await server.start("127.0.0.1", 0)
    model = (folder / "checkpoint" / "model.safetensors").read_bytes()
    yield Running(f"http://127.0.0.1:{port}", port, manifest, model, stats, server)
    await server.close()


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(trust_env=False, timeout=5) as found:
        yield found


@asynccontextmanager
async def connected(
    port: int, source: str = "127.0.0.1"
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a bare connection, closed at the end in any case."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024, local_addr=(source, 0))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def raw(port: int, data: bytes) -> bytes:
    """Send bytes as they are, and return all that comes back until the other side hangs up."""
    async with connected(port) as (reader, writer):
        writer.write(data)
        return await reader.read()


def length_of(head: bytes) -> int:
    """Return the length that an answer's head announces."""
    return next(int(line[16:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: "))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    size=st.integers(0, 50), first=st.none() | st.integers(0, 60), last=st.none() | st.integers(0, 60), noise=st.text()
)
def test_a_range_is_the_slice_it_names(size: int, first: int | None, last: int | None, noise: str) -> None:
    data = bytes(range(size))
    text = f"bytes={'' if first is None else first}-{'' if last is None else last}"
    request = FileRequest("GET", "/", {"range": text})
    if first is None and last is None:
        wanted = None
    elif first is None:
        wanted = data[-last:] if last else b""
    elif last is not None and last < first:
        wanted = None
    else:
        wanted = data[first : None if last is None else last + 1]
    if wanted == b"":
        with pytest.raises(FileProblem) as caught:
            requested_range(request, size)
        assert (caught.value.status, caught.value.headers) == (416, {"Content-Range": f"bytes */{size}"})
    else:
        found = requested_range(request, size)
        assert (None if found is None else data[slice(*found)]) == wanted
    assert requested_range(FileRequest("GET", "/", {"range": noise + "x"}), size) is None


async def test_files_ranges_and_heads(origin: Running, client: httpx2.AsyncClient) -> None:
    url = origin.url + origin.target("model.safetensors")
    whole = await client.get(url)
    assert (whole.status_code, whole.content) == (200, origin.model)
    assert whole.headers["accept-ranges"] == "bytes"
    assert "immutable" in whole.headers["cache-control"]
    part = await client.get(url, headers={"Range": "bytes=1000000-2999999"})
    assert (part.status_code, part.content) == (206, origin.model[1_000_000:])
    assert part.headers["content-range"] == "bytes 1000000-2999999/3000000"
    assert (await client.get(url, headers={"Range": "bytes=-5"})).content == origin.model[-5:]
    beyond = await client.get(url, headers={"Range": "bytes=3000000-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */3000000")
    head = await client.head(url, headers={"Range": "bytes=0-9"})
    assert (head.status_code, head.headers["content-length"], head.content) == (206, "10", b"")
    empty = await client.get(origin.url + origin.target("chat_template.jinja"))
    assert (empty.status_code, empty.content) == (200, b"")
    manifest = await client.get(origin.url + origin.target("manifest.json"))
    assert (manifest.content, manifest.headers["content-type"]) == (origin.manifest.canonical, "application/json")
    await client.get(origin.url + "/healthz")  # on the same connection: what was sent before has been counted
    assert origin.stats.served_bytes == 3_000_000 + 2_000_000 + 5 + len(origin.manifest.canonical)


async def test_about_the_service(origin: Running, client: httpx2.AsyncClient, tmp_path: Path) -> None:
    index = (await client.get(origin.url + "/v1/weights/index.json")).json()
    assert index == {
        "versions": [{"root": origin.manifest.id, "run": 1, "step": 2, "base_step": None, "size": 3_000_036}]
    }
    await client.get(origin.url + origin.target("config.json"))
    stats = (await client.get(origin.url + "/v1/stats")).json()
    assert (stats["role"], stats["served_bytes"], stats["versions"]) == ("origin", 23, index["versions"])
    assert (await client.get(origin.url + "/healthz")).json() == {"status": "alive"}
    assert (await client.get(origin.url + "/version")).json()["protocol"] == 1
    metrics = (await client.get(origin.url + "/metrics")).text
    assert "muster_shardcast_served_bytes_total" in metrics
    assert 'muster_shardcast_replies_total{status="200"}' in metrics
    assert (await client.get(origin.url + "/readyz")).json() == {"ready": True, "reasons": []}
    (tmp_path / "out" / "index.json").write_text("{")
    broken = await client.get(origin.url + "/readyz")
    assert (broken.status_code, broken.json()["ready"]) == (503, False)
    assert "index.json" in broken.json()["reasons"][0]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/weights/ROOT/../../secret.json",
        "/v1/weights/ROOT/..%2f..%2fsecret.json",
        "/v1/weights/ROOT/%2e%2e/secret.json",
        "/v1/weights/../secret.json",
        "/v1/weights/..",
        "/v1/weights/ROOT/..",
        "/v1/weights/ROOT/link.json",
        "/v1/weights/ROOT/stray.py",
        "/v1/weights/ROOT/",
        "/v1/weights/ROOT",
        "/v1/weights/ROOT//etc/passwd",
        "/v1/weights/ROOT/missing.json",
        "/v1/weights/ROOT/.hidden.json",
        "/v1/weights/0x00/config.json",
        "/v1/weights/0x" + "00" * 32 + "/config.json",
        "/v1/weights/.publishing/config.json",
        "//etc/passwd",
        "/",
        "*",
    ],
)
async def test_paths_outside_the_versions_are_not_found(origin: Running, path: str) -> None:
    target = path.replace("ROOT", origin.manifest.id)
    answer = await raw(origin.port, f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"secret" not in answer.replace(b"secret.json", b"")
    problem = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert problem["status"] == 404


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 413),
        (b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405),
        (b"DELETE /v1/weights/index.json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405),
    ],
)
async def test_request_other_than_a_plain_get_is_refused(origin: Running, request_: bytes, status: int) -> None:
    answer = await raw(origin.port, request_)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


async def test_idle_connection_is_closed_and_delays_no_other(origin: Running, client: httpx2.AsyncClient) -> None:
    clock = asyncio.get_running_loop().time
    started = clock()
    async with connected(origin.port) as (idle, _), connected(origin.port) as (half, writer):
        writer.write(b"GET / HTTP/1.1\r\nHo")
        assert (await client.get(origin.url + "/healthz")).status_code == 200
        for reader in (idle, half):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
    assert LIMITS.idle_seconds <= clock() - started < 2 * LIMITS.idle_seconds


async def test_client_that_does_not_read_is_disconnected(origin: Running) -> None:
    async with connected(origin.port) as (_, writer):
        request = f"GET {origin.target('model.safetensors')} HTTP/1.1\r\nHost: x\r\n\r\n"
        writer.write(4 * request.encode())  # more than the buffers between us hold
        await until(lambda: not origin.server.connections)


@dataclass
class Serving:
    """A server of one file of random bytes, and the complaints of the loop and the logs."""

    server: FileServer
    port: int
    data: bytes
    accidents: list[dict[str, object]]


@asynccontextmanager
async def serving(path: Path, size: int, limits: ConnectionLimits, rate: int = 0) -> AsyncIterator[Serving]:
    data = os.urandom(size)
    path.write_bytes(data)

    async def answer(_: FileRequest) -> Reply:
        return Reply(200, body=OpenFile(path.open("rb"), size), stop=size)

    accidents: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: accidents.append(context))
    server = FileServer(answer, limits, rate=rate)
    try:
        yield Serving(server, await server.start("127.0.0.1", 0), data, accidents)
    finally:
        await server.close()


async def test_steady_reader_gets_everything(tmp_path: Path) -> None:
    """Bytes that the kernel still buffers do not count against the time for a piece."""
    stall = 2.0
    limits = ConnectionLimits(idle_seconds=0.5, stall_seconds=stall)
    async with serving(tmp_path / "file", 16 << 20, limits) as running, connected(running.port) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        received = bytearray()
        while len(received) < len(running.data):
            received += await reader.readexactly(PIECE_BYTES)
            await asyncio.sleep(stall / 4)  # a reader of a certain speed
        assert bytes(received) == running.data


async def test_slow_readers_cost_one_piece_of_memory_each(tmp_path: Path) -> None:
    readers, size = 8, 64 << 20
    async with (
        serving(tmp_path / "file", size, ConnectionLimits(stall_seconds=STALL_SECONDS)) as running,
        AsyncExitStack() as stack,
    ):
        open_files = len(os.listdir("/proc/self/fd"))
        tracemalloc.start()
        for _ in range(readers):
            _, writer = await stack.enter_async_context(connected(running.port))
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await until(lambda: tracemalloc.get_traced_memory()[1] > readers * PIECE_BYTES / 4)
        await asyncio.sleep(0.5)  # in which nothing more is read
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < readers * 2.5 * PIECE_BYTES  # the piece, and what the stream has of it
        clock = asyncio.get_running_loop().time
        started = clock()
        await running.server.close()
        assert clock() - started < STALL_SECONDS / 10, "the end waits for no reader"
        assert running.server.connections == 0
        await stack.aclose()
        assert len(os.listdir("/proc/self/fd")) < open_files  # which counted the listener
        assert running.accidents == []


async def test_disconnect_cancels_the_work_for_the_client() -> None:
    """The server bounds connections, so no work may outlive its connection."""
    events: asyncio.Queue[str] = asyncio.Queue()

    async def never(_: FileRequest) -> Reply:
        events.put_nowait("begun")
        try:
            await asyncio.Event().wait()
        finally:
            events.put_nowait("ended")
        raise AssertionError

    server = FileServer(never, LIMITS)
    port = await server.start("127.0.0.1", 0)
    try:
        for _ in range(20):
            async with connected(port) as (_, writer):
                writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                assert await events.get() == "begun"
            assert await events.get() == "ended"
        await until(lambda: not server.connections)
    finally:
        await server.close()


async def test_abandoned_requests_use_no_rate(tmp_path: Path) -> None:
    async with serving(tmp_path / "file", 16 << 20, ConnectionLimits(), rate=4 << 20) as running:
        for _ in range(100):  # a piece each would be 25 seconds
            async with connected(running.port) as (_, writer):
                writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                await writer.drain()
                await asyncio.sleep(0.01)
        async with connected(running.port) as (reader, writer), asyncio.timeout(12):
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nRange: bytes=0-2097151\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(2 << 20) == running.data[: 2 << 20]


async def test_a_handler_that_fails_is_answered_with_a_problem_document() -> None:
    async def fails(_: FileRequest) -> Reply:
        raise MalformedError("the index is no index")

    server = FileServer(fails, LIMITS)
    port = await server.start("127.0.0.1", 0)
    try:
        answered = await raw(port, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    finally:
        await server.close()
    head, _, body = answered.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 500 ")
    assert json.loads(body)["detail"] == "the server cannot read what was asked for"


async def test_an_answer_that_stays_incomplete_is_cut_short(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path / "file", 3 << 20, LIMITS) as running:
        os.truncate(tmp_path / "file", 2 << 20)
        answer = await raw(running.port, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"content-length: 3145728" in head.lower()
        assert running.data[: 2 << 20].startswith(body)
        await until(lambda: not running.server.connections)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_an_answer_to_http_1_0_ends_its_connection(origin: Running) -> None:
    answer = await raw(origin.port, f"GET {origin.target('config.json')} HTTP/1.0\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert (b"\r\nconnection: close" in head.lower(), len(body)) == (True, 23)


async def test_requests_that_came_together_are_answered_in_turn(origin: Running) -> None:
    names = ["config.json", "model.safetensors", "missing.json", "tokenizer.json"]
    requests = [f"GET {origin.target(name)} HTTP/1.1\r\nHost: x\r\n" for name in names]
    answer = await raw(origin.port, ("\r\n".join(requests) + "Connection: close\r\n\r\n").encode())
    statuses, lengths = [], []
    while answer:
        head, _, rest = answer.partition(b"\r\n\r\n")
        statuses.append(int(head.split()[1]))
        lengths.append(length_of(head))
        answer = rest[lengths[-1] :]
    assert statuses == [200, 200, 404, 200]
    assert (lengths[0], lengths[1], lengths[3]) == (23, 3_000_000, 13)


async def test_a_reset_while_bytes_are_still_on_their_way_is_no_accident(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrived = asyncio.Event()

    class Late(OpenFile):
        async def ready(self, start: int, stop: int) -> int:
            await arrived.wait()
            return stop

    async def answer(_: FileRequest) -> Reply:
        return Reply(200, body=Late((tmp_path / "file").open("rb"), 1 << 20), stop=1 << 20)

    async with serving(tmp_path / "file", 1 << 20, LIMITS) as running:
        running.server.handler = answer
        async with connected(running.port) as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await asyncio.sleep(0)
        arrived.set()
        await until(lambda: not running.server.connections)
    assert running.accidents == []
    assert [record.getMessage() for record in caplog.records] == []


async def test_one_connection_carries_many_requests(origin: Running) -> None:
    async with connected(origin.port) as (reader, writer):
        for name, status, length in (
            ("config.json", 200, 23),
            ("missing.json", 404, None),
            ("tokenizer.json", 200, 13),
        ):
            writer.write(f"GET {origin.target(name)} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(f"HTTP/1.1 {status} ".encode())
            announced = length_of(head)
            assert length in (None, announced)
            assert len(await reader.readexactly(announced)) == announced
        assert origin.server.connections == 1


async def test_connections_are_bounded(origin: Running) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(CONNECTIONS):
            await stack.enter_async_context(connected(origin.port))
        reader, writer = await stack.enter_async_context(connected(origin.port))
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(LIMITS.idle_seconds / 2):
            assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        assert origin.server.connections == CONNECTIONS


async def test_an_address_that_takes_every_connection_shuts_nobody_out() -> None:
    going = asyncio.Event()

    async def handler(request: FileRequest) -> Reply:
        if request.path == "/slow":
            await going.wait()
        return json_reply({})

    server = FileServer(handler, ConnectionLimits(), connections=CONNECTIONS)
    port = await server.start("127.0.0.1", 0)

    async def ask(stack: AsyncExitStack, path: str, source: str) -> bytes:
        reader, writer = await stack.enter_async_context(connected(port, source))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        async with asyncio.timeout(STALL_SECONDS):
            return b"" if path == "/slow" else await reader.readline()

    async with AsyncExitStack() as stack:
        for _ in range(2 * CONNECTIONS):  # which begins anew whenever it is cut
            await ask(stack, "/slow", "127.0.0.2")
        await asyncio.sleep(0.1)
        for number in range(CONNECTIONS):
            assert (await ask(stack, "/", f"127.0.1.{1 + number}")).startswith(b"HTTP/1.1 200 "), number
            await ask(stack, "/slow", "127.0.0.2")
    await server.close()


@pytest.mark.parametrize(
    "path", ["/v1/stats", "/metrics", "/healthz", "/v1/weights/index.json", "/v1/weights/index-1.json", "FILE", "/none"]
)
@pytest.mark.parametrize(("keys", "headers"), [(QUERY_KEYS + 1, 1), (1, HEADERS + 1), (QUERY_KEYS, HEADERS)])
async def test_a_request_with_too_many_keys_or_headers_reaches_no_route(
    origin: Running, path: str, keys: int, headers: int
) -> None:
    reached: list[str] = []
    handler = origin.server.handler

    async def noting(request: FileRequest) -> Reply:
        reached.append(request.path)
        return await handler(request)

    origin.server.handler = noting
    target = origin.target("config.json") if path == "FILE" else path
    lines = "Host: x\r\nConnection: close\r\n" + "A: 1\r\n" * (headers - 2)
    head = await raw(origin.port, f"GET {target}?{'&'.join(['a=1'] * keys)} HTTP/1.1\r\n{lines}\r\n".encode())
    is_wide = keys > QUERY_KEYS or headers > HEADERS
    assert (reached, head.startswith(b"HTTP/1.1 431 ")) == ([] if is_wide else [target], is_wide)


async def test_an_occupied_port_is_a_config_error(origin: Running) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{origin.port}") as caught:
        await FileServer(origin.server.handler).start("127.0.0.1", origin.port)
    assert "shardcast.port" in caught.value.hint


async def test_closing_ends_answers_under_way(origin: Running) -> None:
    async with connected(origin.port) as (reader, writer):
        writer.write(f"GET {origin.target('model.safetensors')} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await reader.readline()
        await origin.server.close()
        assert origin.server.connections == 0
