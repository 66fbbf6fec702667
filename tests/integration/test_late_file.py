"""A worker that commits without having uploaded, and brings its file when it is accused. Real chain, orchestrator,
engine and validators."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from muster.chain.client import Chain
from muster.contracts import registry, runs
from muster.contracts.court import CaseOpened, CaseResolved, Outcome
from muster.contracts.registry import Convicted, Fined, Status
from muster.contracts.runs import Voided
from muster.errors import RevertError
from muster.protocol.hashes import hash_bytes, hex_hash
from muster.protocol.kinds import kind_of
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import read_rollouts
from testbed.chain.anvil import Anvil
from testbed.chain.contracts import deploy_on
from testbed.processes import ended
from testbed.runs.world import World, opened
from testbed.waiting import until


@pytest.fixture
def world(start_anvil: Callable[..., Anvil], built_contracts: None, tmp_path: Path) -> Iterator[World]:
    with opened(deploy_on(start_anvil(), tmp_path), tmp_path, workers=("w1",)) as made:
        yield made


@pytest.mark.slow
async def test_late_file_costs_fee_and_unsettled_pay(world: World) -> None:
    """The rows are honest. The reporter gets its fee back, and the worker logs why it stays idle."""
    torch.set_num_threads(1)
    run_fixture = world.run_fixture
    node, run = run_fixture.key("w1").address, run_fixture.run
    worker = world.node("worker", "w1", "worker.generated")
    with ended(worker):
        # 1. A real worker makes honest rows and dies before it uploads them. The test still commits to them.
        status, said = await asyncio.to_thread(worker.spawn().end)
        assert status == -signal.SIGKILL, said
        data = finished_file(run_fixture.state("w1"))
        root = hex_hash(rollout_tree(read_rollouts(data)).root)
        await run_fixture.commit("w1", 0, root)

        async with run_fixture.chain("stranger") as chain, world.validators("v1", "v2", "v3", "v4"):
            terms = await chain.terms(run)
            before = await free_balances(world, chain)

            # 2. A validator accuses it, and then the worker uploads the file.
            async def accused() -> bool:
                return any(event.node == node for event in await world.events(CaseOpened))

            await until(accused, "somebody accuses the node")
            async with run_fixture.client(world.orchestrator.url, "w1") as client:
                receipt = await client.put_file(data, run, 0, hash_bytes(root))
            assert receipt.stored_at > (await chain.call(runs.commitment(node, 0))).committed_at

            # 3. The case ends cured. By then nobody's place is left to look at the file.
            async def resolved() -> bool:
                cases, ends = await world.events(CaseOpened), await world.events(CaseResolved)
                return len(cases) == len(ends)

            await until(resolved, "every case ends")

            assert not any(verdict.accepted for verdict in await world.verdicts("w1"))

            # 4. The worker loses its pay and one fee, however many validators accused it.
            cases = await world.events(CaseOpened)
            assert {(case.node, case.kind) for case in cases} == {(node, kind_of("data_missing"))}
            assert {event.outcome for event in await world.events(CaseResolved)} == {Outcome.CURED}
            fined = [event.amount for event in await world.events(Fined) if event.node == node]
            assert fined == [terms.case_fee]
            assert [event.amount for event in await world.events(Voided)] == [terms.pay]
            assert not await world.events(Convicted)
            facts, work = await asyncio.gather(chain.call(registry.node(node)), chain.call(runs.work(node)))
            assert (facts.status, facts.lock) == (Status.ACTIVE, terms.worker_stake - terms.case_fee)
            assert (work.left, work.open_cases, work.next - work.settled) == (True, 0, 0)
            assert (await chain.call(runs.run_state(run))).reserved == 0

            async def repaid() -> bool:
                free = await free_balances(world, chain)
                return all(free[case.challenger] >= before[case.challenger] for case in cases)

            await until(repaid, "every challenger has its fee and its deposits back")

        # 5. It commits no more, and its process says why.
        with pytest.raises(RevertError) as refused:
            await run_fixture.commit("w1", 1, root)
        assert refused.value.name == "NotWorking"
        status, said = await asyncio.to_thread(worker.spawn().end)
        assert status == 0, said
        assert "this worker brought a file only when it was accused" in said


def finished_file(state: Path) -> bytes:
    """Return the one file that a worker has made."""
    [path] = state.rglob("*.parquet")
    return path.read_bytes()


async def free_balances(world: World, chain: Chain) -> dict[str, int]:
    """Return what is free to the operators of the validators, by node."""
    key = world.run_fixture.key
    return {
        key(name).address: await chain.call(registry.free_balance(key(f"operator of {name}").address))
        for name in ("v1", "v2", "v3")
    }
