"""The first minutes of volunteers: from the page's command to the first accepted commitment, on a local swarm.

A swarm as `muster swarm up` starts it; then the page's own join command, word for word, with an empty home, in an empty
folder, and with a file instead of a person who types a password. Several join one after the other.

The chain lets a worker begin at the second step after it joins. `join_minutes` counts from the command, so it has that
wait too. `benchmarks/page.py` prints it.
"""

from __future__ import annotations

import html
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.report import Figure, figure, none
from muster.console.node.logs import parsed, seconds_of
from muster.runtime.telemetry import COMMITTED, ENGINE_STARTED, GENERATED, WEIGHTS_ARRIVED
from testbed.http import get, get_json
from testbed.paths import ROOT
from testbed.processes import Muster, clean_environment
from testbed.runs.swarms import newcomer, swarm_url

STEPS_BEFORE: Final = 1
"""The swarm is running once it has published this step: its engines are up, its validators at work."""
SWARM_SECONDS: Final = 600.0
JOIN_SECONDS: Final = 900.0
SETUP_SECONDS: Final = 1_800.0
TARGET_MINUTES: Final = 3.0
FRESH_TARGET_MINUTES: Final = 10.0
MOMENTS: Final = ("ready", WEIGHTS_ARRIVED, ENGINE_STARTED, GENERATED, COMMITTED)
"""Events of a worker's log on the way to its first accepted commitment."""


@dataclass(frozen=True)
class Newcomer:
    """What one volunteer took."""

    command: str
    """As the page shows it."""
    seconds: float
    """From the command to its first accepted work."""
    moments: dict[str, float]
    """Seconds after the command at which its worker logged each of MOMENTS first."""
    edits: int
    """Files that were there before the command, such as settings."""


def measure_newcomers(folder: Path, count: int, say: Callable[[str], None]) -> list[Newcomer]:
    """Start a swarm in `folder`, and become so many of its workers by the page's command. Takes minutes for each."""
    with local_swarm(folder / "swarm", say) as url:
        command, found = join_command(url), list[Newcomer]()
        for number in range(count):
            say(f"typing: {command}")
            home = folder / f"newcomer-{number}"
            process = newcomer(command, home)
            edits = len(list(home.rglob("*")))
            found.append(Newcomer(command, *time_to_accepted(url, process, home), edits))
            say(f"accepted {found[-1].seconds:.0f} s after the command")
        return found


@contextmanager
def local_swarm(folder: Path, say: Callable[[str], None]) -> Iterator[str]:
    """Yield the orchestrator's URL of a swarm that has published a step; end the swarm afterwards."""
    log = folder.parent / "swarm.log"
    with Muster(("swarm", "up", "--folder", folder, "--port", "0"), log) as process:
        url = process.wait_until(lambda: _running_url(folder), "a running swarm", SWARM_SECONDS)
        say(f"a swarm runs at {url}")
        yield url


def join_command(url: str) -> str:
    """Return the command that the page of an orchestrator's explorer tells people to type."""
    text = html.unescape(get(f"{url}/join")[1].decode())
    found = re.search(r"muster up http[^\s<]+", text)
    if found is None:
        raise SystemExit(f"{url}/join shows no command")
    return found.group()


def time_to_accepted(url: str, process: Muster, home: Path) -> tuple[float, dict[str, float]]:
    """Run a newcomer's command until its work is accepted; return the seconds, and those until each of MOMENTS."""
    before = set(workers_of(url))

    def has_accepted() -> bool:
        return any(count for address, count in workers_of(url).items() if address not in before)

    begun, second = time.monotonic(), time.time()
    with process:
        process.wait_until(has_accepted, "accepted work", JOIN_SECONDS)
        return time.monotonic() - begun, moments_of(home, second)


def moments_of(home: Path, begun: float) -> dict[str, float]:
    """Return the seconds after `begun` at which the only node of a home logged each of MOMENTS first."""
    first: dict[str, float] = {}
    for log in home.glob(".muster/nodes/*/log.jsonl"):
        for line in map(parsed, log.read_bytes().splitlines()):
            first.setdefault(str(line.get("event")), round(seconds_of(line) - begun, 1))
    return {name: first[name] for name in MOMENTS if name in first}


def measure_setup(folder: Path, say: Callable[[str], None]) -> float:
    """Return the seconds of `make setup` in a fresh clone."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    begun, log = time.monotonic(), folder.parent / "setup.log"
    environment = {name: value for name, value in clean_environment().items() if name != "VIRTUAL_ENV"}
    with log.open("wb") as output:
        done = subprocess.run(
            ["make", "setup"], cwd=folder, env=environment, stdout=output, stderr=output, timeout=SETUP_SECONDS
        )
    if done.returncode:
        raise SystemExit(f"make setup failed:\n{log.read_text(errors='replace')[-2_000:]}")
    say("a fresh clone is set up")
    return time.monotonic() - begun


def newcomer_figures(newcomers: Sequence[Newcomer], setup: float | None) -> list[Figure]:
    """Return the figures; the one from a fresh clone where its set-up was timed."""
    minutes, moments = [one.seconds / 60 for one in newcomers], [one.moments for one in newcomers]
    command = newcomers[0].command
    found = [
        figure("join_minutes", minutes, target=TARGET_MINUTES, unit="minutes", at_most=True, moments=moments),
        figure("commands", len(command.splitlines()), target=1, at_most=True, unit="typed", command=command),
        none("edits", sum(one.edits for one in newcomers), "files"),
    ]
    if setup is not None:
        most = {"at_most": True, "target": FRESH_TARGET_MINUTES, "setup_seconds": round(setup)}
        fresh = median(minutes) + setup / 60
        found.insert(1, figure("join_minutes_fresh", fresh, unit="minutes, set-up included", **most))
    return found


def workers_of(url: str) -> dict[str, int]:
    """Return the accepted commitments of each worker."""
    summary = get_json(f"{url}/v1/runs/{run_of(url)}/summary")
    return {node["address"]: node["accepted"] for node in summary.get("nodes", ()) if node["role"] == "worker"}


def run_of(url: str) -> int:
    return get_json(f"{url}/version").get("run", 0)


def _running_url(folder: Path) -> str:
    """Return the URL of a swarm's orchestrator once it has published STEPS_BEFORE; empty before."""
    url = swarm_url(folder)
    demand = get_json(f"{url}/v1/runs/{run_of(url)}/demand") if url else {}
    return url if demand.get("step", 0) >= STEPS_BEFORE else ""
