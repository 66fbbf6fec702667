"""A crowd at a real orchestrator: idle and slow connections block no client, and refusals are readable."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from muster.errors import RefusedError
from muster.protocol.hashes import NOTHING_HASH, content_hash
from muster.protocol.messages import StepReport
from muster.protocol.requests import sign_request
from muster.runtime.connection_table import connection_budget
from muster.runtime.slots import WAIT_SECONDS
from orchestrator.service import METRICS_SECONDS
from testbed.runs.run_fixture import Orchestrator, RunFixture, some_hash
from testbed.waiting import BOUND, until

IDLE, SLOW, READING = 600, 520, 64
ASKED = 10
"""Reports of the trainer, each of which it waits for."""
HEALTH = ("/healthz", "/readyz", "/metrics", "/version")

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(scope="module")
def place(deployment: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunFixture, Orchestrator]]:
    folder = tmp_path_factory.mktemp("crowd")
    run_fixture = asyncio.run(RunFixture.build(folder, deployment.settings, seed="crowd", workers=("w1",)))
    asyncio.run(run_fixture.publish(0))
    with Orchestrator(run_fixture, folder / "orchestrator") as running:
        yield run_fixture, running


@asynccontextmanager
async def connected(orchestrator: Orchestrator, count: int, source: str) -> AsyncIterator[list[Streams]]:
    """Connections from one address of this machine, closed afterwards."""
    async with asyncio.timeout(BOUND):
        opened = await asyncio.gather(
            *(asyncio.open_connection("127.0.0.1", orchestrator.port, local_addr=(source, 0)) for _ in range(count))
        )
    try:
        yield opened
    finally:
        for _, writer in opened:
            writer.transport.abort()


async def ask(streams: Streams, path: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a plain GET over an open connection."""
    streams[1].write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return await answer_of(streams[0])


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    async with asyncio.timeout(BOUND):
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
    return int(lines[0].split()[1]), headers, body


async def expect_served(run_fixture: RunFixture, orchestrator: Orchestrator, step: int) -> None:
    """Check that health, a stranger, the trainer and a worker get answers, each over a separate connection."""
    for path in (*HEALTH, f"/v1/runs/{run_fixture.run}/demand"):
        assert (await asyncio.to_thread(orchestrator.get, path))[0] == 200, path
    async with run_fixture.client(orchestrator.url, "trainer", attempts=1) as trainer:
        await trainer.post_step(StepReport(run=run_fixture.run, step=step, metrics={}))
        assert [one.kind for one in (await trainer.log(run_fixture.run)).entries][-1] == "report"
    async with run_fixture.client(orchestrator.url, "w1", attempts=1) as worker:
        assert (await worker.demand(run_fixture.run)).run == run_fixture.run
        data = b"a file of step %d" % step
        assert (await worker.put_file(data, run_fixture.run, 0, some_hash(f"crowd {step}"))).size == len(data)


async def test_idle_connections_do_not_block_clients(place: tuple[RunFixture, Orchestrator]) -> None:
    run_fixture, orchestrator = place
    async with connected(orchestrator, IDLE, "127.0.0.1") as idle:
        answers = await asyncio.gather(*(ask(streams, f"/v1/runs/{run_fixture.run}/demand") for streams in idle))
        assert [status for status, _, _ in answers] == [200] * IDLE
        await expect_served(run_fixture, orchestrator, 0)
        again = await asyncio.gather(*(ask(streams, f"/v1/runs/{run_fixture.run}/demand") for streams in idle))
        assert [status for status, _, _ in again] == [200] * IDLE, "over the same connections"


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
async def test_slow_request_heads_do_not_block_clients(place: tuple[RunFixture, Orchestrator], source: str) -> None:
    run_fixture, orchestrator = place
    async with connected(orchestrator, SLOW, source) as slow:
        for _, writer in slow:
            writer.write(b"GET /v1/runs/1 HTTP/1.1\r\nHost: x\r\nA: ")
        await expect_served(run_fixture, orchestrator, 1)


async def test_crowd_of_readers_delays_no_member(place: tuple[RunFixture, Orchestrator]) -> None:
    """64 connections read whole pages of the log, and documents, without a pause, while the trainer reports."""
    run_fixture, orchestrator = place
    run, node = run_fixture.run, run_fixture.key("w1").address
    paths = [f"/v1/runs/{run}/log", f"/v1/nodes/{node}", f"/v1/runs/{run}", f"/v1/runs/{run}/current"]
    answered, ended = [0], asyncio.Event()

    async def read(number: int, streams: Streams) -> None:
        while not ended.is_set():
            assert (await ask(streams, paths[number % len(paths)]))[0] in (200, 503)
            answered[0] += 1

    async def report() -> list[float]:
        """Return the seconds that each answer to the trainer took, shortest first."""
        took = []
        async with run_fixture.client(orchestrator.url, "trainer") as trainer:
            for number in range(ASKED):
                begun = time.monotonic()
                await trainer.post_step(StepReport(run=run, step=number, metrics={}))
                assert (await trainer.demand(run)).run == run
                took.append(time.monotonic() - begun)
        return sorted(took)

    alone = await report()
    async with connected(orchestrator, READING, "127.0.0.2") as opened:
        crowd = [asyncio.create_task(read(number, streams)) for number, streams in enumerate(opened)]
        try:
            await until(lambda: answered[0] >= READING, "each of the crowd has an answer")
            beside = await report()
        finally:
            ended.set()
            await asyncio.gather(*crowd)
    refused = re.findall(r'muster_requests_refused_total{kind="(\w+)"}', orchestrator.get("/metrics")[1].decode())
    assert set(refused) <= {"stranger", "list"}
    print(f"p99 alone {alone[-1]:.3f} s, beside {answered[0]} answers to the crowd {beside[-1]:.3f} s")
    # One event loop serves both: a report waits for answers that are being made, never for a place in a queue.
    assert beside[-1] < alone[-1] + WAIT_SECONDS


async def test_a_signed_read_makes_its_connection_a_members(place: tuple[RunFixture, Orchestrator]) -> None:
    """It works once. A replayed request, or one signed by an unknown key, leaves the sender a stranger."""
    run_fixture, orchestrator = place
    path = f"/v1/runs/{run_fixture.run}/demand"

    def signed(name: str) -> bytes:
        headers = sign_request(
            run_fixture.key(name), run_fixture.domain, "GET", orchestrator.url + path, NOTHING_HASH, now=time.time()
        )
        lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{orchestrator.port}"]
        return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items())]).encode() + b"\r\n\r\n"

    async def members() -> int:
        await asyncio.sleep(METRICS_SECONDS)  # for which they are kept
        _, document = await asyncio.to_thread(orchestrator.get, "/metrics")
        found = re.search(rb"^muster_member_connections ([0-9.]+)$", document, re.MULTILINE)
        assert found is not None
        return int(float(found[1]))

    async with connected(orchestrator, 4, "127.0.0.1") as streams:
        before = await members()
        request = signed("w1")
        sent = [request, request, signed("stranger"), signed("trainer")]
        counts = []
        for (reader, writer), head in zip(streams, sent, strict=True):
            writer.write(head)
            assert (await answer_of(reader))[0] == 200
            counts.append(await members() - before)
        assert counts == [1, 1, 1, 2]


def test_the_limit_of_descriptors_is_raised_and_connections_fit_in(
    place: tuple[RunFixture, Orchestrator], tmp_path: Path
) -> None:
    run_fixture, _ = place
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    other = Orchestrator(run_fixture, tmp_path)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        other.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert resource.prlimit(other.pid, resource.RLIMIT_NOFILE) == (min(hard, 1 << 20), hard)
    assert other.stop()[0] == 0
    (listening,) = other.logged("listening")
    assert listening["connections"] == connection_budget(min(hard, 1 << 20))[0]


# Bodies that are too large, over connections that end with the answer


def signed_head(run_fixture: RunFixture, orchestrator: Orchestrator, body: bytes, framing: str) -> bytes:
    path = "/v1/verdicts"
    headers = sign_request(
        run_fixture.key("v1"), run_fixture.domain, "POST", orchestrator.url + path, content_hash(body), now=time.time()
    )
    lines = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{orchestrator.port}", "Connection: close", framing]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items())]).encode() + b"\r\n\r\n"


def send_all_then_read(orchestrator: Orchestrator, pieces: list[bytes]) -> bytes:
    """Send the whole request before reading, as simple clients do, and return the answer."""
    with socket.create_connection(("127.0.0.1", orchestrator.port), timeout=BOUND) as client:
        for piece in pieces:
            client.sendall(piece)
        received = b""
        while piece := client.recv(1 << 16):
            received += piece
    return received


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_too_large_gets_an_answer_that_can_be_read(
    place: tuple[RunFixture, Orchestrator], chunked: bool
) -> None:
    run_fixture, orchestrator = place
    body = bytes(24 << 20)
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
    sent = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n" if chunked else body
    received = send_all_then_read(orchestrator, [signed_head(run_fixture, orchestrator, body, framing), sent])
    head, _, document = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in head.lower()
    assert json.loads(document)["detail"] == f"the body is larger than {1 << 20} bytes"


async def test_our_client_reads_that_a_body_is_too_large(place: tuple[RunFixture, Orchestrator]) -> None:
    run_fixture, orchestrator = place
    async with run_fixture.client(orchestrator.url, "w1", attempts=1, timeout=BOUND) as worker:
        with pytest.raises(RefusedError, match=r"Too large: the body is larger than [0-9]+ bytes") as refused:
            await worker.put_file(bytes(96 << 20), run_fixture.run, 0, some_hash("large"))
        assert refused.value.status == 413
        assert (await worker.demand(run_fixture.run)).run == run_fixture.run
