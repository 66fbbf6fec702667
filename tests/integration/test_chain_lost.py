"""A local run outlives its chain: blocks are replaced, and Anvil is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from muster.chain.anvil import LocalChain
from muster.chain.connection import connected
from muster.chain.deploy import deploy
from muster.chain.keys import Signer
from muster.settings.schema import ChainSettings
from muster.settings.sources import load_settings
from muster.swarm.launch import LocalRun
from muster.swarm.opening import give_gas
from muster.swarm.state import read_state
from muster.swarm.supervisor import Supervisor
from testbed.chain.anvil import Anvil, free_port
from testbed.processes import ended
from testbed.runs.run_fixture import Orchestrator, RunFixture, some_hash
from testbed.runs.swarms import live_swarm
from testbed.waiting import BOUND, until, wait_until

pytestmark = pytest.mark.usefixtures("built_contracts")

UNDONE = 8
A_COMMIT = 2
"""Blocks of a commitment: its own, and the one that draws who is called to it."""
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


async def head(settings: ChainSettings) -> int:
    """Return the number of a chain's newest block."""
    async with connected(settings) as web3:
        return int(await web3.eth.block_number)


async def reorg(settings: ChainSettings, depth: int, *, drop: bool) -> None:
    """Replace a chain's newest blocks."""
    async with connected(settings) as web3:
        await (await LocalChain.open(web3)).reorg(depth, drop=drop)


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
        explorer_url="",
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
        await reorg(run.local.chain, 2 * A_COMMIT, drop=False)
        await until(lambda: run.orchestrator.logged("reorg"), "the orchestrator follows the new blocks")
        await run.sees(2)
        await reorg(run.local.chain, A_COMMIT, drop=True)
        await run.sees(1)
        await run.fixture.commit("w1", 1, INSTEAD)
        await run.sees(2)


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
async def test_a_saved_chain_has_the_block_of_each_transaction_that_it_counts(tmp_path: Path) -> None:
    """Anvil may mine while it is asked for its state. Without the pause about one state of twenty lacked a block."""
    endless, saved = "0x5b600056", tmp_path / "state.json"
    with Anvil(block_time=0.05) as anvil:
        settings = ChainSettings(rpc_url=anvil.url, addresses=tmp_path / "addresses.json")
        async with connected(settings) as web3:
            local = await LocalChain.open(web3)
            sender = anvil.request("eth_accounts")[0]
            for count in range(60):
                # Each takes a while to be mined: it loops until its gas is used. The saves begin at different moments.
                sent = {"from": sender, "data": f"{endless}{count:08x}", "gas": hex(2**24), "nonce": hex(count)}
                anvil.request("eth_sendTransaction", sent)
                await asyncio.sleep(count % 20 * 0.003)
                await local.save(saved)
                state = json.loads(saved.read_text())
                assert state["accounts"].get(sender, {"nonce": 0})["nonce"] == len(state["transactions"])


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
        chain = load_settings(swarm.folder / "orchestrator" / "muster.toml").chain
        restarted = asyncio.run(head(chain))
        # An attempt starts the chain's clock anew: attempts that come faster than its blocks would stop it.
        wait_until(lambda: asyncio.run(head(chain)) >= restarted + UNDONE, f"{UNDONE} blocks since the restart")
        asyncio.run(reorg(chain, UNDONE, drop=True))
        more_than(commitments())
