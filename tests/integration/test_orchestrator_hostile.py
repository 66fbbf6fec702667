"""Requests at a real orchestrator that are no plain HTTP, or come at a bad moment."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest

from testbed.runs.run_fixture import Orchestrator, RunFixture
from testbed.waiting import BOUND, until

PLAIN = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
UPGRADE = (
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.fixture(scope="module")
def place(deployment: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunFixture, Orchestrator]]:
    folder = tmp_path_factory.mktemp("hostile")
    run_fixture = asyncio.run(RunFixture.build(folder, deployment.settings, seed="hostile", workers=("w1",)))
    asyncio.run(run_fixture.publish(0))
    with Orchestrator(run_fixture, folder / "orchestrator") as running:
        yield run_fixture, running
    assert "Traceback" not in running.json_log.read_text()


def connections(orchestrator: Orchestrator) -> int:
    found = re.search(rb"^muster_connections ([0-9.]+)$", orchestrator.get("/metrics")[1], re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


@pytest.mark.parametrize("sent", [UPGRADE, PLAIN + UPGRADE], ids=["at once", "after a request"])
async def test_an_upgrade_is_answered_as_a_plain_request(place: tuple[RunFixture, Orchestrator], sent: bytes) -> None:
    """And its connection is counted no longer than it is open."""
    _, orchestrator = place
    before = await asyncio.to_thread(connections, orchestrator)
    answers = sent.count(b"GET ")
    reader, writer = await asyncio.open_connection("127.0.0.1", orchestrator.port)
    writer.write(sent)
    async with asyncio.timeout(BOUND):
        for _ in range(answers):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            assert await reader.readuntil(b"}") == b'{"status":"alive"}'
    writer.transport.abort()
    await until(lambda: connections(orchestrator) <= before, "connections that are closed are no longer counted")


async def test_garbage_after_a_request_leaves_no_traceback(place: tuple[RunFixture, Orchestrator]) -> None:
    """The fixture looks at the log."""
    run_fixture, orchestrator = place
    reader, writer = await asyncio.open_connection("127.0.0.1", orchestrator.port)
    writer.write(f"GET /v1/runs/{run_fixture.run}/summary HTTP/1.1\r\nHost: x\r\n\r\n\0garbage\r\n\r\n".encode())
    async with asyncio.timeout(BOUND):
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.transport.abort()
    assert (await asyncio.to_thread(orchestrator.get, f"/v1/runs/{run_fixture.run}/summary"))[0] == 200
