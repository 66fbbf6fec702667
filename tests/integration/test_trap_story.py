"""A worker that is asked to plant a trap: what it commits, found by a replay; and all of its other work is true.

Once the traps are opened, the owner replays them, and finds the worker whose map names true rows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from muster.chain.masters_file import write_masters
from muster.clients.orchestrator import OrchestratorClient
from muster.constants import TOKEN
from muster.contracts.masters import reveal_master
from muster.contracts.run_terms import Series
from muster.contracts.runs import WorkCommitted
from muster.errors import RefusedError, UnreachableError
from muster.grading.masters import Masters
from muster.protocol.messages import TrapMap
from muster.protocol.traps import FIRST_COMMITMENTS, check_ticket, is_picked, planted_rows
from muster.rollouts.parquet import read_rollouts
from muster.rollouts.schema import Rollout
from muster.settings.schema import Settings
from muster.verification.judging import judge
from muster.verification.profiles import CPU_FP32
from muster.verification.replay import Replayer
from testbed.chain.anvil import Anvil
from testbed.chain.contracts import deploy_on
from testbed.processes import MUSTER, ended, run_to_end
from testbed.runs.world import WORKERS, World, opened
from testbed.waiting import until
from validator.trap_check import check_traps
from worker.committer import sign_consent
from worker.context import WorkerContext
from worker.journal import WorkJournal


@dataclass
class TrapWorld:
    world: World
    masters: Masters

    async def first_traps(self, begin: int = 0) -> list[tuple[int, str]]:
        """Return at which index each worker is to plant first from `begin` on, and its name: the soonest first."""
        fixture = self.world.run_fixture
        async with fixture.chain("stranger") as chain:
            terms, found = await chain.terms(fixture.run), []
            for name in WORKERS:
                source = await chain.draw_source(fixture.key(name).address)
                given = {"master": self.masters.of(1), "entropy": source.entropy, "node": source.node}
                given["every"] = terms.trap_every
                found.append((next(i for i in range(begin, 1000) if is_picked(index=i, **given)), name))
        return sorted(found)


@pytest.fixture
def traps(start_anvil: Callable[..., Anvil], built_contracts: None, tmp_path: Path) -> Iterator[TrapWorld]:
    masters, file = Masters.make(1), tmp_path / "trap-masters"
    write_masters(file, masters)
    terms = {
        "trap_every": 20,
        "trap_prize": 4 * TOKEN,
        "trap_tip": masters.tip,
        "trap_epochs": 1,
        "trap_epoch_steps": 1,
    }
    with opened(deploy_on(start_anvil(), tmp_path), tmp_path, trap_masters=file, **terms) as made:
        yield TrapWorld(made, masters)


@pytest.mark.slow
async def test_worker_plants_where_it_was_asked_to_and_nowhere_else(
    traps: TrapWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    world, fixture = traps.world, traps.world.run_fixture
    trap, name = (await traps.first_traps())[0]
    others = await traps.first_traps(FIRST_COMMITMENTS)  # a newcomer's map has one row, which may be true by chance
    another, liar = next(one for one in others if one[1] != name)
    worker, cheat = world.node("worker", name), world.node("testbed.runs.true_map_worker", liar)
    committed: dict[int, WorkCommitted] = {}

    async def made(by: str, index: int) -> bool:
        mine = [event for event in await world.events(WorkCommitted) if event.node == fixture.key(by).address]
        committed.update({event.index: event for event in mine if by == name})
        return index in {event.index for event in mine}

    with ended(worker, cheat):
        worker.spawn()
        cheat.spawn()
        await until(lambda: made(name, trap), f"commitment {trap} is made", 300)
        worker.stop()
        await until(lambda: made(liar, another), f"commitment {another} is made", 300)

    # 1. A replay finds exactly the rows of the map, beyond the accusing limit, and none in any other commitment.
    with closing(WorkJournal(fixture.state(name), identity(world, name))) as journal:
        replayer = Replayer(fixture.checkpoint(0), CPU_FP32, 1.0)
        for index in sorted(committed)[-4:]:
            found = await asyncio.to_thread(false_rows, replayer, await rows_of(world, committed[index]))
            mapped = journal.trap(index)
            assert found == (rows_in(mapped) if mapped else set())
            assert (mapped is not None) == (index == trap)

        # 2. It has a ticket for these, given before the commitment.
        ticket, planted_map, entry = journal.ticket(trap), journal.trap(trap), journal.entry(trap)
        assert ticket is not None
        assert planted_map is not None
        assert entry is not None
        assert len(planted_map.rows) == planted_rows(16, trap)
        async with fixture.chain(name) as chain, fixture.client(world.orchestrator.url, name) as client:
            terms = await chain.terms(fixture.run)
            context = WorkerContext(Settings(run=fixture.run), chain, client, terms, CPU_FP32, journal)
            consent = sign_consent(context, entry, planted_map, ticket.stored_at)
            check_ticket(fixture.domain, ticket, consent, await chain.keys(fixture.run))
            assert ticket.stored_at < (await chain.block(committed[trap].at.block)).timestamp

    # 3. Once they are opened, the owner finds that the other worker's map names rows that are true.
    settings = world.settings("v1")
    with pytest.raises(UnreachableError, match=f"the master of trap epoch 1 of run {fixture.run} is not shown yet"):
        await check_traps(settings, None, as_json=False)
    async with fixture.chain("owner") as chain, fixture.client(world.orchestrator.url, None) as client:
        await chain.send(reveal_master(fixture.run, Series.TRAPS, traps.masters.of(1)))
        await until(lambda: opened_in(client, fixture.run), "the traps are opened", 60)
    config = fixture.folder / "v1" / "muster.toml"
    status, output, errors = await run_to_end(*MUSTER, "run", "traps", "--json", "--config", config)
    document = json.loads(output)
    found = {(one["node"], one["index"]): one for one in document["traps"]}
    honest, lying = (planted_rows(16, index) for index in (trap, another))
    assert found[fixture.key(name).address, trap] == {
        "node": fixture.key(name).address, "index": trap, "step": 0, "named": honest, "true": [], "false": honest,
        "unknown": "",
    }  # fmt: skip
    assert found[fixture.key(liar).address, another] == {
        "node": fixture.key(liar).address, "index": another, "step": 0, "named": lying, "true": [*range(lying)],
        "false": 0, "unknown": "",
    }  # fmt: skip
    assert (status, document["epoch"], document["refuse"]) == (3, 1, [fixture.key(liar).address]), errors

    # 4. A file that is gone says nothing of its node.
    async with fixture.client(world.orchestrator.url, None) as client:
        lies = [event for event in await world.events(WorkCommitted) if (event.node, event.index) in found]
        lies = [event for event in lies if event.node == fixture.key(liar).address]
        for lie in lies:
            file = (await client.upload(fixture.run, lie.node, lie.index, lie.root)).receipt.file_hash
            for stored in (world.orchestrator.folder / "storage").rglob(f"*{file[2:]}*"):
                stored.unlink()
    capsys.readouterr()
    with pytest.raises(UnreachableError, match=f"{len(lies)} of {len(found)} traps cannot be replayed here"):
        await check_traps(settings, 1, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert f"  {fixture.key(name).address}:{trap} of step 0: {honest} of {honest} rows are false; true: []" in lines
    assert [line for line in lines if line.startswith("refuse")] == [f"{'refuse':16} []"]


async def opened_in(client: OrchestratorClient, run: int) -> bool:
    try:
        return len((await client.traps(run, 1)).traps) >= 2
    except RefusedError:  # the orchestrator has not seen the master yet
        return False


def identity(world: World, name: str) -> str:
    book, node = world.run_fixture.book, world.run_fixture.key(name).address
    return f"{node} on chain {book.chain_id} at {book.runs}"


def rows_in(planted: TrapMap) -> set[int]:
    return {row.position for row in planted.rows}


async def rows_of(world: World, work: WorkCommitted) -> list[Rollout]:
    """Return the rows of a commitment."""
    async with world.run_fixture.client(world.orchestrator.url, None) as client:
        upload = await client.upload(world.run_fixture.run, work.node, work.index, work.root)
        return read_rollouts(await client.get_file(upload.receipt.file_hash))


def false_rows(replayer: Replayer, rows: list[Rollout]) -> set[int]:
    """Return the positions of rows that a replay accuses of their sampling. Everything else must be true."""
    found = [(row.position, judge([one], CPU_FP32)) for row, one in zip(rows, replayer.replay(rows), strict=True)]
    assert all(finding is None or (finding.accuse and finding.reason == "sampling_mismatch") for _, finding in found)
    return {position for position, finding in found if finding is not None}
