"""The trainer as torchrun starts it: two processes with half of the weights each, one of which is the run's trainer."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from muster.contracts import runs
from muster.shardcast.format.store import version_path
from testbed.chain.anvil import free_port
from testbed.processes import Service, ended
from testbed.runs.run_fixture import Orchestrator, RunFixture
from testbed.runs.trainer_process import ONE, build_training_run, train
from testbed.samples.models import write_model
from testbed.samples.trainer import batch_of, learner_at
from testbed.suite import forks

TWO = (sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), layers=2)


@pytest.fixture
def run_fixture(deployment: Any, model: Path, tmp_path: Path) -> RunFixture:
    return asyncio.run(build_training_run(deployment.settings, model, tmp_path))


async def _steps(run_fixture: RunFixture) -> int:
    """Checkpoints on chain."""
    async with run_fixture.chain("trainer") as chain:
        return (await chain.call(runs.run_state(run_fixture.run))).steps


@pytest.fixture
def orchestrator(run_fixture: RunFixture) -> Iterator[Orchestrator]:
    with Orchestrator(run_fixture, run_fixture.folder / "orchestrator") as orchestrator:
        yield orchestrator


async def test_two_processes_publish_the_steps_of_a_run_and_one_goes_on_with_it(
    run_fixture: RunFixture, orchestrator: Orchestrator, model: Path
) -> None:
    """The run has no workers, so every step repeats the first one. Each is sharded, written and merged.
    tests/unit/trainer/test_distributed.py covers updates by two ranks."""
    by_two = await _publish(run_fixture, train(run_fixture, orchestrator, model, TWO, idle_seconds=0.5), 3)
    newest = max(path for path in (run_fixture.folder / "state" / "steps").iterdir() if path.name.isdigit())
    assert sorted(path.name for path in (newest / "state").glob("*.distcp")) == ["__0_0.distcp", "__1_0.distcp"]
    roots = await _roots(run_fixture, by_two)
    weights = [version_path(run_fixture.folder / "published", root) / "model.safetensors" for root in roots]
    assert all(path.read_bytes() == (model / "model.safetensors").read_bytes() for path in weights)
    assert (
        await _publish(run_fixture, train(run_fixture, orchestrator, model, ONE, idle_seconds=0.5), by_two + 1) > by_two
    )


@pytest.mark.slow
async def test_at_the_last_step_all_of_them_end(
    run_fixture: RunFixture, orchestrator: Orchestrator, model: Path
) -> None:
    """The last update is on disk at the start, so the ranks only have to publish it."""
    await _publish(run_fixture, train(run_fixture, orchestrator, model, ONE, idle_seconds=600), 1)
    learner = learner_at(model, run_fixture.folder / "state" / "steps")
    learner.train_step(*batch_of(0), {})
    learner.close()
    process = train(run_fixture, orchestrator, model, TWO, idle_seconds=600, max_steps=1)
    status, said = await asyncio.to_thread(process.end)
    assert status == 0, said
    assert await _steps(run_fixture) == 2
    newest = version_path(run_fixture.folder / "published", (await _roots(run_fixture, 2))[1])
    trained = learner.checkpoints.model_dir(1)
    assert (newest / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()
    assert (len(process.logged("finished")), len(process.logged("ended"))) == (1, 3)


async def test_a_run_that_was_closed_is_finished(
    run_fixture: RunFixture, orchestrator: Orchestrator, model: Path
) -> None:
    """It logs that nothing is left to do and exits with 0, so a supervisor does not restart it."""
    there = await _publish(run_fixture, train(run_fixture, orchestrator, model, ONE, idle_seconds=0.5), 1)
    async with run_fixture.chain("owner") as chain, run_fixture.local_chain() as clock:
        await chain.send(runs.announce_withdrawal(run_fixture.run))
        await clock.advance(await chain.call(runs.notice_period(run_fixture.run)))
        await chain.send(runs.close(run_fixture.run))
    process = train(run_fixture, orchestrator, model, ONE, idle_seconds=0.5)
    status, said = await asyncio.to_thread(process.end)
    assert status == 0, said
    last = process.logged()[-1]
    steps = await _steps(run_fixture)
    assert steps >= there
    assert (last["event"], last["exit_code"]) == ("finished", 0)
    assert (
        last["reason"]
        == f"run {run_fixture.run} is closed: step {steps} is not published, and the newest on chain is {steps - 1}"
    )
    assert last["next"] == f"muster weights fetch --step {steps - 1} gets the run's last weights"
    assert "error" not in said


async def _publish(run_fixture: RunFixture, process: Service, steps: int) -> int:
    """Run a trainer until `steps` checkpoints are on chain, stop it, and return how many there are."""
    with ended(process):
        await asyncio.to_thread(process.wait_until, lambda: len(process.logged("published")) >= steps, "steps")
    assert process.logged()[-1]["event"] == "ended", process.said
    there = await _steps(run_fixture)
    assert there >= steps, process.said
    return there


async def _roots(run_fixture: RunFixture, count: int) -> list[bytes]:
    async with run_fixture.chain("trainer") as chain:
        return [(await chain.checkpoint(run_fixture.run, step)).manifest_root for step in range(count)]


async def test_all_ranks_end_when_launcher_is_stopped(
    run_fixture: RunFixture, orchestrator: Orchestrator, model: Path
) -> None:
    port = free_port()
    process = train(run_fixture, orchestrator, model, TWO, idle_seconds=600, **{"log.metrics_port": port})
    with ended(process):
        await asyncio.to_thread(process.wait_until, lambda: process.logged("published"), "a step")
        children = psutil.Process(process.pid).children(recursive=True)
        family = [child for child in children if child.name() != forks.NAME]
        assert len(family) == 3, "two ranks, and what follows log and chain beside the first"
    assert not [each for each in family if each.is_running()]
    assert len(process.logged("ended")) == 2, process.said
