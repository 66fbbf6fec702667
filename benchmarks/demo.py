"""What `make demo` costs: CPU seconds of each process, beside another checkout's, and what its model gains.

    python benchmarks/demo.py [--json] [--seeds 0 11] [--steps N] [--peer CHECKOUT]

One `muster swarm demo` per seed, one after another; with a peer, a checkout that is set up, in turns with its own. CPU
seconds are read from /proc five times a second: what a process used after the last look is not counted.

    demo_cpu        CPU seconds of all processes: ours over the peer's, medians
    demo_seconds    from an empty folder to the report, the longest
    demo_gain       held-out score after training minus before, the least over the seeds; `mean` beside it
    demo_convicted  share of the demos in which the cheater was convicted, and nothing went wrong
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import report  # noqa: E402
from muster.swarm.launch import role_of  # noqa: E402

CPU_TARGET, SECONDS_TARGET, GAIN_TARGET = 0.9, 290.0, 0.27
SAMPLE_SECONDS = 0.2
MAX_SECONDS = 3_600.0
"""Longest that a demo may take, and then longest to its end."""


@dataclass(frozen=True)
class DemoRun:
    """What one demo took, and its summary."""

    seconds: float
    cpu: dict[str, float]
    """CPU seconds by role, those of its processes together."""
    load: float
    """Mean load average of the machine meanwhile."""
    summary: dict[str, Any]
    wrong: str
    """What went wrong, as the demo said it; empty where nothing did."""

    @property
    def gain(self) -> float:
        held_out = self.summary["held_out"]
        return held_out["after"] - held_out["before"]


def sample(process: psutil.Process, seconds: dict[tuple[int, float], tuple[str, float]]) -> None:
    """Note the role and the CPU seconds of a process and all below it so far, by process number and start."""
    roles: dict[int, str] = {}
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):  # it has just ended
            key, times, command = (one.pid, one.create_time()), one.cpu_times(), one.cmdline()
            known = seconds[key][0] if key in seconds else roles.get(one.ppid(), "supervisor")
            roles[one.pid] = role_in(command, known) if command else known  # a process that ends has no command
            seconds[key] = roles[one.pid], times.user + times.system


def role_in(command: Sequence[str], parent: str) -> str:
    """Return the role of a process of a swarm by its command; that of its parent where it has none of its own."""
    text = " ".join(command)
    if named := re.search(r"--config \S*?([^/\s]+)/muster\.toml", text):
        return role_of(named[1])
    if "muster model" in text:
        return "model"
    return "chain" if "/anvil " in text else parent


def run(checkout: Path, seed: int, steps: int | None) -> DemoRun:
    """Run one demo of a checkout. Raises SystemExit when it has no summary."""
    programs = [str(checkout / folder) for folder in (".venv/bin", "node_modules/.bin")]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(checkout),
        "PATH": os.pathsep.join([*programs, os.environ["PATH"]]),
    }
    with tempfile.TemporaryDirectory(prefix="muster-demo-") as folder:
        command = [programs[0] + "/muster", "swarm", "demo", "--json", "--seed", str(seed)]
        command += ["--folder", f"{folder}/swarm", "--report", f"{folder}/report.html"]
        command += [] if steps is None else ["--steps", str(steps)]
        output, errors = Path(folder) / "summary.json", Path(folder) / "errors"
        loads, times, begun = list[float](), dict[tuple[int, float], tuple[str, float]](), time.monotonic()
        with output.open("wb") as stdout, errors.open("wb") as stderr:
            process = psutil.Popen(command, stdout=stdout, stderr=stderr, cwd=checkout, env=environment)
            try:
                while process.poll() is None and time.monotonic() < begun + MAX_SECONDS:
                    with suppress(psutil.Error):
                        sample(process, times)
                    loads.append(os.getloadavg()[0])
                    time.sleep(SAMPLE_SECONDS)
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)  # as Ctrl-C, which ends the whole swarm
                process.wait(MAX_SECONDS)
        seconds, said = time.monotonic() - begun, errors.read_text()
        if not output.stat().st_size:
            raise SystemExit(f"the demo in {checkout} failed with status {process.returncode}:\n{said[-2_000:]}")
        wrong = "; ".join(re.findall(r"check failed: (.*)", said))
        summary = json.loads(output.read_text())
    cpu: Counter[str] = Counter()
    for role, used in times.values():
        cpu[role] += used
    rounded = {role: round(used, 2) for role, used in cpu.most_common()}
    return DemoRun(seconds, rounded, statistics.mean(loads), summary, wrong)


def figures(ours: Sequence[DemoRun], peers: Sequence[DemoRun]) -> list[report.Figure]:
    """Return the figures of our demos, beside those of the peer's with the same seeds if there are any."""
    gains, seconds = [one.gain for one in ours], [one.seconds for one in ours]
    totals, theirs = ([sum(one.cpu.values()) for one in runs] for runs in (ours, peers))
    well = [float(bool(one.summary["slashes"]) and not one.wrong) for one in ours]
    runs = [
        {"seed": one.summary["seed"], "updates": one.summary["steps"], **one.summary["held_out"], "load": one.load}
        for one in ours
    ]
    timed = report.figure("demo_seconds", seconds, ratio=max(seconds), target=SECONDS_TARGET, unit="s", at_most=True)
    mean = round(statistics.mean(gains), 4)
    found = [
        timed | {"roles": [one.cpu for one in ours]},
        report.figure("demo_gain", gains, ratio=min(gains), target=GAIN_TARGET, unit="score", mean=mean, each=runs),
        report.figure("demo_convicted", well, ratio=min(well), target=1.0, unit="demos", wrong=[o.wrong for o in ours]),
    ]
    if theirs:
        ratio = statistics.median(totals) / statistics.median(theirs)
        cpu = report.figure("demo_cpu", totals, peer=theirs, ratio=ratio, target=CPU_TARGET, unit="CPU s", at_most=True)
        found.append(cpu | {"peer_roles": [one.cpu for one in peers]})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 11])
    parser.add_argument("--steps", type=int, help="policy updates, instead of the demo's own number")
    parser.add_argument("--peer", type=Path, help="another checkout, set up, that takes turns with this one")
    options = parser.parse_args()
    checkouts = [ROOT, *([options.peer.absolute()] if options.peer else [])]
    runs: list[list[DemoRun]] = [[], []]
    for seed in options.seeds:
        for place, checkout in enumerate(checkouts):
            one = run(checkout, seed, options.steps)
            runs[place].append(one)
            cost = f"{one.seconds:.0f} s, {sum(one.cpu.values()):.0f} CPU s, gain {one.gain:+.3f}"
            print(f"{checkout.name}  seed {seed}  {cost}  {one.cpu}  {one.wrong}", file=sys.stderr, flush=True)
    return report.show(figures(*runs), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
