"""The stream of the run's state from a real orchestrator: some hundred watchers, a restart, its end, and its room."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from explorer.live import LiveState
from muster.protocol.messages import StepReport
from testbed.runs.run_fixture import Orchestrator, RunFixture
from testbed.waiting import BOUND

CROWD = 300
ADDRESSES = 20
"""Of this machine, among which the crowd divides."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(scope="module")
def run_fixture(deployment: Any, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    folder = tmp_path_factory.mktemp("live")
    run_fixture = asyncio.run(RunFixture.build(folder, deployment.settings, seed="live", workers=("w1",)))
    asyncio.run(run_fixture.publish(0))
    return run_fixture


@pytest.fixture
def orchestrator(run_fixture: RunFixture, tmp_path: Path) -> Iterator[Orchestrator]:
    with Orchestrator(run_fixture, tmp_path / "orchestrator", watchers=700) as running:
        yield running


class Watching:
    """One stream, read message by message."""

    def __init__(self, streams: Streams) -> None:
        self.reader, self.writer = streams
        self.last_event_id = ""
        self.retry = ""

    async def message(self) -> dict[str, Any] | None:
        """Return the next state; None once the answer has ended as it should."""
        async with asyncio.timeout(BOUND):
            while True:
                size = int(await self.reader.readline(), 16)
                body = (await self.reader.readexactly(size + 2)).decode()
                if size == 0:
                    return None
                fields = dict(line.split(": ", 1) for line in body.splitlines() if ": " in line)
                self.retry = fields.get("retry", self.retry)
                self.last_event_id = fields.get("id", self.last_event_id)
                if "data" in fields:
                    LiveState.model_validate_json(fields["data"])
                    return json.loads(fields["data"])

    async def until(self, kind: str) -> list[dict[str, Any]]:
        """Return the lines of the feed up to one of a kind."""
        lines: list[dict[str, Any]] = []
        while not any(line["kind"] == kind for line in lines):
            state = await self.message()
            assert state is not None
            lines += state["events"]
        return lines


def head_of(run_fixture: RunFixture, last_event_id: str = "") -> bytes:
    lines = [f"GET /v1/runs/{run_fixture.run}/live HTTP/1.1", "Host: x", f"Last-Event-ID: {last_event_id}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


async def opened(
    run_fixture: RunFixture, orchestrator: Orchestrator, source: str = "127.0.0.1", last_event_id: str = ""
) -> tuple[bytes, Streams]:
    """Ask for the stream; return the head of the answer too."""
    streams = await asyncio.open_connection("127.0.0.1", orchestrator.port, local_addr=(source, 0), limit=1 << 20)
    streams[1].write(head_of(run_fixture, last_event_id))
    async with asyncio.timeout(BOUND):
        return await streams[0].readuntil(b"\r\n\r\n"), streams


@asynccontextmanager
async def watching(
    run_fixture: RunFixture, orchestrator: Orchestrator, count: int, last_event_id: str = ""
) -> AsyncIterator[list[Watching]]:
    """Watchers from several addresses, closed afterwards."""
    sources = [f"127.0.1.{1 + number % ADDRESSES}" for number in range(count)]
    answers = await asyncio.gather(*(opened(run_fixture, orchestrator, source, last_event_id) for source in sources))
    try:
        assert {head.split(b"\r\n")[0] for head, _ in answers} == {b"HTTP/1.1 200 OK"}
        yield [Watching(streams) for _, streams in answers]
    finally:
        for _, (_, writer) in answers:
            writer.transport.abort()


async def report(run_fixture: RunFixture, orchestrator: Orchestrator, step: int, **metrics: float) -> None:
    async with run_fixture.client(orchestrator.url, "trainer") as trainer:
        await trainer.post_step(StepReport(run=run_fixture.run, step=step, metrics=dict(metrics)))


async def test_a_crowd_sees_a_step_and_workers_are_served(run_fixture: RunFixture, orchestrator: Orchestrator) -> None:
    async with watching(run_fixture, orchestrator, CROWD) as crowd:
        states = await asyncio.gather(*(one.message() for one in crowd))
        for one, state in zip(crowd, states, strict=True):
            assert state is not None
            assert (one.retry, state["step"], state["workers"]) == ("2000", 0, 1)
            assert [line["kind"] for line in state["events"]] == ["joined"] * 5
        await report(run_fixture, orchestrator, 1, reward=0.5)
        updates = await asyncio.gather(*(one.until("step") for one in crowd))
        assert {json.dumps(lines) for lines in updates} == {json.dumps(updates[0])}
        assert [(line["kind"], line["text"]) for line in updates[0]] == [("step", "Step 1: reward 0.5")]
        async with run_fixture.client(orchestrator.url, "w1", attempts=1) as worker:
            assert (await worker.demand(run_fixture.run)).run == run_fixture.run


async def test_watchers_resume_after_restart(run_fixture: RunFixture, orchestrator: Orchestrator) -> None:
    """Shutdown does not wait for a watcher that never reads. Returning watchers get the events they missed."""
    _, deaf = await opened(run_fixture, orchestrator)
    async with watching(run_fixture, orchestrator, CROWD) as crowd:
        await asyncio.gather(*(one.message() for one in crowd))
        await report(run_fixture, orchestrator, 1, reward=0.5)
        await asyncio.gather(*(one.until("step") for one in crowd))
        code, said = await asyncio.to_thread(orchestrator.stop)
        assert (code, "graceful" in said + orchestrator.json_log.read_text()) == (0, False)
        assert await asyncio.gather(*(one.message() for one in crowd)) == [None] * CROWD
        seen = {one.last_event_id for one in crowd}
    deaf[1].close()
    assert len(seen) == 1
    await asyncio.to_thread(orchestrator.start)
    await report(run_fixture, orchestrator, 2, reward=0.75)
    async with watching(run_fixture, orchestrator, 50, seen.pop()) as crowd:
        states = await asyncio.gather(*(one.message() for one in crowd))
        for state in states:
            assert state is not None
            assert [line["text"] for line in state["events"]] == ["Step 2: reward 0.75"]
            assert (state["skipped"], state["metrics"], state["metrics_step"]) == (0, {"reward": 0.75}, 2)


async def test_watchers_have_room_of_their_own(run_fixture: RunFixture, orchestrator: Orchestrator) -> None:
    """One address gets at most half of the watchers' connections. Other addresses are still served."""
    answers = await asyncio.gather(*(opened(run_fixture, orchestrator, "127.0.2.1") for _ in range(352)))
    refused = [(head, streams) for head, streams in answers if not head.startswith(b"HTTP/1.1 200 ")]
    assert len(refused) == 2
    for head, (reader, _) in refused:
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in head.lower()
        assert json.loads(await reader.read(10_000))["title"] == "Too many requests"
    answers.append(await opened(run_fixture, orchestrator, "127.0.2.2"))
    assert answers[-1][0].startswith(b"HTTP/1.1 200 ")
    for path in ("/healthz", f"/v1/runs/{run_fixture.run}/demand", f"/v1/runs/{run_fixture.run}/overview"):
        assert (await asyncio.to_thread(orchestrator.get, path))[0] == 200
    _, metrics = await asyncio.to_thread(orchestrator.get, "/metrics")
    assert b"\nmuster_watchers 351.0\n" in metrics
    for _, (_, writer) in answers:
        writer.close()


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("series", "query.name"),
        ("series?name=a&first=9&last=8", "the steps end at 8, before they begin at 9"),
        ("series?name=a&points=2001", "query.points"),
        ("series?" + "&".join(f"name={number}" for number in range(17)), "query.name"),
        ("series?name=" + "a" * 81, "query.name"),
        ("workers?order=nothing", "query.order"),
        ("workers?limit=201", "query.limit"),
        ("validators?offset=-1", "query.offset"),
        ("workers?search=" + "a" * 61, "query.search"),
    ],
)
def test_malformed_parameters_get_a_problem_document(
    run_fixture: RunFixture, shared: Orchestrator, path: str, detail: str
) -> None:
    status, body = shared.get(f"/v1/runs/{run_fixture.run}/{path}")
    problem = json.loads(body)
    assert (status, problem["status"], problem["title"]) == (422, 422, "Malformed")
    assert detail in problem["detail"]


@pytest.fixture(scope="module")
def shared(run_fixture: RunFixture, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orchestrator]:
    """An orchestrator that runs for the whole module, with a title and a description."""
    words = {"title": "Sums <b>", "about": "Adds numbers.\n\nNothing else."}
    with Orchestrator(run_fixture, tmp_path_factory.mktemp("shared"), **words) as running:
        yield running


def test_the_owners_words_are_passed_on_as_text(run_fixture: RunFixture, shared: Orchestrator) -> None:
    found = json.loads(shared.get(f"/v1/runs/{run_fixture.run}/overview")[1])
    assert (found["title"], found["about"]) == ("Sums <b>", "Adds numbers.\n\nNothing else.")
    assert found["owner"] == run_fixture.key("owner").address
    assert found["addresses"]["runs"] == run_fixture.book.runs


def test_the_stream_of_another_run_is_not_found(run_fixture: RunFixture, shared: Orchestrator) -> None:
    assert shared.get(f"/v1/runs/{run_fixture.run + 1}/live")[0] == 404
