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
from house import House, Orchestrator
from weights_house import toml, until

from muster.chain.anvil import free_port
from muster.chain.contracts import runs
from muster.chain.keys import write_secret
from muster.model_files import model_hash, tokenizer_hash
from muster.profiles import profile_hash
from muster.run_data import task_set_path
from muster.shardcast.folder import version_path
from muster.swarm.plan import PROFILE
from muster.tasks import make_task_set, save_task_set
from tests.unit.trainer_samples import batch_of, learner_at, tiny_checkpoint

TWO = (sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
ONE = (sys.executable, "-P")
SECONDS = 120


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), layers=2)


@pytest.fixture
def house(deployment: Any, model: Path, tmp_path: Path) -> House:
    tasks = make_task_set(1, levels=(3,), train=4, held_out=2)
    terms = {
        "model_hash": model_hash(model),
        "tokenizer_hash": tokenizer_hash(model),
        "profile": profile_hash(PROFILE),
        "task_count": tasks.size,
        "task_root": tasks.root,
    }
    house = asyncio.run(House.build(tmp_path, deployment.settings, seed=str(tmp_path), workers=(), **terms))
    state = tmp_path / "state"
    state.mkdir()
    built = asyncio.run(_terms(house))
    save_task_set(tasks, task_set_path(built, state))
    write_secret(tmp_path / "trainer.key", house.secret("trainer"))
    return house


async def _terms(house: House) -> Any:
    async with house.chain("trainer") as chain:
        return await chain.terms(house.run)


async def _steps(house: House) -> int:
    """Checkpoints on chain."""
    async with house.chain("trainer") as chain:
        return (await chain.ask(runs.run_state(house.run))).steps


@pytest.fixture
def orchestrator(house: House) -> Iterator[Orchestrator]:
    orchestrator = Orchestrator(house, house.folder / "orchestrator").start()
    yield orchestrator
    orchestrator.stop()


def train(
    house: House, orchestrator: Orchestrator, model: Path, start: tuple[str, ...], **options: object
) -> subprocess.Popen[str]:
    """A trainer's processes, in a session of their own."""
    config = house.folder / "trainer.toml"
    settings = {
        "run": house.run,
        "log.file": house.folder / "trainer.jsonl",
        "chain.rpc_url": house.settings.rpc_url,
        "chain.addresses": house.settings.addresses,
        "chain.poll_seconds": 0.05,
        "keys.raw_key_file": house.folder / "trainer.key",
        "orchestrator.url": orchestrator.url,
        "shardcast.dir": house.folder / "published",
        "trainer.model": model,
        "trainer.state_dir": house.folder / "state",
        "trainer.poll_seconds": 0.05,
    }
    named = {name if "." in name else f"trainer.{name}": value for name, value in options.items()}
    config.write_text(toml(settings | named))
    return subprocess.Popen(
        [*start, "-m", "trainer", "--config", str(config)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process: subprocess.Popen[str]) -> str:
    """Wait for its end; what it said."""
    try:
        _, said = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return said


async def test_two_processes_publish_the_steps_of_a_run_and_one_goes_on_with_it(
    house: House, orchestrator: Orchestrator, model: Path
) -> None:
    """Nobody works for this run, so its steps are the first one again; each is divided, written and put together.
    Updates by two are in tests/unit/test_trainer_ranks.py."""
    by_two = await _publish(house, train(house, orchestrator, model, TWO, idle_seconds=0.5), 3)
    newest = max(path for path in (house.folder / "state" / "steps").iterdir() if path.name.isdigit())
    assert sorted(path.name for path in (newest / "state").glob("*.distcp")) == ["__0_0.distcp", "__1_0.distcp"]
    roots = await _roots(house, by_two)
    weights = [version_path(house.folder / "published", root) / "model.safetensors" for root in roots]
    assert all(path.read_bytes() == (model / "model.safetensors").read_bytes() for path in weights)
    assert await _publish(house, train(house, orchestrator, model, ONE, idle_seconds=0.5), by_two + 1) > by_two


async def test_at_the_last_step_all_of_them_end(house: House, orchestrator: Orchestrator, model: Path) -> None:
    """The last update is on disk when they start: what is left to do is to publish it."""
    await _publish(house, train(house, orchestrator, model, ONE, idle_seconds=600), 1)
    learner = learner_at(model, house.folder / "state" / "steps")
    learner.learn(*batch_of(0), {})
    learner.close()
    process = train(house, orchestrator, model, TWO, idle_seconds=600, max_steps=1)
    said = await asyncio.to_thread(end, process)
    assert process.returncode == 0, said
    assert await _steps(house) == 2
    newest = version_path(house.folder / "published", (await _roots(house, 2))[1])
    trained = learner.checkpoints.model_dir(1)
    assert (newest / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()
    events = _events(house)
    assert (events.count("finished"), events.count("ended")) == (1, 3)


async def _publish(house: House, process: subprocess.Popen[str], steps: int) -> int:
    """Let a trainer go on until there are so many checkpoints on chain, and end it; how many there are then."""
    try:
        await until(lambda: _events(house).count("published") >= steps or process.poll() is not None, SECONDS)
        going = process.poll() is None
        process.terminate()
        said = await asyncio.to_thread(end, process)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert going, said
    assert _events(house)[-1] == "ended", said
    there = await _steps(house)
    assert there >= steps, said
    return there


async def _roots(house: House, count: int) -> list[bytes]:
    async with house.chain("trainer") as chain:
        return [(await chain.checkpoint(house.run, step)).manifest_root for step in range(count)]


async def test_told_to_end_all_of_them_do(house: House, orchestrator: Orchestrator, model: Path) -> None:
    port = free_port()
    process = train(house, orchestrator, model, TWO, idle_seconds=600, **{"log.metrics_port": port})
    family: list[psutil.Process] = []
    try:
        await until(lambda: "published" in _events(house) or process.poll() is not None, 60)
        family += psutil.Process(process.pid).children(recursive=True)
        assert len(family) == 2
        process.terminate()
        said = await asyncio.to_thread(end, process)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert not [each for each in family if each.is_running()]
    assert _events(house).count("ended") == 2, said


def _events(house: House) -> list[str]:
    """What both processes wrote into the log."""
    path = house.folder / "trainer.jsonl"
    return [json.loads(line)["event"] for line in path.read_text().splitlines()] if path.exists() else []
