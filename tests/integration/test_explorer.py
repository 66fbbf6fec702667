"""A stranger's explorer of a run: what it shows, what it needs for that, and that it may die at any moment."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator
from copy import copy
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from fastapi.routing import APIRoute

from explorer.routes import pages
from muster.clients.orchestrator import OrchestratorClient
from muster.contracts.runs import CheckpointPublished, WorkCommitted
from muster.protocol.hashes import content_hash
from muster.protocol.messages import SignedText, StepReport
from testbed.chain.anvil import free_port
from testbed.http import Reply, get, serving
from testbed.processes import Muster
from testbed.runs.run_fixture import Explorer, Orchestrator, RunFixture
from testbed.runs.shown import expect_alike
from testbed.runs.story import REJECTED, Story, content_of
from testbed.waiting import BOUND, until

WORKERS: Final = ("w1", "w2")
KILLS: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Seconds after which an explorer that was started is killed."""
NEEDED: Final = r"/v1/join|/v1/files/0x[0-9a-f]{{64}}|/v1/runs/{run}(|/log|/current|/summaries/[0-9-]+)"
"""All that an explorer may ask an orchestrator for."""
OF_PROCESS: Final = {"/healthz", "/readyz", "/version", "/v1/join"}
"""Documents that both services have."""


class Told(Story):
    """What happens in the tests, each request sent once, and what chain and log say of it."""

    made = 0
    """Commitments of each worker."""

    def client(self, name: str | None) -> OrchestratorClient:
        return self.run_fixture.client(self.orchestrator.url, name, attempts=1)

    async def go_on(self) -> None:
        """Let w1's next work be accepted, w2's be rejected, and the trainer publish the step after."""
        index, step = self.made, self.made + 1
        self.made += 1
        for worker in WORKERS:
            await self.work(worker, index, step=index)
        await self.accept("w1", index, step=index)
        file_hash = content_hash(content_of("w1", index)[0])
        first, *_ = await self.called("w2", index)
        async with self.client(first) as validator:
            evidence = await validator.put_evidence(b"evidence")
        await self.judge(first, "w2", index, step=index, evidence=evidence, **REJECTED)
        async with self.client("trainer") as trainer:
            metrics, batch = {"reward": index / 4}, [file_hash]
            await trainer.post_step(StepReport(run=self.run, step=step, metrics=metrics, batch=batch))
        await self.run_fixture.publish(step)

    async def sums(self) -> dict[str, Any]:
        """Return what chain and log say."""
        async with self.run_fixture.chain("stranger") as chain, self.client(None) as client:
            committed = [event for event in await chain.all_events(WorkCommitted) if event.run == self.run]
            steps = [event for event in await chain.all_events(CheckpointPublished) if event.run == self.run]
            page = await client.log(self.run)
            verdicts = [one for one, _ in (await client.verdicts(self.run))[0]]
        signed = [SignedText.model_validate_json(one.text) for one in page.entries if one.kind == "report"]
        reports = [StepReport.model_validate_json(one.text) for one in signed]
        accepts = Counter((one.node, one.index) for one in verdicts if one.accepted)
        return {
            "commitments": Counter(event.node for event in committed),
            "accepted": Counter(node for (node, _), count in accepts.items() if count == 2),
            "rejected": Counter(one.node for one in verdicts if not one.accepted),
            "accepts": Counter(one.validator for one in verdicts if one.accepted),
            "rejections": Counter(one.validator for one in verdicts if not one.accepted),
            "used": Counter({self.run_fixture.key("w1").address: sum(len(one.batch) for one in reports)}),
            "roots": {event.step: "0x" + event.manifest_root.hex() for event in steps},
            "metrics": {one.step: one.metrics for one in reports},
        }


def sums_of(explorer: Explorer) -> dict[str, Any]:
    """Return the same as an explorer shows it; {} when it does not answer."""
    summary = explorer.summary()
    if not summary:
        return {}
    kinds = ("commitments", "accepted", "accepts", "rejections", "used")
    found: dict[str, Any] = {
        kind: Counter({line["address"]: line[kind] for line in summary["nodes"] if line[kind]}) for kind in kinds
    }
    rejected = {line["address"]: sum(line["rejected"].values()) for line in summary["nodes"] if line["rejected"]}
    return found | {
        "rejected": Counter(rejected),
        "roots": {line["step"]: line["manifest_root"] for line in summary["steps"] if line["manifest_root"]},
        "metrics": {line["step"]: line["metrics"] for line in summary["steps"] if line["metrics"]},
    }


@pytest.fixture(scope="module")
def run_fixture(deployment: Any, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    folder = tmp_path_factory.mktemp("explorer")
    run_fixture = asyncio.run(RunFixture.build(folder, deployment.settings, seed="explorer", workers=WORKERS))
    asyncio.run(run_fixture.publish(0))
    return run_fixture


class Narrow:
    """A proxy that passes on what an explorer needs, and refuses all else."""

    def __init__(self, run: int, orchestrator: str = "") -> None:
        self.orchestrator = orchestrator
        self._needed, self.asked = re.compile(NEEDED.format(run=run)), set[str]()

    def passes(self, path: str) -> bool:
        return self._needed.fullmatch(path) is not None

    def answer(self, asked: BaseHTTPRequestHandler) -> Reply:
        path, _, _ = asked.path.partition("?")
        self.asked.add(path)
        if not self.passes(path):
            return Reply(b"{}", 403)
        status, body = get(self.orchestrator + asked.path)
        return Reply(body, status, {"Content-Type": "application/json"})


@pytest.fixture(scope="module")
def narrow(run_fixture: RunFixture) -> Iterator[tuple[Narrow, str]]:
    proxy = Narrow(run_fixture.run)
    with serving(proxy.answer) as url:
        yield proxy, url


@pytest.fixture(scope="module")
def place(run_fixture: RunFixture, narrow: tuple[Narrow, str]) -> Iterator[tuple[Told, Explorer]]:
    """A story, whose orchestrator strangers reach through the proxy, and an explorer beside it."""
    proxy, url = narrow
    orchestrator = Orchestrator(run_fixture, run_fixture.folder / "orchestrator", url=url)
    explorer = Explorer(run_fixture, run_fixture.folder / "explorer", url)
    hosts = [orchestrator.url.removeprefix("http://")]
    orchestrator.change({"orchestrator.explorer_url": explorer.url, "orchestrator.hosts": hosts})
    proxy.orchestrator = orchestrator.url
    with orchestrator, explorer:
        yield Told(run_fixture, orchestrator), explorer


async def test_sums_are_those_of_chain_and_log(place: tuple[Told, Explorer]) -> None:
    story, explorer = place
    for _ in range(2):
        await story.go_on()
    expected = await story.sums()
    assert expected["accepted"] == {story.run_fixture.key("w1").address: story.made}
    assert expected["rejected"] == {story.run_fixture.key("w2").address: story.made}
    await until(lambda: sums_of(explorer) == expected, lambda: (sums_of(explorer), expected))


async def test_a_stranger_needs_url_and_endpoint_only(
    place: tuple[Told, Explorer], narrow: tuple[Narrow, str], tmp_path: Path
) -> None:
    """In an empty home, by command. Behind a proxy that passes on description, log, list, files and summaries."""
    (story, explorer), (proxy, url) = place, narrow
    words = ("explorer", url, "--rpc-url", story.run_fixture.settings.rpc_url, "--folder", tmp_path / "of a stranger")
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    process = Muster((*words, "--port", port), tmp_path / "said.log", environment={"HOME": str(tmp_path)})
    with process:
        process.wait_until(lambda: get(f"{base}/readyz")[0] == 200, "it is ready")
        strangers = copy(explorer)
        strangers.port = port
        expected = await story.sums()
        await until(lambda: sums_of(strangers) == expected)
        await until(lambda: sums_of(explorer) == expected)
        await expect_alike(strangers, explorer)
    assert {path for path in proxy.asked if not proxy.passes(path)} == set()


async def test_killed_at_any_moment_it_shows_what_a_new_one_shows(
    place: tuple[Told, Explorer], narrow: tuple[Narrow, str], tmp_path: Path
) -> None:
    """While members go on, of whom none notices: each request is sent once."""
    (story, explorer), (_, url) = place, narrow

    async def go_on() -> None:
        for _ in range(4):
            await story.go_on()

    explorer.kill()
    going = asyncio.create_task(go_on())
    for seconds in KILLS:
        explorer.spawn()
        await asyncio.sleep(seconds)
        assert explorer.is_running, explorer.said
        explorer.kill()
    await going
    await asyncio.to_thread(explorer.start)
    expected = await story.sums()
    with Explorer(story.run_fixture, tmp_path, url) as new:
        for one in (explorer, new):
            await until(lambda one=one: sums_of(one) == expected, lambda one=one: (sums_of(one), expected))
        await expect_alike(explorer, new)


def test_the_orchestrator_sends_readers_of_pages_to_the_explorer(place: tuple[Told, Explorer]) -> None:
    """Of all that the explorer has, with the query, and not of what the orchestrator itself answers."""
    story, explorer = place
    documents = set(explorer.json("/openapi.json")["paths"]) - OF_PROCESS
    routes = documents | {route.path for route in pages.routes if isinstance(route, APIRoute)}
    assert len(routes) > 35
    with httpx2.Client(trust_env=False, timeout=BOUND, base_url=story.orchestrator.url) as client:
        for route in routes:
            path = re.sub("{[^}]*}", "1", route.replace("{run}", str(story.run)))
            reply = client.get(f"{path}?name=reward&step=1")
            assert (reply.status_code, reply.headers["location"]) == (308, f"{explorer.url}{path}?name=reward&step=1")
        assert client.get(f"/v1/nodes/{story.run_fixture.key('w1').address}").status_code == 200
        assert client.get("/nothing").status_code == 404


def test_an_orchestrator_that_names_no_explorer_says_so(run_fixture: RunFixture, tmp_path: Path) -> None:
    with Orchestrator(run_fixture, tmp_path) as orchestrator:
        for path in ("/", "/nodes/0x00/1?before=2", f"/v1/runs/{run_fixture.run}/summary"):
            status, body = orchestrator.get(path)
            problem = json.loads(body)
            assert (status, problem["title"]) == (410, "Elsewhere")
            assert problem["detail"] == "pages and their documents are an explorer's, and the settings name none"
            assert problem["hint"] == f"anybody can run one: muster explorer {orchestrator.url}"


def test_the_page_needs_nothing_from_elsewhere(place: tuple[Told, Explorer]) -> None:
    page = place[1].get("/")[1].decode()
    assert "<title>Overview · Run" in page
    addresses = re.findall(r'(?:src|href|action)="([^"]*)"', page)
    assert len(addresses) > 20
    assert [address for address in addresses if not re.match(r"/(?!/)|#", address)] == []
