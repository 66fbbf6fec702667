"""The trainer of an idle run publishes steps for a newcomer, which learns why it cannot begin earlier."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.clients.orchestrator import OrchestratorClient
from muster.contracts import runs
from muster.contracts.registry import Role
from muster.errors import ChainError, RefusedError
from muster.protocol.draws import DrawSource
from testbed.processes import ended
from testbed.runs.run_fixture import Explorer, Orchestrator, RunFixture
from testbed.runs.trainer_process import ONE, build_training_run, train
from testbed.samples.models import write_model
from testbed.waiting import until


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), layers=1)


@pytest.fixture
def run_fixture(deployment: Any, model: Path, tmp_path: Path) -> RunFixture:
    return asyncio.run(build_training_run(deployment.settings, model, tmp_path))


@pytest.fixture
def orchestrator(run_fixture: RunFixture) -> Iterator[Orchestrator]:
    with Orchestrator(run_fixture, run_fixture.folder / "orchestrator") as orchestrator:
        yield orchestrator


async def test_a_newcomer_to_an_idle_run_is_published_for(
    run_fixture: RunFixture, orchestrator: Orchestrator, model: Path
) -> None:
    """Not after the trainer's default of a quarter of an hour for an idle run; once for a newcomer into an empty run,
    once for one beside a worker that registered and does nothing. How soon: tests/unit/trainer/test_batcher.py."""
    process = train(run_fixture, orchestrator, model, ONE)
    with ended(process), Explorer(run_fixture, run_fixture.folder / "explorer", orchestrator.url) as explorer:
        async with run_fixture.client(orchestrator.url, None) as reader:
            await until(lambda: _steps(run_fixture, 1), "the first step is on chain")
            why = "no worker is registered: muster worker join"
            await until(lambda: explorer.summary()["blocked"] == why, "the page says why")
            await _begins(run_fixture, reader, "first", first_step=2)
            await _begins(run_fixture, reader, "second", first_step=4)
            assert [line["step"] for line in process.logged("publishing for newcomers")] == [1, 2, 3, 4]
            assert not await _steps(run_fixture, 6), "steps without a waiting newcomer"
        assert process.is_running
        status, said = await asyncio.to_thread(process.stop)
        assert status == 0, said


async def _begins(run_fixture: RunFixture, reader: OrchestratorClient, name: str, first_step: int) -> None:
    """Register a worker and wait until it may commit."""
    async with run_fixture.local_chain() as dev:
        await dev.fund([run_fixture.key(name).address, run_fixture.key(f"operator of {name}").address])
    await run_fixture.join(name, Role.WORKER)
    node = run_fixture.key(name).address
    async with run_fixture.chain(name) as chain:
        assert (await chain.call(runs.work(node))).joined_step == first_step
        with pytest.raises(ChainError, match=f"step {first_step}, by which {node} draws, is not published"):
            await chain.draw_source(node)
    reason = f"begins at step {first_step}, the second after joining; the newest is step {first_step - 2}"

    async def is_blocked() -> bool:
        try:
            return (await reader.node(node)).blocked.startswith(reason)
        except RefusedError:  # the orchestrator has not seen the registration yet
            return False

    await until(is_blocked, "the newcomer sees why it is blocked")
    await until(lambda: _steps(run_fixture, first_step + 1), "its first step is on chain")
    async with run_fixture.chain(name) as chain:
        entropy = (await chain.checkpoint(run_fixture.run, first_step)).entropy
        assert await chain.draw_source(node) == DrawSource(node, entropy, 0)

    async def is_free() -> bool:
        return (await reader.node(node)).blocked == ""

    await until(is_free, "nothing is in its way")


async def _steps(run_fixture: RunFixture, wanted: int) -> bool:
    """Return whether the chain has so many checkpoints."""
    async with run_fixture.chain("trainer") as chain:
        return (await chain.call(runs.run_state(run_fixture.run))).steps >= wanted
