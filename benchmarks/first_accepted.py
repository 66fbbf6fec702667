"""Time from one typed command to the first accepted commitment: volunteers with empty homes join a local swarm.

    python benchmarks/first_accepted.py [--json] [--runs 3] [--keep DIR]

Starts `muster swarm up` in a folder of its own and waits for its first steps. Then a volunteer types
`muster up URL --yes --password-file FILE` with an empty home folder, edits no file, and is stopped by Ctrl-C once the
orchestrator counts an accepted commitment of its node. Each volunteer is a new one; the swarm goes on meanwhile, on the
same machine. What `make setup` compiled stays in the user's cache, where volunteers find it. `moments` are the seconds
after the command at which each volunteer's worker logged an event first.
--keep leaves all logs in a folder.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.report import figure, show
from muster.cli.logs import parsed, seconds_of

TARGET_SECONDS: Final = 180.0
SWARM_SECONDS: Final = 300.0
VOLUNTEER_SECONDS: Final = 600.0
STOP_SECONDS: Final = 90.0
STEPS: Final = 2
"""Of the swarm, before anybody joins."""
MOMENTS: Final = ("ready", "weights arrived", "engine started", "generated", "committed")
COMMAND: Final = (sys.executable, "-P", "-m", "muster")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="folder for swarm and volunteers, which stays")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="muster-first-") as name:
        folder = options.keep or Path(name)
        with running_swarm(folder) as url:
            found = [join_once(url, folder / f"volunteer-{number + 1}") for number in range(options.runs)]
    seconds = [one.pop("accepted") for one in found]
    median = sorted(seconds)[len(seconds) // 2]
    measured = figure(
        "first_accepted",
        seconds,
        ratio=median,
        target=TARGET_SECONDS,
        unit="s",
        at_most=True,
        commands=1,
        edits=0,
        moments=found,
    )
    return show([measured], as_json=options.json)


@contextmanager
def running_swarm(folder: Path) -> Iterator[str]:
    """Run a local swarm that has taken its first steps; yield the URL of its orchestrator."""
    folder.mkdir(parents=True, exist_ok=True)
    swarm = folder / "swarm"
    words = ("swarm", "up", "--folder", str(swarm), "--port", "0")
    with started(words, folder / "swarm.log", {}) as process:
        settings = swarm / "worker-1" / "muster.toml"
        until("the swarm's settings", settings.exists, SWARM_SECONDS, process)
        url = tomllib.loads(settings.read_text())["orchestrator"]["url"]
        until("the swarm's first steps", lambda: steps_of(url) > STEPS, SWARM_SECONDS, process)
        yield url


def join_once(url: str, folder: Path) -> dict[str, Any]:
    """Type the one command with an empty home; return the seconds until something was accepted, and until the rest."""
    folder.mkdir(mode=0o700)
    password = folder / "password"
    password.write_text("a volunteer's password\n")
    password.chmod(0o600)
    before, begun = time.monotonic(), time.time()
    words = ("up", url, "--yes", "--password-file", str(password))
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    with started(words, folder / "up.log", {"HOME": str(folder), "XDG_CACHE_HOME": cache}) as process:
        until("a node", lambda: list(folder.glob(".muster/nodes/*/muster.toml")), VOLUNTEER_SECONDS, process)
        (node,) = folder.glob(".muster/nodes/*")
        address = "0x" + json.loads((node / "node.json").read_text())["address"].removeprefix("0x")
        until("accepted work", lambda: accepted_of(url, address) >= 1, VOLUNTEER_SECONDS, process)
        seconds = time.monotonic() - before
    return {"accepted": seconds, "load": os.getloadavg()[0], **moments_of(node / "log.jsonl", begun)}


@contextmanager
def started(words: tuple[str, ...], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of ours, and end it by Ctrl-C."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*COMMAND, *words], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=kept | environment
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(STOP_SECONDS)


def moments_of(log: Path, begun: float) -> dict[str, float]:
    """Return the seconds after which each event was logged first."""
    first: dict[str, float] = {}
    for line in map(parsed, log.read_bytes().splitlines()):
        first.setdefault(str(line.get("event")), round(seconds_of(line) - begun, 1))
    return {name: first[name] for name in MOMENTS if name in first}


def steps_of(url: str) -> int:
    return fetch(url, "/v1/runs/1/summary").get("step") or 0


def accepted_of(url: str, address: str) -> int:
    return fetch(url, f"/v1/nodes/{address}").get("accepted", 0)


def fetch(url: str, path: str) -> dict[str, Any]:
    """Return a JSON answer; an empty one where there is none yet."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url + path, timeout=10) as reply:
            return json.load(reply)
    except (urllib.error.URLError, OSError):
        return {}


def until(what: str, condition: Callable[[], object], seconds: float, process: subprocess.Popen[bytes]) -> None:
    """Wait for a condition. Raises RuntimeError when the process has ended or it takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            raise RuntimeError(f"it ended with {process.returncode} before {what}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {seconds:g} s: {what}")
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
