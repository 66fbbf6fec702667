"""In a run with traps a stranger cannot tell what validators found, or that they found anything, until the seals close.

Two services have the same past and follow the same chain. One then gets verdicts, evidence, grades and a report of what
was trained on; the other a report of other files. Every GET of the OpenAPI document and every page are compared, for a
stranger and for members that are not concerned: what is served later is compared without a change of this file.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import requests

from muster.errors import RefusedError
from muster.grading.grades import grades_hash
from muster.protocol.eip712 import sign_message
from muster.protocol.hashes import content_hash, hash_bytes, hex_hash
from muster.protocol.masters import grades_commitment
from muster.protocol.messages import ShownGrades, StepReport
from muster.protocol.requests import sign_request
from muster.protocol.seals import closes_at
from muster.runtime.documents import canonical_json
from orchestrator.page.routes import pages
from orchestrator.tables import hidden_grades, hidden_spent, hidden_steps, hidden_verdicts
from testbed.chain.anvil import Anvil
from testbed.runs.run_fixture import VALIDATORS, Orchestrator, RunFixture
from testbed.runs.story import REJECTED, Story, content_of
from testbed.samples.messages import grade_of
from testbed.samples.terms import TRAPS
from testbed.samples.verification_context import right_text
from testbed.waiting import BOUND, until, wait_until

WORKERS = ("w1", "w2", "w3", "w4")
READERS = (None, "w2", "v4")
"""Who asks: a stranger, and members about whose work nothing was said, or that said nothing."""
PRIVATE = {"grade_tip": b"\x07" * 32, "grade_epochs": 1, "grade_epoch_steps": 1}
METRICS = {"reward": 0.5, "completions/mean_length": 20.0, "batch/files": 1.0}

Answer = tuple[int, Mapping[str, str], str]
"""Status, headers and text, without what differs by the clock or by the service's own name."""


class Twins:
    """The two services, and what is asked of both."""

    def __init__(self, run_fixture: RunFixture, told: Orchestrator, untold: Orchestrator) -> None:
        self.run_fixture, self.told, self.untold = run_fixture, told, untold
        self.story, self.other = Story(run_fixture, told), Story(run_fixture, untold)
        works = [content_of(worker, 0) for worker in WORKERS]
        files = [content_hash(data) for data, _ in works]
        nodes = [run_fixture.key(name).address for name in (*VALIDATORS, *WORKERS)]
        self.values: dict[str, list[Any]] = {
            "run": [run_fixture.run],
            "node": nodes,
            "address": [*nodes, run_fixture.key("operator of w1").address],
            "index": [0],
            "root": [root for _, root in works],
            "name": [*files, content_hash(evidence_of(run_fixture)), *METRICS],
            "file_hash": files,
            "metric": list(METRICS),
            "day": [datetime.now(UTC).strftime("%Y-%m-%d")],
            "step": [0, 1],
            "epoch": [1],
            "case": [0],
        }
        """What to ask for, by the name of a parameter."""

    def paths(self) -> list[str]:
        """Return every path with a GET in the OpenAPI document, and every page's, with all values of its parameters."""
        found = []
        for path, methods in self.told.json("/openapi.json")["paths"].items():
            given = methods.get("get", {}).get("parameters", [])
            queries = [one for one in given if one["in"] == "query"]
            needed = [one["name"] for one in queries if one["required"]]
            for filled in self._filled(path):
                found += [f"{filled}?{'&'.join(pairs)}" if needed else filled for pairs in self._pairs(needed)]
                others = [one for one in queries if not one["required"]]
                found += [f"{filled}?{one['name']}={value}" for one in others for value in self._choices(one)]
        paths = {route.path for route in pages.routes} | {"/metrics", "/"}  # type: ignore[attr-defined]
        return found + [filled for path in sorted(paths) if "static" not in path for filled in self._filled(path)]

    def _filled(self, path: str) -> Iterator[str]:
        names = [name.partition(":")[0] for name in re.findall(r"{([\w:]+)}", path)]
        plain = re.sub(r":\w+}", "}", path)
        for values in product(*(self.values[name] for name in names)):
            yield plain.format(**dict(zip(names, values, strict=True)))

    def _pairs(self, names: list[str]) -> Iterator[list[str]]:
        for values in product(*(self.values[name] for name in names)):
            yield [f"{name}={value}" for name, value in zip(names, values, strict=True)]

    def _choices(self, parameter: Mapping[str, Any]) -> list[Any]:
        kinds = [parameter["schema"], *parameter["schema"].get("anyOf", [])]
        return [value for kind in kinds for value in kind.get("enum", ())] + self.values.get(parameter["name"], [])

    def answers(
        self, service: Orchestrator, readers: Sequence[str | None], paths: list[str]
    ) -> dict[tuple[str | None, str], Answer]:
        """Return what a service answers, by who asks for what."""
        with requests.Session() as session:
            return {(name, path): self._answer(session, service, name, path) for name in readers for path in paths}

    def _answer(self, session: requests.Session, service: Orchestrator, name: str | None, path: str) -> Answer:
        url, headers = service.url + path, {"Accept-Encoding": "identity"}
        if name is not None:
            key = self.run_fixture.key(name)
            headers |= sign_request(key, self.run_fixture.domain, "GET", url, content_hash(b""), now=time.time())
        with session.get(url, headers=headers, timeout=BOUND, stream=True, allow_redirects=False) as reply:
            lines = reply.iter_lines() if path.endswith("/live") else iter([])
            body = b"\n".join(iter(lambda: next(lines), b"")) if path.endswith("/live") else reply.content
        given = {key.lower(): plain(value, service) for key, value in reply.headers.items()}
        kept = {key: value for key, value in given.items() if key not in OWN}
        text = plain(body.decode(errors="backslashreplace"), service)
        if path in ("/v1/join", "/join"):
            text = re.sub(r"\b0x[0-9a-f]{130}\b", "SIGNATURE", text)  # of the service's own URL
        if path == "/metrics":
            # They are kept for a second. Those that differ were made after this request, and count all before it.
            newer = wait_until(
                lambda: (text := requests.get(url, timeout=BOUND).text) != body.decode() and text, "others"
            )
            text = plain(newer, service)
            text = "\n".join(line for line in text.splitlines() if not NOISE.match(line))
        return reply.status_code, kept, text

    def differences(self, *readers: str | None) -> list[str]:
        """Return what one service answers these readers otherwise than the other."""
        paths = self.paths()
        assert self.told.json("/openapi.json") == self.untold.json("/openapi.json")
        self.untold.json("/openapi.json")  # as often as the other, for /metrics
        ours, theirs = (self.answers(service, readers, paths) for service in (self.told, self.untold))
        return [
            f"{name or 'a stranger'}: {path}: {first_difference(answer, theirs[name, path])}"
            for (name, path), answer in ours.items()
            if answer != theirs[name, path]
        ]


def first_difference(ours: Answer, theirs: Answer) -> str:
    """Return where two answers begin to differ."""
    one, other = str(ours), str(theirs)
    at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return f"{one[max(0, at - 60) : at + 40]!r} / {other[at : at + 40]!r}"


NOISE = re.compile(r"# |process_|python_|\w+_created|\w+_seconds|.*\"/(healthz|readyz|metrics)\"")
"""Lines of metrics that are of the process, of its start and of how long something took."""
OWN = ("content-length", "date", "x-request-id")
"""Headers that differ with each answer; how long a text is, it says itself."""
TIMES = re.compile(r"\b1[789]\d{8}(\.\d+)?\b|\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?")
"""Unix seconds of these years, and dates with a time."""


def plain(text: str, service: Orchestrator) -> str:
    """Return a text without the service's own name and database, and without times."""
    text = TIMES.sub("TIME", re.sub(r"\b[0-9a-f]{16}\.", "IDENTITY.", text))
    return text.replace(service.url, "URL").replace(service.url.partition("//")[2], "HOST")


@pytest.fixture
def past(start_anvil: Callable[..., Anvil], built_contracts: None, tmp_path: Path) -> RunFixture:
    """Return a run in which four workers have committed, early in an hour; its files are in `first`."""
    options = {"seed": "hidden", "workers": WORKERS, "accepts_required": 1, **PRIVATE, **TRAPS}
    run_fixture = asyncio.run(RunFixture.build_on(start_anvil(), tmp_path / "run", **options))
    asyncio.run(begin(run_fixture, tmp_path / "first"))
    return run_fixture


@pytest.fixture
def twins(past: RunFixture, tmp_path: Path) -> Iterator[Twins]:
    for name in ("told", "untold"):
        shutil.copytree(tmp_path / "first" / "storage", tmp_path / name / "storage")
    with Orchestrator(past, tmp_path / "told") as told, Orchestrator(past, tmp_path / "untold") as untold:
        yield Twins(past, told, untold)


async def begin(run_fixture: RunFixture, folder: Path) -> None:
    """Let four workers commit early in an hour, which both services then find in chain and storage."""
    async with run_fixture.local_chain() as dev:
        await dev.advance_to((await dev.now() // 3600 + 1) * 3600 + 60)
    await run_fixture.publish(0)
    with Orchestrator(run_fixture, folder) as first:
        for worker in WORKERS:
            await Story(run_fixture, first).work(worker, 0)
    await run_fixture.publish(1)


def evidence_of(run_fixture: RunFixture) -> bytes:
    """Return what of v2's bundle an orchestrator reads."""
    book, accuser = run_fixture.book, run_fixture.key("v2").address
    return canonical_json({"chain_id": book.chain_id, "runs": book.runs, "run": run_fixture.run, "accuser": accuser})


async def judge_all(story: Story) -> None:
    """Tell a service that the work of w1 and w4 was accepted and graded, and w3's rejected, with evidence."""
    run_fixture, text = story.run_fixture, right_text()
    for worker in ("w1", "w4"):
        grade = {
            "run": story.run,
            "node": run_fixture.key(worker).address,
            "index": 0,
            "root": content_of(worker, 0)[1],
        }
        grade |= {"validator": run_fixture.key("v1").address, "grades": hex_hash(grades_hash(text))}
        statement = sign_message(run_fixture.key("v1"), run_fixture.domain, grade_of(**grade))
        committed = grades_commitment(statement.grades, statement.salt, statement.validator)
        await story.judge("v1", worker, 0, grades=committed)
        async with story.client("v1") as client:
            await client.show_grades(ShownGrades(statement=statement, text=text))
    async with story.client("v2") as client:
        name = await client.put_evidence(evidence_of(run_fixture))
    await story.judge("v2", "w3", 0, evidence=name, **REJECTED)


async def report(story: Story, worker: str, metrics: Mapping[str, float]) -> None:
    """Report that a step was made of a worker's file."""
    batch, salt = [content_hash(content_of(worker, 0)[0])], "0x" + "ab" * 32
    async with story.client("trainer") as client:
        await client.post_step(StepReport(run=story.run, step=1, metrics=dict(metrics), batch=batch, salt=salt))


async def close_seals(run_fixture: RunFixture) -> None:
    async with run_fixture.local_chain() as dev:
        await dev.advance_to(closes_at(await dev.now() // 3600) + 1)
        await dev.advance(1)


async def test_stranger_cannot_tell_that_verdicts_came_until_the_seals_close(twins: Twins) -> None:
    await judge_all(twins.story)
    await report(twins.story, "w1", METRICS)
    await report(twins.other, "w2", {name: value + 1 for name, value in METRICS.items()})
    found = await asyncio.to_thread(twins.differences, *READERS)
    assert not found, "\n".join(found)
    await close_seals(twins.run_fixture)
    for story in (twins.story, twins.other):
        await until(lambda story=story: batch_of(story))
    found = await asyncio.to_thread(twins.differences, None)
    for path in ("verdicts", "grades", "nodes", "evidence", "checkpoints", "leaderboard", "summary", "metrics"):
        assert any(f"/{path}" in one for one in found), (path, found)


def batch_of(story: Story) -> list[Any]:
    """Return the files that the page shows of step 1."""
    return story.orchestrator.json(f"/v1/runs/{story.run}/checkpoints/1").get("batch", [])


async def test_trainer_and_node_read_at_once_what_others_read_later(past: RunFixture, tmp_path: Path) -> None:
    with Orchestrator(past, tmp_path / "first") as orchestrator:
        story = Story(past, orchestrator)
        await judge_all(story)
        await seen_by_trainer_and_node(story)
        orchestrator.kill()
    (tmp_path / "first" / "orchestrator.db").unlink()
    with Orchestrator(past, tmp_path / "first") as orchestrator:  # rebuilt from storage
        story = Story(past, orchestrator)
        await seen_by_trainer_and_node(story)
        await report(story, "w1", METRICS)
        assert await trainable(story, "trainer") == [content_hash(content_of("w4", 0)[0])]
        assert await waiting(story, "trainer") == 8
        orchestrator.kill()
    await close_seals(past)
    with Orchestrator(past, tmp_path / "first") as orchestrator:
        story = Story(past, orchestrator)
        await until(lambda: batch_of(story))
        nodes = {line["address"]: line for line in orchestrator.json(f"/v1/runs/{story.run}/summary")["nodes"]}
        assert nodes[past.key("w1").address]["accepted"] == 1
        assert nodes[past.key("w3").address]["rejected"] == {"wrong_reward": 1}
        bundle = evidence_of(past)
        assert orchestrator.get(f"/v1/evidence/{content_hash(bundle)}") == (200, bundle)
        assert await trainable(story, "v1") == [content_hash(content_of("w4", 0)[0])]
        for table in (hidden_verdicts, hidden_grades, hidden_steps, hidden_spent):
            assert await orchestrator.rows(table, *table.columns.keys()) == []


async def seen_by_trainer_and_node(story: Story) -> None:
    """Check what those read that may read what is hidden, and that no others do."""
    files = [content_hash(content_of(worker, 0)[0]) for worker in WORKERS]
    assert await trainable(story, "trainer") == [files[0], files[3]]
    assert await trainable(story, "v1") == []
    assert (await waiting(story, "trainer"), await waiting(story, "v1")) == (12, 16)
    for asking, found in (("w3", [(0, False, "wrong_reward", 3)]), ("v2", []), (None, [])):
        async with story.client(asking) as client:
            node = await client.node(story.run_fixture.key("w3").address)
        judged = [(one.index, one.accepted, one.reason, one.position) for one in node.inspections]
        assert (judged, node.verdicts, node.rejected) == (found, [], {}), asking
    assert [await waits(story, "v1", worker) for worker in WORKERS] == [False, True, False, False]
    with pytest.raises(RefusedError, match="no active validator"):
        await waits(story, "w1", "w1")


async def waits(story: Story, name: str, worker: str) -> bool:
    """Return whether a member is told that a worker's commitment waits for a verdict."""
    node, (_, root) = story.run_fixture.key(worker).address, content_of(worker, 0)
    async with story.client(name) as client:
        return await client.still_waits(story.run, node, 0, hash_bytes(root))


async def trainable(story: Story, name: str) -> list[str]:
    """Return the files that are listed for a member as accepted."""
    async with story.client(name) as client:
        return [work.file_hash for work in await client.accepted(story.run)]


async def waiting(story: Story, name: str) -> int:
    async with story.client(name) as client:
        return (await client.demand(story.run)).waiting_groups
