"""Two orchestrators behind one PostgreSQL: both answer what either acknowledged, and one follows the chain for both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.contracts import runs
from muster.protocol.announcements import NodeName
from muster.protocol.hashes import content_hash
from muster.protocol.messages import RelayOffer, StepReport
from testbed.processes import ended
from testbed.runs.run_fixture import Orchestrator, RunFixture, some_hash
from testbed.servers.postgres import PostgresServer
from testbed.waiting import wait_until
from testbed.weights.servers import odd_source

TAKEOVER_SECONDS = 10.0
FOLLOWS = 'muster_orchestrator_lease{task="follower"} 1.0'


@pytest.fixture(scope="module")
def run_fixture(deployment: Any, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    folder = tmp_path_factory.mktemp("pair")
    run_fixture = asyncio.run(RunFixture.build(folder, deployment.settings, seed="a pair", workers=("w1",)))
    asyncio.run(run_fixture.publish(0))
    return run_fixture


@pytest.fixture
def pair(run_fixture: RunFixture, postgres: PostgresServer, tmp_path: Path) -> Iterator[list[Orchestrator]]:
    shared: dict[str, Any] = {
        "database_url": postgres.create_database(),
        "storage_url": f"file:{tmp_path / 'storage'}",
    }
    shared |= {"state_dir": tmp_path / "state"}
    both = [Orchestrator(run_fixture, tmp_path / name, **shared) for name in ("a", "b")]
    with ended(*both):
        for orchestrator in both:
            orchestrator.spawn()
        for orchestrator in both:
            orchestrator.wait_until(orchestrator.is_ready, "it is ready")
        yield both


def leads(orchestrator: Orchestrator) -> bool:
    return FOLLOWS in orchestrator.get("/metrics")[1].decode()


async def test_a_write_to_one_is_in_the_next_answer_of_the_other(
    run_fixture: RunFixture, pair: list[Orchestrator], tmp_path: Path
) -> None:
    first, second = pair
    run, data, root = run_fixture.run, b"rollouts" * 100, some_hash("root")
    worker, owner = run_fixture.key("w1").address, "operator of w1"
    async with (
        odd_source(tmp_path) as (relay, _, _),
        run_fixture.client(first.url, "w1") as w1,
        run_fixture.client(first.url, "trainer") as trainer,
        run_fixture.client(second.url, None) as reader,
        run_fixture.client(first.url, owner) as operator,
    ):
        # 1. A verdict on either is accepted work on both.
        assert [(await one.node(worker)).accepted for one in (trainer, reader)] == [0, 0]
        await w1.put_file(data, run, 0, root)
        assert await reader.get_file(content_hash(data)) == data
        await run_fixture.commit("w1", 0, root)
        called = (await run_fixture.called(first.url, "w1", 0))[:2]
        assert (await run_fixture.called(second.url, "w1", 0))[:2] == called
        for name, url in zip(called, (first.url, second.url), strict=True):
            async with run_fixture.client(url, name) as validator:
                await validator.post_verdict(run_fixture.verdict(name, "w1", 0, root, content_hash(data)))
        assert [(await one.node(worker)).accepted for one in (trainer, reader)] == [1, 1]
        # 2. So are an offer and a name.
        await w1.say("relay", RelayOffer(run=run, url=relay))
        assert relay in await reader.relays(run)
        await operator.announce_name(run, worker, "shared")
        named = (await reader.log(run, kind="name")).entries
        assert [NodeName.model_validate_json(one.text).name for one in named] == ["shared"]
        # 3. However often, and whatever was kept.
        for number in range(20):
            await trainer.post_step(StepReport(run=run, step=0, metrics={}, finished=number % 2 == 0))
            assert (await reader.demand(run)).wanted == (number % 2 == 1), number


def test_another_follows_the_chain_when_the_first_is_killed(
    run_fixture: RunFixture, pair: list[Orchestrator], tmp_path: Path
) -> None:
    def steps(orchestrator: Orchestrator) -> int:
        return orchestrator.json(f"/v1/runs/{run_fixture.run}/demand").get("step", -1) + 1

    # 1. One follows, both are ready and know the same.
    leader, other = sorted(pair, key=leads, reverse=True)
    assert (leads(leader), leads(other)) == (True, False)
    assert steps(leader) == steps(other)
    # 2. It dies: the other reads on.
    leader.kill()
    before = steps(other)
    asyncio.run(run_fixture.publish(before))
    wait_until(lambda: leads(other) and steps(other) == before + 1, "the other follows", TAKEOVER_SECONDS)
    assert other.is_ready()
    # 3. It comes back without the lease, and its forgotten spool is deleted.
    assert len(list((tmp_path / "state" / "uploads").iterdir())) == 2
    leader.start()
    assert (leads(leader), leads(other)) == (False, True)
    assert len(list((tmp_path / "state" / "uploads").iterdir())) == 2
    assert steps(leader) == before + 1
    # 4. A rolling restart: the lease goes back at once.
    assert other.stop()[0] == 0
    wait_until(lambda: leads(leader) and leader.is_ready(), "the first follows again", TAKEOVER_SECONDS)


async def test_older_copy_of_what_both_stopped_gets_what_storage_has(
    run_fixture: RunFixture, pair: list[Orchestrator], postgres: PostgresServer
) -> None:
    first, second = pair
    worker, run = run_fixture.key("w1").address, run_fixture.run
    async with run_fixture.chain("w1") as chain:
        index = (await chain.call(runs.work(worker))).next
    # 1. One that starts while another serves reads nothing; nor does one after the last was stopped.
    assert first.stop()[0] == 0
    first.start()
    for orchestrator in pair:
        assert orchestrator.stop()[0] == 0
    copy = postgres.copy_database(first.database_url)
    first.start()
    async with run_fixture.client(first.url, "w1") as w1:
        await w1.put_file(b"after the copy" * 100, run, index, some_hash("after the copy"))
    assert first.stop()[0] == 0
    assert [one.logged("rebuilt from storage") for one in pair] == [[], []]
    # 2. The copy is older than storage.
    second.change({"orchestrator.database_url": copy})
    second.start()
    assert [line["uploads"] for line in second.logged("rebuilt from storage")] == [1]
    async with run_fixture.client(second.url, None) as reader:
        upload = await reader.upload(run, worker, index, some_hash("after the copy"))
        assert await reader.get_file(upload.receipt.file_hash) == b"after the copy" * 100
