"""One process group: who is in it, and how it is ended without touching any other.

A process number alone says nothing, since the kernel hands it out again. A process is named by its number and the
time it started (clock ticks since boot, field 22 of /proc/PID/stat), together unique while the machine is up. Every
process of a swarm leads a session of its own, so what it starts itself is found by that session's number.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

KILL_SECONDS: Final = 10.0
"""Longest wait for a group to be gone after SIGKILL."""

AUTOGROUP_ATTEMPTS: Final = 10
AUTOGROUP_SECONDS: Final = 0.03

MOST_NICE: Final = 19
_PROC: Final = Path("/proc")
_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True)
class Member:
    """A process as /proc shows it."""

    pid: int
    session: int
    started: int
    """Clock ticks since boot."""
    zombie: bool


@dataclass(frozen=True)
class Leader:
    """A process that leads a session, named so that it cannot be mistaken for a later one of the same number."""

    pid: int
    started: int


def look(pid: int) -> Member | None:
    """The process with this number, or None."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name in parentheses may hold anything, so fields are counted from its end: state is the third of all.
    fields = text.rpartition(")")[2].split()
    return Member(pid, session=int(fields[3]), started=int(fields[19]), zombie=fields[0] in ("Z", "X"))


def leader(pid: int) -> Leader:
    """Name a process that was just started. Raises ProcessLookupError if it is gone without being waited for."""
    found = look(pid)
    if found is None:
        raise ProcessLookupError(pid)
    return Leader(pid, found.started)


def make_nice(pid: int, more: int) -> None:
    """Let others go first: the process, and its session, which some kernels schedule as one (autogroup, sched(7)).

    `more` comes on top of our own niceness: nobody without privileges may be less nice than that.
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
        except BaseException:  # nobody will know of it, so nobody else could end it
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
        """End the whole session and reap the leader: its exit status, and whether SIGTERM was enough."""
        polite = await end_session(self.name, seconds)
        os.close(self._descriptor)
        return self._process.wait(timeout=KILL_SECONDS), polite


def is_alive(who: Leader) -> bool:
    """Whether exactly this process still runs."""
    found = look(who.pid)
    return found is not None and found.started == who.started and not found.zombie


def session_members(who: Leader) -> list[int]:
    """Running processes of the leader's session, the leader included.

    Empty when another process has taken the number, since a number is only given again once its session is empty.
    """
    now = look(who.pid)
    if now is not None and now.started != who.started:
        return []
    numbers = (int(entry) for entry in os.listdir(_PROC) if entry.isdigit())
    found = (look(number) for number in numbers)
    return [member.pid for member in found if member and _belongs(member, who) and not member.zombie]


def _belongs(member: Member, who: Leader) -> bool:
    return member.session == who.pid and member.started >= who.started


async def end_session(who: Leader, seconds: float) -> bool:
    """End a session: SIGTERM, and after `seconds` SIGKILL. Returns whether SIGTERM was enough.

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
