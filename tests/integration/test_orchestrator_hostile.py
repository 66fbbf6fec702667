"""Requests at a real orchestrator that are no plain HTTP, or come at a bad moment."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from muster.ledger.database import Database
from muster.ledger.statements import insert_once
from muster.ledger.tables import nodes
from muster.protocol.announcements import MachineReport
from muster.protocol.hashes import content_hash
from muster.protocol.receipts import upload_target
from muster.protocol.requests import sign_request
from orchestrator.service import METRICS_SECONDS
from testbed.runs.run_fixture import Orchestrator, RunFixture, some_hash
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
    orchestrator = Orchestrator(run_fixture, folder / "orchestrator", uploads_at_once=8)
    asyncio.run(register(run_fixture, orchestrator, [f"holder {number}" for number in range(64)]))
    with orchestrator as running:
        yield run_fixture, running
    assert "Traceback" not in running.json_log.read_text()


async def register(run_fixture: RunFixture, orchestrator: Orchestrator, workers: list[str]) -> None:
    """Add workers to the database of an orchestrator that does not run yet, since joins on chain take long."""
    joined = {"role": "worker", "work_class": 0, "status": "active", "block": 1}
    database = await Database.open(orchestrator.database_url, run_fixture.about)
    for name in workers:
        address = run_fixture.key(name).address
        row = {**joined, "address": address, "operator": address, "first_step": 0}
        await database.write(lambda connection, row=row: insert_once(connection, nodes, row))
    await database.close()


def connections(orchestrator: Orchestrator) -> int:
    """Return how many are open now: what metrics say is kept for a while."""
    time.sleep(METRICS_SECONDS)
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
    writer.write(f"GET /v1/runs/{run_fixture.run}/current HTTP/1.1\r\nHost: x\r\n\r\n\0garbage\r\n\r\n".encode())
    async with asyncio.timeout(BOUND):
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.transport.abort()
    assert (await asyncio.to_thread(orchestrator.get, f"/v1/runs/{run_fixture.run}/current"))[0] == 200


@pytest.mark.parametrize(("method", "count"), [("PUT", 8), ("PUT", 64), ("POST", 64)])
async def test_held_bodies_give_way(place: tuple[RunFixture, Orchestrator], method: str, count: int) -> None:
    """Workers send 40 % of a file or of a message, and then a byte now and then.

    Each of the eight slots for files is held, some eight times, or each of the 64 for messages.
    """
    run_fixture, orchestrator = place
    file = bytes(100_000)
    path, query = upload_target(content_hash(file), run_fixture.run, 0, some_hash(f"held {count}"))
    if method == "POST":
        path, query = f"/v1/runs/{run_fixture.run}/log", ""

    async def hold(name: str) -> int:
        """Return the status that ends a slow upload."""
        key, target = run_fixture.key(name), f"{path}?{query}" if query else path
        signed = sign_request(
            key, run_fixture.domain, method, orchestrator.url + target, content_hash(file), now=time.time()
        )
        lines = [f"{method} {target} HTTP/1.1", f"Host: 127.0.0.1:{orchestrator.port}", f"Content-Length: {len(file)}"]
        head = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in signed.items())]) + "\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", orchestrator.port)
        writer.write(head.encode() + file[: 4 * len(file) // 10])
        answer = asyncio.create_task(reader.readline())
        try:
            while not (await asyncio.wait([answer], timeout=0.2))[0]:
                writer.write(b"\0")
            return int(answer.result().split()[1])
        finally:
            answer.cancel()
            writer.transport.abort()

    def under_way() -> int:
        found = re.search(rb"^muster_uploads_under_way ([0-9.]+)$", orchestrator.get("/metrics")[1], re.MULTILINE)
        return int(float(found[1])) if found else 0

    holders = [asyncio.create_task(hold(f"holder {number}")) for number in range(count)]

    def held() -> bool:
        """Return whether all slots are held: on a busy machine some give way before the last one has begun."""
        return under_way() >= count or any(holder.done() for holder in holders)

    await until(lambda: asyncio.to_thread(held), "all slots are held")
    async with run_fixture.client(orchestrator.url, "w1") as worker:
        if method == "PUT":
            receipt = await worker.put_file(b"honest", run_fixture.run, 0, some_hash(f"honest {count}"))
            assert receipt.size == len(b"honest")
        else:
            report = MachineReport(run=run_fixture.run, device="cpu", devices=1, tokens_per_second=1)
            await worker.say("machine", report)
        assert (await worker.demand(run_fixture.run)).run == run_fixture.run
    for holder in holders:
        holder.cancel()
    ended = await asyncio.gather(*holders, return_exceptions=True)
    assert 408 in ended
    assert {one for one in ended if isinstance(one, int)} == {408}
