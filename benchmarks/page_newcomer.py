"""The first ten minutes of a volunteer: from the page's command to the first accepted commitment, on a local swarm.

A swarm as `muster swarm up` starts it; then the page's own join command, word for word, with an empty home, in an empty
folder, and with a file instead of a person who types a password. `benchmarks/page.py` prints it.
"""

from __future__ import annotations

import html
import json
import os
import re
import secrets
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
from typing import Any, Final

from benchmarks.report import Figure, figure
from muster.chain.keys import write_secret

ROOT: Final = Path(__file__).resolve().parent.parent
STEPS_BEFORE: Final = 1
"""The swarm is running once it has published this step: its engines are up, its validators at work."""
SWARM_SECONDS: Final = 600.0
JOIN_SECONDS: Final = 900.0
SETUP_SECONDS: Final = 1_800.0
END_SECONDS: Final = 90.0
TARGET_MINUTES: Final = 3.0
FRESH_TARGET_MINUTES: Final = 10.0
EXTRA_WORDS: Final = ("--yes", "--password-file")
"""In place of a person at a terminal."""


@dataclass(frozen=True)
class Newcomer:
    """What one volunteer took."""

    command: str
    """As the page shows it."""
    seconds: float
    edits: int
    """Files that were there before the command, such as settings."""


def measure_newcomer(folder: Path, say: Callable[[str], None]) -> Newcomer:
    """Start a swarm in `folder`, and become one of its workers by the page's command. Takes several minutes."""
    with local_swarm(folder / "swarm", say) as url:
        command = join_command(url)
        say(f"typing: {command}")
        home = folder / "newcomer"
        home.mkdir()
        edits = len(list(home.rglob("*")))
        return Newcomer(command, time_to_accepted(url, command, home, folder / "password"), edits)


@contextmanager
def local_swarm(folder: Path, say: Callable[[str], None]) -> Iterator[str]:
    """Yield the orchestrator's URL of a swarm that has published a step; end the swarm afterwards."""
    log = folder.parent / "swarm.log"
    words = ("-m", "muster", "swarm", "up", "--folder", str(folder), "--port", "0")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *words], stdout=output, stderr=output, env=_environment(), start_new_session=True
        )
        try:
            url = _wait(lambda: _running_url(folder), process, log, SWARM_SECONDS, "a running swarm")
            say(f"a swarm runs at {url}")
            yield url
        finally:
            _interrupt(process)


def join_command(url: str) -> str:
    """Return the command that the page tells people to type."""
    text = html.unescape(_get(f"{url}/join").decode())
    found = re.search(r"muster up http[^\s<]+", text)
    if found is None:
        raise SystemExit(f"{url}/join shows no command")
    return found.group()


def time_to_accepted(url: str, command: str, home: Path, password: Path) -> float:
    """Type a command and return the seconds until a worker that was not there before has work accepted."""
    write_secret(password, secrets.token_urlsafe(16))
    before, log = set(workers_of(url)), home.parent / "newcomer.log"
    environment = {**_environment(), "HOME": str(home)}
    words = [*shlex.split(command), EXTRA_WORDS[0], EXTRA_WORDS[1], str(password)]
    with log.open("wb") as output:
        begun = time.monotonic()
        process = subprocess.Popen(
            words, cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:

            def accepted() -> bool:
                return any(count for address, count in workers_of(url).items() if address not in before)

            _wait(accepted, process, log, JOIN_SECONDS, "accepted work")
            return time.monotonic() - begun
        finally:
            _interrupt(process)


def measure_setup(folder: Path, say: Callable[[str], None]) -> float:
    """Return the seconds of `make setup` in a fresh clone."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    begun, log = time.monotonic(), folder.parent / "setup.log"
    environment = {name: value for name, value in _environment().items() if name != "VIRTUAL_ENV"}
    with log.open("wb") as output:
        done = subprocess.run(
            ["make", "setup"], cwd=folder, env=environment, stdout=output, stderr=output, timeout=SETUP_SECONDS
        )
    if done.returncode:
        raise SystemExit(f"make setup failed:\n{log.read_text(errors='replace')[-2_000:]}")
    say("a fresh clone is set up")
    return time.monotonic() - begun


def newcomer_figures(newcomer: Newcomer, setup: float | None) -> list[Figure]:
    """Return the figures; the one from a fresh clone where its set-up was timed."""
    minutes = newcomer.seconds / 60
    commands = len(newcomer.command.splitlines())
    found = [
        figure("first_accepted", [minutes], ratio=minutes, target=TARGET_MINUTES, unit="minutes", at_most=True),
        figure("commands", [commands], ratio=commands, target=1, unit="typed", at_most=True, command=newcomer.command),
        figure("edits", [newcomer.edits], ratio=newcomer.edits, target=0, unit="files", at_most=True),
    ]
    if setup is not None:
        whole = minutes + setup / 60
        found.insert(
            1,
            figure(
                "first_accepted_fresh",
                [whole],
                ratio=whole,
                target=FRESH_TARGET_MINUTES,
                unit="minutes, set-up included",
                at_most=True,
                setup_seconds=round(setup),
            ),
        )
    return found


def workers_of(url: str) -> dict[str, int]:
    """Return the accepted commitments of each worker."""
    summary: dict[str, Any] = json.loads(_get(f"{url}/v1/runs/{run_of(url)}/summary"))
    return {node["address"]: node["accepted"] for node in summary["nodes"] if node["role"] == "worker"}


def run_of(url: str) -> int:
    return json.loads(_get(f"{url}/version"))["run"]


def _running_url(folder: Path) -> str:
    """Return the URL of a swarm's orchestrator once it has published STEPS_BEFORE; empty before."""
    settings = folder / "orchestrator" / "muster.toml"
    found = re.search(r'^url = "(.+)"$', settings.read_text(), re.MULTILINE) if settings.exists() else None
    if found is None:
        return ""
    try:
        demand = json.loads(_get(f"{found[1]}/v1/runs/{run_of(found[1])}/demand"))
    except OSError:
        return ""
    return found[1] if demand["step"] >= STEPS_BEFORE else ""


def _wait(ready: Callable[[], Any], process: subprocess.Popen[bytes], log: Path, seconds: float, what: str) -> Any:
    """Wait until something is so while a process runs. Ends the benchmark when it does not come."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        if found := ready():
            return found
        time.sleep(0.2)
    raise SystemExit(f"no {what} (status {process.poll()}):\n{log.read_text(errors='replace')[-4_000:]}")


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Press Ctrl-C, and wait for the end."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


def _get(url: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=20) as reply:
        return reply.read()


def _environment() -> Mapping[str, str]:
    """Return this process's environment without settings of Muster, and with its programs first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    return {**kept, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
