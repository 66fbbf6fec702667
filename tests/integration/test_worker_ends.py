"""How a worker ends: soon after a signal in any state of its engine, and without an error once it has retired.

Real chain, orchestrator, origin and engine.
"""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from muster.contracts import registry
from testbed.processes import Service, ended
from testbed.runs.world import World

END_SECONDS = 5.0
"""Of CPU time, from Ctrl-C to the end of the process: what an interpreter with an engine in it takes apart is more."""


async def interrupted(process: Service) -> float:
    """Send what Ctrl-C sends and wait; CPU seconds it took to end."""
    looked_at = psutil.Process(process.pid)
    before = sum(looked_at.cpu_times()[:2])
    process.process.send_signal(signal.SIGINT)
    await asyncio.to_thread(os.waitid, os.P_PID, looked_at.pid, os.WEXITED | os.WNOWAIT)
    spent = sum(looked_at.cpu_times()[:2]) - before
    assert process.end()[0] == 0, process.said
    return spent


@pytest.fixture
def world(shared_world: World) -> World:
    return shared_world


@pytest.mark.parametrize(
    "forked", [pytest.param(True, id="forked"), pytest.param(False, id="from a shell", marks=pytest.mark.slow)]
)
async def test_worker_ends_in_time_while_engine_starts_or_generates(world: World, forked: bool) -> None:
    worker = world.node("worker", "w1")
    if not forked:  # a fresh process also tests vLLM's import and its interruption
        worker.environment["MUSTER_TEST_FORKS"] = "0"

    async def said(event: str) -> None:
        before = len(worker.logged(event))
        worker.start()
        await asyncio.to_thread(worker.wait_until, lambda: len(worker.logged(event)) > before, event)

    with ended(worker):
        await said("starting the engine")
        await asyncio.sleep(1)  # into vLLM's imports, which nothing can interrupt
        assert await interrupted(worker) < END_SECONDS
        await said("generated")
        maps = Path(f"/proc/{worker.pid}/maps").read_text().splitlines()
        held = [line for line in maps if "/dev/shm/" in line]
        assert all(line.endswith("(deleted)") for line in held), "a killed process leaves nothing in shared memory"
        assert await interrupted(worker) < END_SECONDS
        temporary = world.run_fixture.state("w1") / "temporary"
        assert list(temporary.iterdir()) == [], "where vLLM's ranks met is gone"
        (temporary / "half").write_bytes(b"left by one that was killed")
        worker.change({"run": 99})
        worker.environment.pop("MUSTER_TEST_FORKS", None)  # this one ends before it imports vLLM
        assert worker.spawn().end()[0] != 0, "there is no such run"
        assert list(temporary.iterdir()) == [], "cleared at the next start"


async def test_a_retired_worker_says_so_calmly_and_ends_with_0(world: World) -> None:
    run_fixture = world.run_fixture
    async with run_fixture.chain("operator of w2") as chain:
        await chain.send(registry.retire(run_fixture.key("w2").address))
        at = await chain.call(registry.withdrawable_at(run_fixture.key("w2").address))
    worker = world.node("worker", "w2")
    status, said = await asyncio.to_thread(worker.spawn().end)
    assert status == 0, said
    (end,) = worker.logged("finished")
    assert end["reason"].startswith("this worker has retired, with no open case against it; its stake can be withdrawn")
    assert datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S") in end["reason"]
    assert end["next"].startswith("start it once a day until then")
    assert not any(word in said for word in ("error", "exception", "Traceback", "Task")), said
    assert not (run_fixture.state("w2") / "weights").exists(), "it fetched none"
