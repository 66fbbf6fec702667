"""One process group: which processes are in it, and how it is ended without touching any other.

The kernel reuses process numbers, so a process is named by its number and the time it started. Every process of a swarm
leads its own session, so that session's number finds its children.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

KILL_SECONDS: Final = 10.0
"""Longest wait for a group to be gone after SIGKILL."""

AUTOGROUP_ATTEMPTS: Final = 10
AUTOGROUP_SECONDS: Final = 0.03

SAME_SECONDS: Final = 1.0
"""Start times that differ by less are the same: the time of boot, which they are counted from, is rounded."""

MOST_NICE: Final = 19
_PROC: Final = Path("/proc")
_ENDED: Final = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True)
class Leader:
    """A process that leads a session, named so that it cannot be mistaken for a later one of the same number."""

    pid: int
    started: float
    """Seconds since the epoch."""


def leader(pid: int) -> Leader:
    """Name a process that was just started. Raises psutil.NoSuchProcess if it is gone without being waited for."""
    return Leader(pid, psutil.Process(pid).create_time())


def make_nice(pid: int, more: int) -> None:
    """Lower the priority of a process, and of its session, which some kernels schedule as one (autogroup, sched(7)).

    `more` is added to our own niceness, which an unprivileged process cannot lower.
    """
    nice = min(MOST_NICE, os.getpriority(os.PRIO_PROCESS, 0) + more)
    os.setpriority(os.PRIO_PROCESS, pid, nice)
    for _ in range(AUTOGROUP_ATTEMPTS):
        try:
            (_PROC / str(pid) / "autogroup").write_text(str(nice))
        except BlockingIOError:  # a user without privileges may ask ten times a second
            time.sleep(AUTOGROUP_SECONDS)
        except OSError:  # this kernel does not schedule by session
            return
        else:
            return


class Child:
    """A process that leads its own session; reaped only after its session is empty, so the number stays its own."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path, nice: int) -> None:
        """Start it, with stdout and stderr appended to `log`. Raises OSError when the program cannot be run."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as stream:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        try:
            self.name = leader(self._process.pid)
            self._descriptor = os.pidfd_open(self._process.pid)
            if nice:
                make_nice(self._process.pid, nice)
        except BaseException:  # only this function knows of it, so it must end it
            self._process.kill()
            self._process.wait(KILL_SECONDS)
            raise

    async def wait(self) -> None:
        """Return when the process has ended; it stays a zombie until `end`."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        # A pidfd becomes readable when its process ends, and stays so.
        loop.add_reader(self._descriptor, lambda: ended.done() or ended.set_result(None))
        try:
            await ended
        finally:
            loop.remove_reader(self._descriptor)

    async def end(self, seconds: float) -> tuple[int, bool]:
        """End the whole session and reap the leader; return its exit status, and whether SIGTERM was enough."""
        polite = await end_session(self.name, seconds)
        os.close(self._descriptor)
        return self._process.wait(timeout=KILL_SECONDS), polite


def is_alive(who: Leader) -> bool:
    """Return whether exactly this process still runs."""
    try:
        process = psutil.Process(who.pid)
        return _is(process, who) and process.status() not in _ENDED
    except psutil.NoSuchProcess:
        return False


def session_members(who: Leader) -> list[int]:
    """Return the running processes of the leader's session, the leader included.

    Empty when another process has taken the number, since a number is only given again once its session is empty.
    """
    members = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getsid(process.pid) != who.pid:
                continue
            if process.pid == who.pid and not _is(process, who):
                return []
            if process.status() not in _ENDED:
                members.append(process.pid)
    return members


def _is(process: psutil.Process, who: Leader) -> bool:
    return abs(process.create_time() - who.started) < SAME_SECONDS


async def end_session(who: Leader, seconds: float) -> bool:
    """End a session: SIGTERM, and after `seconds` SIGKILL. Return whether SIGTERM was enough.

    Raises TimeoutError if something survives SIGKILL for KILL_SECONDS (a process stuck in the kernel).
    """
    if not _send(who, signal.SIGTERM):
        return True
    if await _gone(who, seconds):
        return True
    _send(who, signal.SIGKILL)
    if not await _gone(who, KILL_SECONDS):
        raise TimeoutError(f"process group {who.pid} survives SIGKILL")
    return False


def _send(who: Leader, number: signal.Signals) -> bool:
    members = session_members(who)
    for pid in members:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
    return bool(members)


async def _gone(who: Leader, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while session_members(who):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL_SECONDS)
    return True
