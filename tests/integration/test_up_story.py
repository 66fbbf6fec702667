"""Volunteers type `muster up` and leave it running: a worker commits, a validator judges, both come back after being
killed, and end with the command. Real chain, orchestrator, origin of weights, engine, replay.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from muster.contracts.registry import Registered, Role
from muster.contracts.runs import WorkCommitted
from muster.rollouts.parquet import write_rollouts
from muster.runtime.journal import FolderLock, lock_holder
from muster.swarm.processes import is_alive, leader
from muster.swarm.state import read_state
from testbed.processes import Muster
from testbed.runs.newcomer import Newcomer
from testbed.runs.world import World, commit_bytes, rows_of
from testbed.waiting import until

MIN_STEP_SECONDS = 60
"""At least the run's `min_step_interval`."""


class Volunteer(Newcomer):
    """A newcomer to a world, on whose machine `muster up` runs."""

    def __init__(self, world: World, folder: Path) -> None:
        super().__init__(folder)
        self.world = world

    def typing(self, *words: object) -> Running:
        """Return the command, with a password in a file and no terminal."""
        environment = {"HOME": str(self.home), "OMP_NUM_THREADS": "1"}
        words = ("up", f"{self.world.orchestrator.url}/join", *words)
        return Running(words, self.folder / "up.log", folder=self.folder, environment=environment)


class Running(Muster):
    """A `muster up` in a separate process."""

    async def says(self, text: str) -> None:
        """Wait until it has said what matches a pattern."""
        await asyncio.to_thread(self.wait_until, lambda: re.search(text, self.said), text)

    def child(self, role: str) -> int:
        """The number of the node's process, as it was said last."""
        return int(re.findall(rf"the {role} runs as process (\d+)", self.said)[-1])


@pytest.fixture
def world(shared_world: World) -> World:
    return shared_world


@pytest.fixture
async def volunteer(world: World, tmp_path: Path) -> AsyncIterator[Volunteer]:
    made = Volunteer(world, tmp_path / "volunteer")
    yield made
    await asyncio.to_thread(made.end_what_is_left)


async def test_a_validator_from_an_empty_home_to_a_verdict(world: World, volunteer: Volunteer) -> None:
    words = ("--role", "validator", "--name", "v9", "--yes", "--password-file", str(volunteer.password))
    with volunteer.typing(*words) as running:
        await running.says("moved 100 MUST into the free balance")
        (joined,) = [event for event in await world.events(Registered) if event.role == Role.VALIDATOR][-1:]
        rows = await rows_of(world, "w1", lambda row: {"budget": row.budget + 1})
        await commit_bytes(world, "w1", write_rollouts(rows))

        async def judged() -> bool:
            return any(verdict.validator == joined.node for verdict in await world.verdicts("w1"))

        await until(judged, "a verdict")
        await running.says("judged .*reason=wrong_draw")
        assert (await asyncio.to_thread(running.stop, signal.SIGTERM))[0] == 130
    (verdict,) = [one for one in await world.verdicts("w1") if one.validator == joined.node]
    assert (verdict.accepted, verdict.reason, verdict.position) == (False, "wrong_draw", 9)
    assert lock_holder(volunteer.nodes / "v9" / "state") is None


async def test_a_worker_from_an_empty_home_to_work_on_chain_and_back_again(world: World, volunteer: Volunteer) -> None:
    run_fixture = world.run_fixture
    server = ("--yes", "--password-file", str(volunteer.password))
    place = volunteer.nodes / "run-1-worker"

    # 1. One command, no edits: its engine is checked, it joins, starts before its first step is there, and commits.
    with volunteer.typing(*server, "--check-engine") as first:
        await first.says("engine: 64 rows generated and replayed, none rejected")
        await first.says("locked 100 MUST")
        (joined,) = [event for event in await world.events(Registered) if event.role == Role.WORKER][-1:]
        await first.says("pay per commitment")
        log = place / "log.jsonl"
        await until(lambda: _is_logged(log, "engine started"), "an engine")
        for step in (1, 2):
            async with run_fixture.local_chain() as clock:
                await clock.advance(MIN_STEP_SECONDS)
            await run_fixture.publish_model(step)

        async def committed() -> bool:
            return any(event.node == joined.node for event in await world.events(WorkCommitted))

        await until(committed, "a commitment")
        await first.says(r" committed .*index=0")
        worker = leader(first.child("worker"))
        assert (await asyncio.to_thread(first.stop))[0] == 130
    assert first.said.rstrip().endswith("interrupted")
    assert (lock_holder(place / "state"), read_state(place)) == (None, None), "the worker ended with it"
    assert not is_alive(worker)

    # 2. The same command resumes. It restarts a worker that dies.
    with volunteer.typing(*server) as second:
        await second.says("the worker runs as process")
        before = second.child("worker")
        os.kill(before, signal.SIGKILL)
        await second.says("it starts again")
        await until(lambda: _is_another(second, before), "another")
        assert "locked" not in second.said
        second.kill()
    left = leader(second.child("worker"))
    assert is_alive(left), "it outlives the killed command"

    # 3. What a killed command left running is ended by the next, which says why the worker ends in the end.
    with volunteer.typing(*server) as third:
        await third.says("ended the worker that an earlier muster up left running")
        await third.says("the worker runs as process")
        assert not is_alive(left)
        operator = ("--operator", "operator", "--password-file", volunteer.password)
        retire = ("worker", "retire", "--config", place / "muster.toml", *operator, "--yes")
        await asyncio.to_thread(lambda: volunteer.json(*retire))
        assert (await asyncio.to_thread(third.end))[0] == 0
    assert "the worker ended: this worker has retired, with no open case against it" in third.said
    assert len([event for event in await world.events(Registered) if event.operator == joined.operator]) == 1
    with FolderLock(place / "state"):
        pass


async def _is_logged(log: Path, event: str) -> bool:
    return log.exists() and f'"event": "{event}"' in log.read_text()


async def _is_another(running: Running, before: int) -> bool:
    return running.child("worker") != before
