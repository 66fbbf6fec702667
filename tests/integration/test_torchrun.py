"""The trainer as torchrun starts it: two processes with half of the weights each, one of which is the run's trainer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from muster.contracts import runs
from muster.shardcast.format.store import version_path
from testbed.chain.anvil import free_port
from testbed.runs.run_fixture import Orchestrator, RunFixture
from testbed.runs.trainer_process import ONE, build_training_run, end, train
from testbed.samples.trainer import batch_of, learner_at, tiny_checkpoint
from testbed.suite import fork_server
from testbed.waiting import until

TWO = (sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), layers=2)


@pytest.fixture
def run_fixture(deployment: Any, model: Path, tmp_path: Path) -> RunFixture:
    return asyncio.run(build_training_run(deployment.settings, model, tmp_path))


async def _steps(run_fixture: RunFixture) -> int:
    """Checkpoints on chain."""
    async with run_fixture.chain("trainer") as chain:
        return (await chain.call(runs.run_state(run_fixture.run))).steps


@pytest.fixture
def orchestrator(run_fixture: RunFixture) -> Iterator[Orchestrator]:
    orchestrator = Orchestrator(run_fixture, run_fixture.folder / "orchestrator").start()
    yield orchestrator
    orchestrator.stop()


async def test_two_processes_publish_the_steps_of_a_run_and_one_goes_on_with_it(
    run_fixture: RunFixture, orchestrator: Orchestrator, model: Path
) -> None:
    """Nobody works for this run, so its steps are the first one again; each is divided, written and put together.
    Updates by two are in tests/unit/trainer/test_distributed.py."""
    by_two = await _publish(run_fixture, train(run_fixture, orchestrator, model, TWO, idle_seconds=0.5), 3)
    newest = max(path for path in (run_fixture.folder / "state" / "steps").iterdir() if path.name.isdigit())
    assert sorted(path.name for path in (newest / "state").glob("*.distcp")) == ["__0_0.distcp", "__1_0.distcp"]
    roots = await _roots(run_fixture, by_two)
    weights = [version_path(run_fixture.folder / "published", root) / "model.safetensors" for root in roots]
    assert all(path.read_bytes() == (model / "model.safetensors").read_bytes() for path in weights)
    assert (
        await _publish(run_fixture, train(run_fixture, orchestrator, model, ONE, idle_seconds=0.5), by_two + 1) > by_two
    )


async def test_at_the_last_step_all_of_them_end(
    run_fixture: RunFixture, orchestrator: Orchestrator, model: Path
) -> None:
    """The last update is on disk when they start: what is left to do is to publish it."""
    await _publish(run_fixture, train(run_fixture, orchestrator, model, ONE, idle_seconds=600), 1)
    learner = learner_at(model, run_fixture.folder / "state" / "steps")
    learner.train_step(*batch_of(0), {})
    learner.close()
    process = train(run_fixture, orchestrator, model, TWO, idle_seconds=600, max_steps=1)
    said = await asyncio.to_thread(end, process)
    assert process.returncode == 0, said
    assert await _steps(run_fixture) == 2
    newest = version_path(run_fixture.folder / "published", (await _roots(run_fixture, 2))[1])
    trained = learner.checkpoints.model_dir(1)
    assert (newest / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()
    events = _events(run_fixture)
    assert (events.count("finished"), events.count("ended")) == (1, 3)


async def test_a_run_that_was_closed_is_finished(
    run_fixture: RunFixture, orchestrator: Orchestrator, model: Path
) -> None:
    """It has nothing left to do, says so, and ends with 0: whoever looks after it does not start it again."""
    there = await _publish(run_fixture, train(run_fixture, orchestrator, model, ONE, idle_seconds=0.5), 1)
    async with run_fixture.chain("owner") as chain, run_fixture.local_chain() as clock:
        await chain.send(runs.announce_withdrawal(run_fixture.run))
        await clock.advance(await chain.call(runs.notice_period(run_fixture.run)))
        await chain.send(runs.close(run_fixture.run))
    process = train(run_fixture, orchestrator, model, ONE, idle_seconds=0.5)
    said = await asyncio.to_thread(end, process)
    assert process.returncode == 0, said
    last = json.loads((run_fixture.folder / "trainer.jsonl").read_text().splitlines()[-1])
    steps = await _steps(run_fixture)
    assert steps >= there
    assert (last["event"], last["exit_code"]) == ("finished", 0)
    assert (
        last["reason"]
        == f"run {run_fixture.run} is closed: step {steps} is not published, and the newest on chain is {steps - 1}"
    )
    assert last["next"] == f"muster weights fetch --step {steps - 1} gets the run's last weights"
    assert "error" not in said


async def _publish(run_fixture: RunFixture, process: subprocess.Popen[str], steps: int) -> int:
    """Let a trainer go on until there are so many checkpoints on chain, and end it; how many there are then."""
    try:
        await until(lambda: _events(run_fixture).count("published") >= steps or process.poll() is not None)
        going = process.poll() is None
        process.terminate()
        said = await asyncio.to_thread(end, process)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert going, said
    assert _events(run_fixture)[-1] == "ended", said
    there = await _steps(run_fixture)
    assert there >= steps, said
    return there


async def _roots(run_fixture: RunFixture, count: int) -> list[bytes]:
    async with run_fixture.chain("trainer") as chain:
        return [(await chain.checkpoint(run_fixture.run, step)).manifest_root for step in range(count)]


async def test_told_to_end_all_of_them_do(run_fixture: RunFixture, orchestrator: Orchestrator, model: Path) -> None:
    port = free_port()
    process = train(run_fixture, orchestrator, model, TWO, idle_seconds=600, **{"log.metrics_port": port})
    family: list[psutil.Process] = []
    try:
        await until(lambda: "published" in _events(run_fixture) or process.poll() is not None)
        children = psutil.Process(process.pid).children(recursive=True)
        family += [child for child in children if child.name() != fork_server.NAME]
        assert len(family) == 2
        process.terminate()
        said = await asyncio.to_thread(end, process)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert not [each for each in family if each.is_running()]
    assert _events(run_fixture).count("ended") == 2, said


def _events(run_fixture: RunFixture) -> list[str]:
    """What both processes wrote into the log."""
    path = run_fixture.folder / "trainer.jsonl"
    return [json.loads(line)["event"] for line in path.read_text().splitlines()] if path.exists() else []
