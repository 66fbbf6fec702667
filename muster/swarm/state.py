"""What a swarm has running, on disk, so that one whose supervisor was killed can still be ended.

The file lies in the swarm's folder and names each process by number and start time (`muster.swarm.processes`). It is
replaced atomically whenever a process starts or ends, and removed when the swarm has ended in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

from muster.constants import MAX_FILE_BYTES
from muster.errors import UsageError
from muster.runtime.documents import parse_json
from muster.runtime.files import write_atomically
from muster.swarm.processes import Leader, end_session, is_alive, session_members

STATE_FILE = "swarm.json"


@dataclass(frozen=True)
class SwarmState:
    """Processes by name; `supervisor` is the one that looks after them."""

    supervisor: Leader
    processes: dict[str, Leader]

    def write(self, folder: Path) -> None:
        write_atomically(folder / STATE_FILE, json.dumps(asdict(self), indent=1))


def read_state(folder: Path) -> SwarmState | None:
    """Return the state of the swarm in a folder, None if there is none. Raises MalformedError."""
    path = folder / STATE_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return parse_json(SwarmState, data, f"the state of a swarm in {path}", MAX_FILE_BYTES, hint=f"rm {path}")


def remove_state(folder: Path) -> None:
    (folder / STATE_FILE).unlink(missing_ok=True)


def check_free(folder: Path) -> None:
    """Raise UsageError if a swarm is running, or was left, in this folder."""
    state = read_state(folder)
    if state is None:
        return
    if is_alive(state.supervisor) or any(session_members(who) for who in state.processes.values()):
        raise UsageError(f"a swarm is running in {folder}", hint=f"muster swarm down --folder {folder}")
    remove_state(folder)


async def end_swarm(folder: Path, seconds: float = 10) -> list[str]:
    """End what a swarm left running, its supervisor first; return the names of what was ended.

    A running supervisor gets a signal to end its swarm itself, and has `seconds` for every step of that.
    """
    state = read_state(folder)
    if state is None:
        return []
    running = [name for name, who in state.processes.items() if session_members(who)]
    if is_alive(state.supervisor):
        running.append("supervisor")
        await _end_supervisor(state.supervisor, 3 * seconds)
    await asyncio.gather(*(end_session(who, seconds) for who in state.processes.values()))
    remove_state(folder)
    return running


async def _end_supervisor(who: Leader, seconds: float) -> None:
    """Send SIGTERM, then SIGKILL, to the supervisor alone: it may share its session with a person's shell."""
    for number, bound in ((signal.SIGTERM, seconds), (signal.SIGKILL, 10.0)):
        if not is_alive(who):
            return
        os.kill(who.pid, number)
        for _ in range(int(bound / 0.05)):
            if not is_alive(who):
                return
            await asyncio.sleep(0.05)
