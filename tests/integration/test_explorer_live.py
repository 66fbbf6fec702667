"""The state of the run as a real explorer answers it: to a hundred pages that poll, and through a restart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from explorer.live import LiveState
from muster.protocol.messages import StepReport
from testbed.runs.run_fixture import Explorer, Orchestrator, RunFixture
from testbed.waiting import BOUND, until

CROWD = 120


@pytest.fixture(scope="module")
def run_fixture(deployment: Any, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    folder = tmp_path_factory.mktemp("live")
    run_fixture = asyncio.run(RunFixture.build(folder, deployment.settings, seed="live", workers=("w1",)))
    asyncio.run(run_fixture.publish(0))
    return run_fixture


@pytest.fixture(scope="module")
def orchestrator(run_fixture: RunFixture) -> Iterator[Orchestrator]:
    """One with a title and a description."""
    words = {"title": "Sums <b>", "about": "Adds numbers.\n\nNothing else."}
    with Orchestrator(run_fixture, run_fixture.folder / "orchestrator", **words) as running:
        yield running


@pytest.fixture(scope="module")
def explorer(run_fixture: RunFixture, orchestrator: Orchestrator) -> Iterator[Explorer]:
    with Explorer(run_fixture, run_fixture.folder / "explorer", orchestrator.url) as running:
        yield running


class Page:
    """A page that polls over a connection of its own, and asks for what it lacks."""

    def __init__(self, explorer: Explorer) -> None:
        self.client = httpx2.AsyncClient(trust_env=False, timeout=BOUND, base_url=explorer.url)
        self.path, self.tag = f"/v1/runs/{explorer.run}/live", ""

    async def ask(self) -> LiveState | None:
        """Return the state; None where it is the one that the page has."""
        reply = await self.client.get(self.path, headers={"If-None-Match": self.tag} if self.tag else {})
        assert reply.headers["cache-control"] == "no-cache"
        if reply.status_code == 304:
            assert (reply.headers["etag"], reply.content) == (self.tag, b"")
            return None
        assert reply.status_code == 200, reply.text
        self.tag = reply.headers["etag"]
        return LiveState.model_validate_json(reply.content)

    async def until_told(self, text: str) -> LiveState:
        """Ask until an event with this text is the newest; return the state that has it."""
        async with asyncio.timeout(BOUND):
            while True:
                state = await self.ask()
                if state is not None and state.events[-1].text == text:
                    return state
                await asyncio.sleep(0.5)


@asynccontextmanager
async def opened(explorer: Explorer, count: int) -> AsyncIterator[list[Page]]:
    pages = [Page(explorer) for _ in range(count)]
    try:
        yield pages
    finally:
        await asyncio.gather(*(page.client.aclose() for page in pages))


async def report(run_fixture: RunFixture, orchestrator: Orchestrator, step: int, **metrics: float) -> None:
    async with run_fixture.client(orchestrator.url, "trainer") as trainer:
        await trainer.post_step(StepReport(run=run_fixture.run, step=step, metrics=dict(metrics)))


async def test_a_crowd_sees_a_step(run_fixture: RunFixture, orchestrator: Orchestrator, explorer: Explorer) -> None:
    async with opened(explorer, CROWD) as crowd:
        for state in await asyncio.gather(*(page.ask() for page in crowd)):
            assert state is not None
            assert (state.step, state.workers) == (0, 1)
            assert [event.kind for event in state.events].count("joined") == 5
        await report(run_fixture, orchestrator, 1, reward=0.5)
        states = await asyncio.gather(*(page.until_told("Step 1: reward 0.5") for page in crowd))
        assert {(state.metrics_step, state.metrics["reward"]) for state in states} == {(1, 0.5)}

        async def is_known() -> bool:
            return await crowd[0].ask() is None

        await until(is_known, "who has the state is told so")


async def test_open_pages_do_not_hold_up_a_restart(
    run_fixture: RunFixture, orchestrator: Orchestrator, explorer: Explorer
) -> None:
    """And see afterwards what they missed."""
    async with opened(explorer, CROWD) as crowd:
        await asyncio.gather(*(page.ask() for page in crowd))
        code, said = await asyncio.to_thread(explorer.stop)
        assert (code, "graceful" in said + explorer.json_log.read_text()) == (0, False)
        await report(run_fixture, orchestrator, 2, reward=0.75)
        await asyncio.to_thread(explorer.start)
        states = await asyncio.gather(*(page.until_told("Step 2: reward 0.75") for page in crowd))
        assert {(state.metrics_step, state.metrics["reward"]) for state in states} == {(2, 0.75)}


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
def test_malformed_parameters_get_a_problem_document(explorer: Explorer, path: str, detail: str) -> None:
    status, body = explorer.get(f"/v1/runs/{explorer.run}/{path}")
    problem = json.loads(body)
    assert (status, problem["status"], problem["title"]) == (422, 422, "Malformed")
    assert detail in problem["detail"]


def test_the_owners_words_are_passed_on_as_text(run_fixture: RunFixture, explorer: Explorer) -> None:
    found = explorer.json(f"/v1/runs/{explorer.run}/overview")
    assert (found["title"], found["about"]) == ("Sums <b>", "Adds numbers.\n\nNothing else.")
    assert found["owner"] == run_fixture.key("owner").address
    assert found["addresses"]["runs"] == run_fixture.book.runs


def test_the_state_of_another_run_is_not_found(explorer: Explorer) -> None:
    assert explorer.get(f"/v1/runs/{explorer.run + 1}/live")[0] == 404
