"""A swarm that trains while tests watch it, and a newcomer who joins it, both as people start them."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.chain.keys import load_raw_key, write_secret
from muster.constants import CHAIN_ANVIL
from muster.swarm.state import read_state
from testbed.commands import MUSTER, get_json, running, swarm_url, wait_for
from testbed.waiting import BOUND


@dataclass(frozen=True)
class LiveSwarm:
    """A swarm whose orchestrator answers."""

    folder: Path
    url: str
    process: subprocess.Popen[bytes]

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    def pid_of(self, name: str) -> int:
        """The number of one of its processes."""
        state = read_state(self.folder)
        assert state is not None
        return state.processes[name].pid

    def kill(self, name: str) -> None:
        """End a process as if the power had failed; the supervisor starts it again."""
        os.kill(self.pid_of(name), signal.SIGKILL)

    def get(self, path: str) -> Any:
        """A JSON answer of its orchestrator; {} when nobody answers or it is refused."""
        return get_json(self.url + path)

    def address_of(self, name: str) -> str:
        """The address of a node, by its name in the swarm's folder."""
        return str(load_raw_key(self.folder / "keys" / name, CHAIN_ANVIL).address)


@contextmanager
def live_swarm(folder: Path, *words: str) -> Iterator[LiveSwarm]:
    """A demo's swarm with more steps than anybody waits for, from the moment that its orchestrator is ready."""
    log, place = folder / "swarm.log", folder / "swarm"
    command = [*MUSTER, "swarm", "demo", "--folder", str(place), "--steps", "2000", *words]
    # A step each while, and few held-out tasks: what it computes meanwhile, tests and browser lack.
    slowly = {"MUSTER_TRAINER__POLL_SECONDS": "10", "MUSTER_TRAINER__EVAL_TASKS": "64"}
    with running(command, log, folder=folder, **slowly) as process:

        def ready() -> str:
            url = swarm_url(place)
            return url if url and get_json(url + "/readyz").get("ready") else ""

        url = wait_for("the orchestrator is ready", ready, BOUND, process, log)
        yield LiveSwarm(place, url, process)


@contextmanager
def newcomer(command: str, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Somebody with an empty home who types a command of the page; the process, and what it says."""
    assert command.startswith("muster up http")
    folder.mkdir(mode=0o700)
    password = folder.parent / f"{folder.name}.password"
    write_secret(password, "a volunteer's password")
    words = [*MUSTER, *shlex.split(command)[1:], "--yes", "--password-file", str(password)]
    log = folder.parent / f"{folder.name}.log"
    with running(words, log, folder=folder, HOME=str(folder)) as process:
        yield process, log
