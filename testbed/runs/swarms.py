"""Local swarms as people start them: a demo to its end, and one that trains while tests watch it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from muster.chain.keys import load_raw_key, write_secret
from muster.constants import CHAIN_ANVIL
from muster.swarm.state import read_state
from testbed.http import get_json
from testbed.processes import Muster
from testbed.suite.forks import exec_process


def demo(
    folder: Path, *words: object, environment: Mapping[str, str] = MappingProxyType({}), forked: bool = True
) -> Muster:
    """Return `muster swarm demo` with its folder and report in `folder`; not `forked`: exactly as from a shell."""
    files = ("--folder", folder / "swarm", "--report", folder / "report.html")
    return Muster(
        ("swarm", "demo", *files, *words),
        folder / "err",
        output=folder / "out",
        folder=folder,
        environment=environment,
        popen=subprocess.Popen if forked else exec_process,
    )


def to_the_end(process: Muster, seconds: float) -> tuple[dict[str, Any], str]:
    """Run a demo with --json to its end; its document, and what it said on stderr."""
    status, said = process.spawn().end(seconds)
    assert status == 0, said[-8000:]
    return process.document, said


def processes_of(folder: Path) -> list[str]:
    """Command lines of running processes that name the folder, or run in it."""
    found = []
    for process in psutil.process_iter():
        try:
            words, where = " ".join(process.cmdline()), Path(process.cwd())
        except psutil.Error:
            continue
        if str(folder) in words or where.is_relative_to(folder):
            found.append(f"{process.pid}: {words}")
    return found


@dataclass(frozen=True)
class LiveSwarm:
    """A swarm whose orchestrator answers."""

    folder: Path
    url: str
    process: Muster

    @property
    def host(self) -> str:
        """Return host and port of its page."""
        return swarm_url(self.folder, "explorer_url").removeprefix("http://")

    def pid_of(self, name: str) -> int:
        """Return the number of one of its processes."""
        state = read_state(self.folder)
        assert state is not None
        return state.processes[name].pid

    def kill(self, name: str) -> None:
        """End a process as if the power had failed; the supervisor starts it again."""
        os.kill(self.pid_of(name), signal.SIGKILL)

    def get(self, path: str) -> Any:
        """Return a JSON answer of its orchestrator or explorer; {} when no server answers or it is refused."""
        return get_json(self.url + path)

    def address_of(self, name: str) -> str:
        """Return the address of a node, by its name in the swarm's folder."""
        return str(load_raw_key(self.folder / "keys" / name, CHAIN_ANVIL).address)


@contextmanager
def live_swarm(folder: Path, *words: object) -> Iterator[LiveSwarm]:
    """Yield a demo's swarm with more steps than any test waits for, from the moment that its orchestrator is ready."""
    place = folder / "swarm"
    # A step each while, and few held-out tasks: what it computes meanwhile, tests and browser lack.
    slowly = {"MUSTER_TRAINER__POLL_SECONDS": "10", "MUSTER_TRAINER__EVAL_TASKS": "64"}

    def ready() -> str:
        url = swarm_url(place)
        return url if url and get_json(url + "/readyz").get("ready") else ""

    with demo(folder, "--steps", "2000", *words, environment=slowly) as process:
        yield LiveSwarm(place, process.wait_until(ready, "the orchestrator is ready"), process)


def newcomer(command: str, folder: Path) -> Muster:
    """Return the commands of the page that a user with an empty home types."""
    assert command.startswith("muster up http")
    folder.mkdir(mode=0o700)
    password = folder.with_suffix(".password")
    write_secret(password, "a volunteer's password")
    words = [*shlex.split(command)[1:], "--yes", "--password-file", password]
    return Muster(words, folder.with_suffix(".log"), folder=folder, environment={"HOME": str(folder)})


def swarm_url(folder: Path, setting: str = "url") -> str:
    """Return the URL of a local swarm's orchestrator, or another one, by its settings; empty before it has any."""
    settings = folder / "orchestrator" / "muster.toml"
    found = re.search(rf'^{setting} = "(.+)"$', settings.read_text(), re.MULTILINE) if settings.exists() else None
    return found[1] if found else ""
