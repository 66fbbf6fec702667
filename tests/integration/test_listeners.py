"""An orchestrator with two listeners: each request is answered at one of them, and one's crowd delays no other's."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator

import pytest
import requests

from muster.protocol.hashes import content_hash
from muster.protocol.messages import StepReport
from muster.protocol.requests import sign_request
from muster.runtime.slots import WAIT_SECONDS
from orchestrator.admission import ALWAYS
from testbed.big_run.process import BigRun, big_run
from testbed.big_run.shape import Shape
from testbed.chain.anvil import free_port
from testbed.waiting import BOUND, until

pytestmark = pytest.mark.slow

CROWD = 64
"""Connections of strangers."""
ONLY = ("this port answers signed requests and polls only", "this port answers unsigned reads only")
ASKED = 30
"""Reports of the trainer, each of which it waits for."""


@pytest.fixture(scope="module")
def public_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def big(public_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BigRun]:
    shape = Shape(steps=200, nodes=60, commitments=2_000, at_work=20)
    with big_run(tmp_path_factory.mktemp("listeners"), shape, public_port=public_port) as made, made.orchestrator:
        yield made


def test_each_route_answers_at_its_listener_only(big: BigRun, public_port: int) -> None:
    """Whatever the OpenAPI document lists, what sends readers on, and what is no route."""
    members, public = big.orchestrator.url, f"http://127.0.0.1:{public_port}"
    key, domain = big.run_fixture.key("trainer"), big.run_fixture.domain

    def status(base: str, method: str, path: str, *, signed: bool) -> int:
        now, url = time.time(), base + path
        headers = sign_request(key, domain, method, members + path, content_hash(b""), now=now) if signed else {}
        with requests.request(method, url, headers=headers, timeout=BOUND, stream=True) as answer:
            if answer.status_code == 421 and method != "HEAD":
                assert answer.json()["detail"] == ONLY[base == public]
        return answer.status_code

    document = requests.get(f"{public}/openapi.json", timeout=BOUND).json()
    routes = [(method.upper(), path) for path, found in document["paths"].items() for method in found]
    routes += [("GET", "/"), ("GET", "/leaderboard"), ("HEAD", "/leaderboard"), ("GET", "/none"), ("DELETE", "/")]
    assert len(routes) > 35
    for method, route in routes:
        path = re.sub("{[^}]*}", "1", route.replace("{run}", str(big.run_fixture.run)))
        reads, polled = method in ("GET", "HEAD"), route.endswith("/demand")
        for signed in (False, True):
            elsewhere = public if signed or polled or not reads else members
            misdirected = [status(base, method, path, signed=signed) == 421 for base in (members, public)]
            expected = [False, False] if path in ALWAYS else [elsewhere == members, elsewhere == public]
            assert misdirected == expected, (method, path, signed)


async def test_crowd_of_readers_delays_no_member(big: BigRun, public_port: int) -> None:
    """64 connections read whole pages of the log, and documents, without a pause, while the trainer reports."""
    run_fixture, orchestrator = big.run_fixture, big.orchestrator
    run, node = run_fixture.run, big.rows.members.workers[0]
    paths = [f"/v1/runs/{run}/log", f"/v1/nodes/{node}", f"/v1/runs/{run}", f"/v1/runs/{run}/current"]
    answered, ended = [0], asyncio.Event()

    async def read(number: int) -> None:
        """Ask for one path again and again."""
        reader, writer = await asyncio.open_connection("127.0.0.1", public_port)
        asked = f"GET {paths[number % len(paths)]} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        while not ended.is_set():
            writer.write(asked)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = re.search(rb"content-length: ([0-9]+)", head)
            assert length is not None, head
            await reader.readexactly(int(length[1]))
            answered[0] += 1
        writer.transport.abort()

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
    crowd = [asyncio.create_task(read(number)) for number in range(CROWD)]
    try:
        await until(lambda: answered[0] >= CROWD, "each of the crowd has an answer")
        beside = await report()
    finally:
        ended.set()
        await asyncio.wait(crowd, timeout=BOUND)
    refused = re.findall(r'muster_requests_refused_total{kind="(\w+)"}', orchestrator.get("/metrics")[1].decode())
    assert set(refused) <= {"stranger", "list"}
    print(f"p99 alone {alone[-1]:.3f} s, beside {answered[0]} answers to the crowd {beside[-1]:.3f} s")
    # One event loop serves both: a report waits for answers that are being made, never for a place in a queue.
    assert beside[-1] < alone[-1] + WAIT_SECONDS
