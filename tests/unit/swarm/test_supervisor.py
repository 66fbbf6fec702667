"""The supervisor with real processes: start order, restarts and shutdown, without touching other processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from muster.errors import ConfigError, MalformedError, UnreachableError, UsageError
from muster.swarm import processes
from muster.swarm import supervisor as module
from muster.swarm.processes import Child, Leader, is_alive, leader, session_members
from muster.swarm.state import SwarmState, check_free, end_swarm, read_state
from muster.swarm.supervisor import ProcessEvent, ProcessSpec, Supervisor, SwarmError, check_ports, free_ports
from testbed.waiting import BOUND, until

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)
SLEEP = "import time; time.sleep(600)"
PARENT = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); time.sleep(600)"
LISTEN = (
    "import socket, sys, time; time.sleep({wait}); s = socket.create_server(('127.0.0.1', {port})); time.sleep(600)"
)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def spec(tmp_path: Path, name: str, code: str, **more: object) -> ProcessSpec:
    return ProcessSpec(name, python(code), tmp_path / f"{name}.log", **more)  # type: ignore[arg-type]


def leader_of(folder: Path, name: str) -> Leader:
    """Return the process that the state file has under a name."""
    state = read_state(folder)
    assert state is not None
    return state.processes[name]


def bystander() -> subprocess.Popen[bytes]:
    """Start a process outside the supervisor."""
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)


async def test_a_process_is_ready_before_the_next_starts(tmp_path: Path) -> None:
    reported: list[ProcessEvent] = []
    first, second = free_ports(2)
    async with Supervisor(tmp_path, reported.append) as swarm:
        await swarm.start(spec(tmp_path, "chain", LISTEN.format(wait=0.3, port=first), ready_port=first))
        await swarm.start(spec(tmp_path, "service", LISTEN.format(wait=0, port=second), ready_port=second))
    order = [(event.kind, event.name) for event in reported]
    assert order == [
        ("started", "chain"),
        ("ready", "chain"),
        ("started", "service"),
        ("ready", "service"),
        ("ended", "service"),
        ("ended", "chain"),
    ]


async def test_ending_reaches_grandchildren_and_the_stubborn(tmp_path: Path) -> None:
    reported: list[ProcessEvent] = []
    other = bystander()
    try:
        async with Supervisor(tmp_path, reported.append) as swarm:
            await swarm.start(spec(tmp_path, "parent", PARENT, stop_seconds=BOUND))
            await swarm.start(spec(tmp_path, "stubborn", STUBBORN, stop_seconds=0.3))
            parent, stubborn = leader_of(tmp_path, "parent"), leader_of(tmp_path, "stubborn")
            await until(lambda: len(session_members(parent)) == 2)
            await until(lambda: (tmp_path / "stubborn.log").read_text() == "up\n")
        assert session_members(parent) == session_members(stubborn) == []
        assert {event.name: dict(event.details) for event in reported if event.kind == "ended"} == {
            "parent": {},
            "stubborn": {"by": "SIGKILL"},
        }
        assert other.poll() is None
        assert read_state(tmp_path) is None
    finally:
        other.kill()
        other.wait()


async def test_a_process_that_dies_is_restarted(tmp_path: Path) -> None:
    reported: list[ProcessEvent] = []
    async with Supervisor(tmp_path, reported.append) as swarm:
        await swarm.start(spec(tmp_path, "worker", "import time; time.sleep(600)"))
        before = leader_of(tmp_path, "worker")
        os.kill(before.pid, signal.SIGKILL)
        await until(lambda: [event.kind for event in reported] == ["started", "died", "started", "restarted"])
        after = leader_of(tmp_path, "worker")
        assert after != before
        assert is_alive(after)
        state = read_state(tmp_path)
        assert state is not None
        assert state.processes == {"worker": after}
    assert reported[1].details == {"status": -signal.SIGKILL}
    assert not is_alive(after)


async def test_children_of_a_dead_process_are_ended(tmp_path: Path) -> None:
    """A worker's engine must not outlive the worker and hold its memory beside the next one's."""
    async with Supervisor(tmp_path) as swarm:
        await swarm.start(spec(tmp_path, "parent", PARENT))
        before = leader_of(tmp_path, "parent")
        await until(lambda: len(session_members(before)) == 2)
        os.kill(before.pid, signal.SIGKILL)
        await until(lambda: session_members(before) == [])


async def test_restarts_are_bounded_and_the_failure_has_the_last_words(tmp_path: Path) -> None:
    reported: list[ProcessEvent] = []
    code = "print('no such thing'); raise SystemExit(3)"
    async with Supervisor(tmp_path, reported.append) as swarm:
        await swarm.start(spec(tmp_path, "broken", code, restarts=2, back_off=(0.01,)))
        with pytest.raises(SwarmError, match=r"broken died 3 times, with status 3(.|\n)*no such thing") as caught:
            await swarm.guard(asyncio.sleep(BOUND))
    assert caught.value.hint == f"read {tmp_path / 'broken.log'}"
    assert [event.kind for event in reported].count("started") == 3


async def test_a_final_status_is_no_death(tmp_path: Path) -> None:
    reported: list[ProcessEvent] = []
    async with Supervisor(tmp_path, reported.append) as swarm:
        await swarm.start(spec(tmp_path, "trainer", "pass", final_statuses=(0,)))
        await until(lambda: reported[-1].kind == "finished")
        await until(lambda: not swarm.keeps("trainer"))
        assert not swarm.failure.done()
    assert [event.kind for event in reported] == ["started", "finished"]


async def test_settings_that_cannot_work_are_not_tried_again(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as swarm:
        await swarm.start(spec(tmp_path, "wrong", "raise SystemExit(78)"))
        with pytest.raises(SwarmError, match="wrong died 1 times, with status 78"):
            await swarm.guard(asyncio.sleep(BOUND))


async def test_process_is_restarted_only_from_its_saved_state(tmp_path: Path) -> None:
    """Restarted, the first process is still the last to end."""
    saved, reported = tmp_path / "saved", list[ProcessEvent]()
    async with Supervisor(tmp_path, reported.append) as swarm:
        await swarm.start(spec(tmp_path, "chain", "import time; time.sleep(600)", restart_from=saved))
        await swarm.start(spec(tmp_path, "worker", "import time; time.sleep(600)"))
        saved.touch()
        os.kill(leader_of(tmp_path, "chain").pid, signal.SIGKILL)
        await until(lambda: reported[-1].kind == "restarted")
    assert [event.name for event in reported if event.kind == "ended"] == ["worker", "chain"]
    saved.unlink()
    async with Supervisor(tmp_path) as swarm:
        await swarm.start(spec(tmp_path, "chain", "raise SystemExit(1)", restart_from=saved))
        with pytest.raises(SwarmError, match="chain died 1 times, with status 1"):
            await swarm.guard(asyncio.sleep(BOUND))


async def test_a_process_that_is_not_essential_is_given_up(tmp_path: Path) -> None:
    reported: list[ProcessEvent] = []
    async with Supervisor(tmp_path, reported.append) as swarm:
        await swarm.start(spec(tmp_path, "cheater", "raise SystemExit(1)", restarts=0, essential=False))
        await until(lambda: reported[-1].kind == "given up")
        assert not swarm.failure.done()


async def test_guard_returns_what_the_work_returns(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as swarm:
        assert await swarm.guard(asyncio.sleep(0, "done")) == "done"


async def test_work_that_loses_a_cancellation_is_cancelled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CANCEL_SECONDS", 0.05)
    lost: list[int] = []

    async def deaf() -> None:
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                lost.append(1)
                if len(lost) == 3:
                    raise

    async with Supervisor(tmp_path) as swarm:
        guarded = asyncio.create_task(swarm.guard(deaf()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        guarded.cancel()
        with pytest.raises(asyncio.CancelledError):
            await guarded
    assert len(lost) == 3


async def test_a_process_that_never_gets_ready_is_an_error_and_is_ended(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with pytest.raises(UnreachableError, match=r"slow is not ready after 0\.3 s"):
        async with Supervisor(tmp_path) as swarm:
            await swarm.start(
                spec(tmp_path, "slow", "import time; time.sleep(600)", ready_port=port, ready_seconds=0.3)
            )
    assert read_state(tmp_path) is None


async def test_a_missing_program_is_an_error(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as swarm:
        with pytest.raises(ConfigError, match="/no/such/program cannot be started") as caught:
            await swarm.start(ProcessSpec("x", ("/no/such/program",), tmp_path / "x.log"))
    assert caught.value.hint == "make setup"


async def test_run_waits_for_the_end_and_wants_status_zero(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as swarm:
        await swarm.run(spec(tmp_path, "good", "pass"))
        with pytest.raises(SwarmError, match="bad failed with status 7"):
            await swarm.run(spec(tmp_path, "bad", "raise SystemExit(7)"))
        with pytest.raises(SwarmError, match=r"slow is not done after 0\.2 s"):
            await swarm.run(spec(tmp_path, "slow", SLEEP, ready_seconds=0.2))


async def test_an_occupied_port_is_named_before_anything_starts(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    taken = spec(tmp_path, "x", LISTEN.format(wait=0, port=port), ready_port=port)
    async with Supervisor(tmp_path) as swarm:
        await swarm.start(taken)
        with pytest.raises(ConfigError, match=f"port {port} is occupied"):
            check_ports([port])


async def test_environment_reaches_the_process_and_not_its_command_line(tmp_path: Path) -> None:
    code = "import os, time; print(os.environ['COLOUR'], flush=True); time.sleep(600)"
    async with Supervisor(tmp_path) as swarm:
        await swarm.start(spec(tmp_path, "x", code, environment={"COLOUR": "blue"}, nice=3))
        await until(lambda: (tmp_path / "x.log").read_text() == "blue\n")
        pid = leader_of(tmp_path, "x").pid
        assert b"blue" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        expected = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 3)
        assert os.getpriority(os.PRIO_PROCESS, pid) == expected
        group = Path(f"/proc/{pid}/autogroup")
        assert not group.exists() or group.read_text().endswith(f"nice {expected}\n")


RUNNER = f"""
import asyncio, sys
from pathlib import Path
from muster.swarm.supervisor import ProcessSpec, Supervisor, interruptible
folder = Path(sys.argv[1])
async def main():
    async with Supervisor(folder) as swarm:
        for name, code in (("parent", {PARENT!r}), ("stubborn", {STUBBORN!r})):
            await swarm.start(ProcessSpec(name, (sys.executable, "-c", code), folder / (name + ".log"), stop_seconds=1))
        print("running", flush=True)
        await asyncio.sleep(600)
try:
    asyncio.run(interruptible(main()))
except KeyboardInterrupt:
    sys.exit(130)
"""


def start_runner(folder: Path) -> subprocess.Popen[str]:
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert runner.stdout is not None
    assert runner.stdout.readline() == "running\n"
    return runner


def finish(*processes: subprocess.Popen) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait(BOUND)
        if process.stdout:
            process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_every_group_and_no_other(tmp_path: Path, number: signal.Signals) -> None:
    other, runner = bystander(), start_runner(tmp_path)
    try:
        state = read_state(tmp_path)
        assert state is not None
        await until(lambda: len(session_members(state.processes["parent"])) == 2)
        runner.send_signal(number)
        runner.send_signal(number)
        assert await asyncio.to_thread(runner.wait, BOUND) == 130
        assert [session_members(who) for who in state.processes.values()] == [[], []]
        assert other.poll() is None
        assert read_state(tmp_path) is None
    finally:
        finish(other, runner)


async def test_a_left_swarm_is_ended_by_number_and_start_time_only(tmp_path: Path) -> None:
    other, runner = bystander(), start_runner(tmp_path)
    try:
        runner.kill()
        runner.wait(BOUND)
        state = read_state(tmp_path)
        assert state is not None
        with pytest.raises(UsageError, match="a swarm is running"):
            check_free(tmp_path)
        # The bystander has a number that the file names, with the start time of an earlier process.
        stranger = Leader(other.pid, leader(other.pid).started - 60)
        SwarmState(state.supervisor, {**state.processes, "stranger": stranger}).write(tmp_path)
        assert sorted(await end_swarm(tmp_path, seconds=1)) == ["parent", "stubborn"]
        assert [session_members(who) for who in state.processes.values()] == [[], []]
        assert other.poll() is None
        assert await end_swarm(tmp_path) == []
    finally:
        finish(other, runner)


async def test_down_asks_a_living_supervisor(tmp_path: Path) -> None:
    runner = start_runner(tmp_path)
    try:
        waiting = asyncio.create_task(asyncio.to_thread(runner.wait, BOUND))
        assert sorted(await end_swarm(tmp_path, seconds=BOUND)) == ["parent", "stubborn", "supervisor"]
        assert await waiting == 130
    finally:
        finish(runner)


def test_a_broken_state_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "swarm.json").write_text(json.dumps({"supervisor": 3}))
    with pytest.raises(MalformedError) as caught:
        read_state(tmp_path)
    assert caught.value.hint == f"rm {tmp_path / 'swarm.json'}"


async def test_a_process_that_cannot_be_looked_after_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def refuse(pid: int, _: int) -> None:
        started.append(pid)
        raise PermissionError(13, "not yours to decide")

    monkeypatch.setattr(processes, "make_nice", refuse)
    async with Supervisor(tmp_path) as swarm:
        with pytest.raises(ConfigError, match="not yours to decide"):
            await swarm.start(spec(tmp_path, "x", SLEEP, nice=3))
    assert [psutil.pid_exists(pid) for pid in started] == [False]


async def test_a_leader_that_ends_at_once_is_still_named(tmp_path: Path) -> None:
    child = Child(python("pass"), {}, tmp_path / "x.log", 0)
    await child.wait()
    assert not is_alive(child.name)
    assert await child.end(1) == (0, True)
