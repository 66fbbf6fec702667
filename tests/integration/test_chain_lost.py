"""A local run outlives its chain: `muster swarm reorg` replaces blocks, and Anvil is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from muster.chain.anvil import KEPT_STATES, LocalChain
from muster.chain.connection import connected
from muster.chain.deploy import deploy
from muster.chain.keys import Signer
from muster.settings.schema import ChainSettings
from muster.swarm.launch import LocalRun
from muster.swarm.opening import give_gas
from muster.swarm.state import read_state
from muster.swarm.supervisor import Supervisor
from testbed.chain.anvil import free_port
from testbed.processes import Muster, ended
from testbed.runs.run_fixture import Orchestrator, RunFixture, some_hash
from testbed.runs.swarms import live_swarm
from testbed.waiting import BOUND, until, wait_until

pytestmark = pytest.mark.usefixtures("built_contracts")

KEPT, LOST, INSTEAD = map(some_hash, ("kept", "lost", "instead"))


class Run:
    """A supervised chain with a run, and the run's orchestrator, which follows it."""

    def __init__(self, local: LocalRun, fixture: RunFixture) -> None:
        self.local, self.fixture = local, fixture
        self.orchestrator = Orchestrator(fixture, local.folder / "orchestrator")
        self.node = fixture.key("w1").address

    def commitments(self) -> int:
        return int(self.orchestrator.json(f"/v1/nodes/{self.node}").get("commitments", -1))

    async def sees(self, count: int) -> None:
        await until(lambda: self.commitments() == count, f"{count} commitments")

    def reorg(self, *words: object) -> tuple[int, str]:
        """Run `muster swarm reorg`; return its exit code and what it prints."""
        output = self.local.folder / "reorg.json"
        files = ("--folder", self.local.folder, "--json")
        command = Muster(("swarm", "reorg", *files, *words), self.local.folder / "reorg.log", output=output)
        status, said = command.spawn().end()
        return status, output.read_text() if status == 0 else said


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Run]:
    """Yield a run with one commitment. Its chain mines at once until it is restarted: by its own clock from then on."""
    port = free_port()
    settings = ChainSettings.model_validate(
        {"rpc_url": f"http://127.0.0.1:{port}", "addresses": folder / "addresses.json", "poll_seconds": 0.05}
    )
    local = LocalRun(
        folder=folder,
        chain=settings,
        orchestrator_url="",
        nodes=(),
        ports={"chain": port},
        saved=folder / "chain" / "state.json",
    )
    async with Supervisor(folder) as supervisor:
        await supervisor.start(local.chain_process())
        async with connected(settings) as web3:
            await web3.provider.request("evm_setIntervalMining", 0)
            await web3.provider.request("evm_setAutomine", True)
        deployer = Signer.random()
        await give_gas(settings, [deployer.address])
        await deploy(settings, deployer)
        fixture = await RunFixture.build(folder, settings, seed="lost", workers=("w1",))
        await fixture.publish(0)
        await fixture.commit("w1", 0, KEPT)
        run = Run(local, fixture)
        with ended(run.orchestrator):
            await asyncio.to_thread(run.orchestrator.start)
            await run.sees(1)
            yield run


async def test_reorg_replays_or_drops_and_work_is_committed_again(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        await run.fixture.commit("w1", 1, LOST)
        await run.sees(2)
        status, said = await asyncio.to_thread(run.reorg, "--depth", 2)
        assert status == 0, said
        replayed = json.loads(said)
        assert (len(replayed["replayed"]), replayed["dropped"]) == (2, [])
        assert replayed["old_head"] != replayed["new_head"]
        await until(lambda: run.orchestrator.logged("reorg"), "the orchestrator follows the new blocks")
        await run.sees(2)

        dropped = json.loads((await asyncio.to_thread(run.reorg, "--drop"))[1])
        assert (dropped["replayed"], len(dropped["dropped"])) == ([], 1)
        assert dropped["old_head"] == replayed["new_head"]
        await run.sees(1)
        await run.fixture.commit("w1", 1, INSTEAD)
        await run.sees(2)

        status, said = await asyncio.to_thread(run.reorg, "--depth", KEPT_STATES + 1)
        assert (status, f"less than or equal to {KEPT_STATES}" in said) == (2, True), said
        run.orchestrator.config.rename(tmp_path / "elsewhere.toml")
        status, said = await asyncio.to_thread(run.reorg)
        assert (status, "no swarm is running" in said) == (2, True), said


async def test_killed_chain_resumes_from_its_state(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        async with connected(run.local.chain) as web3:
            await (await LocalChain.open(web3)).save(run.local.saved)
        await run.fixture.commit("w1", 1, LOST)
        await run.sees(2)
        state = read_state(tmp_path)
        assert state is not None
        os.kill(state.processes["chain"].pid, signal.SIGKILL)
        await run.sees(1)
        await run.fixture.commit("w1", 1, INSTEAD)
        await run.sees(2)


@pytest.mark.slow
@pytest.mark.timeout(4 * BOUND)
def test_swarm_goes_on_after_its_chain_is_killed_and_reorganised(tmp_path: Path) -> None:
    """After a restart the chain can undo only newer blocks. What the reorg drops is made again."""
    with live_swarm(tmp_path, "--workers", "1", "--cheaters", "0", "--seed", "0") as swarm:
        node = swarm.address_of("worker-1")

        def commitments() -> int:
            return int(swarm.get(f"/v1/nodes/{node}").get("commitments", 0))

        def more_than(count: int) -> None:
            wait_until(lambda: commitments() > count, f"more than {count} commitments")

        more_than(0)
        swarm.kill("chain")
        more_than(commitments())
        words = ("swarm", "reorg", "--folder", swarm.folder, "--depth", 8, "--drop")
        reorg = Muster(words, tmp_path / "reorg.log")
        wait_until(lambda: reorg.spawn().end()[0] == 0, "eight blocks can be undone")
        more_than(commitments())
