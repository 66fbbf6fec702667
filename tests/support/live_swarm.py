"""A swarm that trains while tests watch it, and a newcomer who joins it, both as people start them."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from muster.chain.keys import write_secret
from muster.swarm.state import read_state

START_SECONDS: Final = 240.0
END_SECONDS: Final = 120.0
MUSTER: Final = (sys.executable, "-m", "muster")

T = TypeVar("T")


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
        from muster.chain.keys import load_raw_key
        from muster.constants import CHAIN_ANVIL

        return str(load_raw_key(self.folder / "keys" / name, CHAIN_ANVIL).address)


@contextmanager
def live_swarm(folder: Path, *words: str) -> Iterator[LiveSwarm]:
    """A demo's swarm with more steps than anybody waits for, from the moment that its orchestrator is ready."""
    log, settings = folder / "swarm.log", folder / "swarm" / "orchestrator" / "muster.toml"
    command = [*MUSTER, "swarm", "demo", "--folder", str(folder / "swarm"), "--steps", "2000", *words]
    with _started(command, folder, log, {}) as process:

        def ready() -> str:
            found = re.search(r'^url = "(.+)"$', settings.read_text(), re.MULTILINE) if settings.exists() else None
            return found[1] if found and get_json(found[1] + "/readyz").get("ready") else ""

        url = until("the orchestrator is ready", ready, START_SECONDS, process, log)
        yield LiveSwarm(folder / "swarm", url, process)


@contextmanager
def newcomer(command: str, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Somebody with an empty home who types a command of the page; the process, and what it says."""
    assert command.startswith("muster up http")
    folder.mkdir(mode=0o700)
    password = folder.parent / f"{folder.name}.password"
    write_secret(password, "a volunteer's password")
    words = [*MUSTER, *shlex.split(command)[1:], "--yes", "--password-file", str(password)]
    log = folder.parent / f"{folder.name}.log"
    with _started(words, folder, log, {"HOME": str(folder)}) as process:
        yield process, log


def address_in(home: Path) -> str:
    """The address of the only node that a home has; empty before there is one."""
    for path in home.glob(".muster/nodes/*/node.json"):
        return "0x" + json.loads(path.read_text())["address"].removeprefix("0x")
    return ""


def until(what: str, ready: Callable[[], T], seconds: float, process: subprocess.Popen[bytes], log: Path) -> T:
    """Wait until something is true while a process runs, bounded; what it is."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        if found := ready():
            return found
        time.sleep(0.1)
    raise AssertionError(f"never: {what} (status {process.poll()})\n{log.read_text(errors='replace')[-4000:]}")


def get_json(url: str) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=20) as reply:
            return json.load(reply)
    except (OSError, ValueError):
        return {}


@contextmanager
def _started(
    command: list[str], folder: Path, log: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended by Ctrl-C."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**kept, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(END_SECONDS)
