"""A process of an engine ends with whatever it started, without taking the end of its children for a failure."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE

from muster.clients.answering import end_process
from testbed.waiting import BOUND, until

LEADER = """
import signal, subprocess, sys
child = subprocess.Popen(["sleep", "1000"])
def end(*_):
    try:
        print("failed: its child ended with", child.wait(1), flush=True)
    except subprocess.TimeoutExpired:
        print("ended", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, end)
print(child.pid, flush=True)
while True:
    signal.pause()
"""


async def test_only_the_process_is_asked_and_its_children_end_with_it() -> None:
    command = [sys.executable, "-c", LEADER]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, start_new_session=True)
    assert process.stdout is not None
    child = int(await asyncio.wait_for(process.stdout.readline(), BOUND))
    await end_process(process)
    assert (await process.stdout.read()).decode() == "ended\n"
    await until(lambda: not _is_running(child), "the end of its child")


async def test_a_process_that_has_ended_leaves_no_children() -> None:
    command = ["sh", "-c", "sleep 1000 >/dev/null & echo $!"]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, start_new_session=True)
    assert process.stdout is not None
    child = int(await asyncio.wait_for(process.stdout.readline(), BOUND))
    await process.wait()
    assert _is_running(child)
    await end_process(process)
    await until(lambda: not _is_running(child), "the end of its child")


def _is_running(process: int) -> bool:
    """Say whether a process runs; one that ended and waits for its parent does not."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except FileNotFoundError:
        return False
