"""A day of work goes once its deadlines are over, and a rebuild from chain and storage shows the same page and totals.

Real chain, whose clock the test moves, real processes, on a folder with SQLite and on S3 with PostgreSQL.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.clients.storage import ContentStore, SegmentStore
from muster.errors import RefusedError
from muster.ledger.summaries import read_day
from muster.ledger.tables import files, tallies
from muster.protocol.acceptance import date_of
from muster.protocol.hashes import content_hash
from muster.protocol.messages import StepReport
from muster.runtime.documents import canonical_json
from orchestrator.retention import KINDS
from testbed.chain.anvil import Anvil
from testbed.runs.run_fixture import VALIDATORS, Explorer, Orchestrator, RunFixture, some_hash
from testbed.runs.story import Story
from testbed.samples.terms import keys_of
from testbed.servers.s3 import Endpoint
from testbed.waiting import until

DAY = 86_400
FORGETTABLE = ("time", "block", "block_time", "events")
"""What differs with the clock, or is not kept by a rebuild whatever goes."""


class DayStory(Story):
    """What happens in the test."""

    def __init__(self, run_fixture: RunFixture, orchestrator: Orchestrator, explorer: Explorer) -> None:
        super().__init__(run_fixture, orchestrator)
        self.explorer = explorer

    async def begin_day(self, day: int | None = None) -> int:
        """Move the chain's clock to a little after the beginning of a day, the next one without `day`; its number."""
        async with self.run_fixture.local_chain() as dev:
            day = await dev.now() // DAY + 1 if day is None else day
            await dev.advance_to(day * DAY + 60)
        return day

    def evidence(self, validator: str) -> bytes:
        """Return what of a bundle an orchestrator reads."""
        book, accuser = self.run_fixture.book, self.run_fixture.key(validator).address
        return canonical_json({"chain_id": book.chain_id, "runs": book.runs, "run": self.run, "accuser": accuser})

    async def page(self) -> dict[str, Any]:
        """Wait until the page counts all work and verdicts; return all of it but what a clock changes."""

        async def found() -> dict[str, Any] | None:
            summary = await asyncio.to_thread(self.explorer.summary)
            sums = [sum(line[kind] for line in summary.get("nodes", [])) for kind in ("commitments", "accepted")]
            if sums != [6, 4]:
                return None
            return {name: value for name, value in summary.items() if name not in FORGETTABLE}

        return await until(found)

    async def nodes(self) -> list[Any]:
        """How the work of each worker ended, and what is told of two commitments of a day that went."""
        works = [(self.run_fixture.key(name).address, index) for name, index in (("w1", 0), ("w2", 0))]
        told = [self.orchestrator.json(f"/v1/nodes/{node}") for node, _ in works]
        told += [self.explorer.json(f"/v1/runs/{self.run}/nodes/{node}/commitments/{index}") for node, index in works]
        return [{name: value for name, value in one.items() if name not in ("verdicts", "hourly_gas")} for one in told]

    async def counted(self) -> dict[tuple[Any, ...], int]:
        rows = await self.orchestrator.rows(tallies, "node", "status", "reason", "count")
        return {(node, status, reason): number for node, status, reason, number in rows}

    async def files(self) -> Counter[str]:
        """How many files of each kind storage has."""
        url = str(self.orchestrator.settings["orchestrator.storage_url"])
        found = {kind: len([n async for n in ContentStore(url, kind).names()]) for kind in (*KINDS, "summaries")}
        return Counter({**found, "log": len(await SegmentStore(url, "log").firsts())})

    async def holds(self, **expected: int) -> None:
        """Wait until storage has so many files of these kinds."""

        async def found() -> bool:
            files = await self.files()
            return {kind: files[kind] for kind in expected} == expected

        await until(found)

    async def has_dated_evidence(self) -> bool:
        found = await self.orchestrator.rows(files, "kind", "holder", "hour")
        return [hour > 0 for kind, holder, hour in found if holder and kind == "evidence"] == [True, True]

    def rebuild(self, database_url: str) -> None:
        """Kill it, and start it with nothing but chain and storage."""
        self.orchestrator.kill()
        shutil.rmtree(self.orchestrator.folder / "state")
        self.orchestrator.change({"orchestrator.database_url": database_url})
        self.orchestrator.start()
        self.show_again()

    def show_again(self) -> None:
        """Kill the explorer, and start another with nothing."""
        self.explorer.kill()
        shutil.rmtree(self.explorer.folder / "state")
        self.explorer.start()


@pytest.fixture
async def story(
    start_anvil: Callable[..., Anvil],
    built_contracts: None,
    new_database_url: Callable[[], str],
    s3: Endpoint | None,
    tmp_path: Path,
) -> Any:
    run_fixture = await RunFixture.build_on(start_anvil(), tmp_path, seed="retention", workers=("w1", "w2"))
    run_fixture.s3 = s3
    with (
        Orchestrator(run_fixture, tmp_path / "orchestrator", database_url=new_database_url()) as orchestrator,
        Explorer(run_fixture, tmp_path / "explorer", orchestrator.url) as explorer,
    ):
        yield DayStory(run_fixture, orchestrator, explorer)


@pytest.mark.slow
async def test_a_day_goes_after_its_deadlines_and_page_and_totals_stay(
    story: DayStory, new_database_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, orchestrator = story.run, story.orchestrator
    if story.run_fixture.s3 is not None:
        for name, value in story.run_fixture.s3.environment.items():
            monkeypatch.setenv(name, value)

    # 1. A day of work: accepted and used, accepted, rejected, and not judged at all. The day after has some too.
    day = await story.begin_day()
    await story.run_fixture.publish(0)
    used = [await story.work("w1", index) for index in range(3)]
    rejected = await story.work("w2", 0)
    await story.work("w2", 1)
    for index in range(3):
        await story.accept("w1", index)
    rejecting, *_ = await story.called("w2", 0)
    await story.reject(rejecting, "w2", 0, story.evidence(rejecting))
    async with story.client("trainer") as trainer:
        await trainer.post_step(StepReport(run=run, step=1, metrics={"reward": 0.5}, batch=used[:1], dropped=used[1:2]))
    other = next(name for name in VALIDATORS if name != rejecting)
    async with story.client(other) as validator:
        await validator.put_evidence(story.evidence(other))  # which no verdict names
    await story.begin_day(day + 1)
    kept = await story.work("w1", 3)
    await story.accept("w1", 3)
    await story.holds(files=6, uploads=6, evidence=2, summaries=0)

    # 2. Past its last deadline it is swept: a process that is killed at each step of that.
    await story.begin_day(day + 1 + 7)
    before, totals = await story.page(), await story.counted()
    assert {one[1:]: number for one, number in totals.items()} == {
        ("accepted", ""): 4, ("rejected", "wrong_reward"): 1, ("pending", ""): 1,
    }  # fmt: skip
    orchestrator.stop()
    orchestrator.change({"orchestrator.retention": "deadlines"})
    points = "orchestrator.closed", "orchestrator.summarised", "orchestrator.swept"
    orchestrator.environment |= {"MUSTER_FAILPOINT": ",".join(points), "MUSTER_FAILPOINT_DIR": str(orchestrator.folder)}
    for point in points:
        orchestrator.spawn()
        orchestrator.end()
        assert (orchestrator.folder / point).exists()
    orchestrator.start()

    # 3. What the other day needs is here, and nothing else. The log has two verdicts, and the report.
    await story.holds(files=1, uploads=1, log=3, summaries=1, evidence=2)
    assert await story.page() == before
    assert await story.counted() == totals
    w1, w2 = (story.run_fixture.key(name).address for name in ("w1", "w2"))
    async with story.client("v1") as reader:
        assert await reader.get_file(kept) == b"w1 3" * 100
        for gone in (reader.get_file(rejected), reader.upload(run, w2, 0, some_hash("w2 root 0"))):
            with pytest.raises(RefusedError, match="kept in the summary of") as refused:
                await gone
            assert refused.value.status == 410
        with pytest.raises(RefusedError, match="the detail of commitment 1 of"):
            await reader.post_verdict(
                story.run_fixture.verdict("v1", "w2", 1, some_hash("w2 root 1"), content_hash(b"w2 1" * 100))
            )
    url = str(orchestrator.settings["orchestrator.storage_url"])
    store = ContentStore(url, "summaries")
    (name,) = [name async for name in store.names()]
    work = read_day(story.run_fixture.domain, keys_of(story.run_fixture.key("storage").address), await store.get(name))
    assert (work.run, work.day) == (run, day)
    assert work.nodes == {
        w1: [(0, 1, "accepted", None, True), (2, 2, "accepted", None, False)],
        w2: [(0, 0, "rejected", "wrong_reward", False), (1, 1, "pending", None, False)],
    }

    # 4. Back from nothing, first the page, which looks for days that are over as it starts.
    story.show_again()
    assert await story.page() == before
    nodes = await story.nodes()
    date = date_of(day)
    assert [one["why"] for one in nodes[2:]] == [
        f"Accepted: its file and verdicts are gone, kept in the summary of {date}.",
        f"Rejected, wrong reward: its file and verdicts are gone, kept in the summary of {date}.",
    ]
    assert orchestrator.get(f"/v1/runs/{run}/summaries/{date}") == (200, await store.get(name))
    story.rebuild(new_database_url())
    assert await story.page() == before
    assert await story.counted() == totals
    assert await story.nodes() == nodes

    # 5. Evidence goes by the time at which a sweep saw it first.
    await until(story.has_dated_evidence)
    await story.begin_day(day + 30)
    orchestrator.stop()
    orchestrator.start()
    await story.holds(files=0, uploads=0, log=1, evidence=0, summaries=2)
    story.show_again()
    assert await story.page() == before
