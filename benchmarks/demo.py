"""What demos cost and what their models learn: `make demo`, and the language scenario.

    python benchmarks/demo.py [--json] [--seeds 0 11] [--steps N]
    python benchmarks/demo.py --cheated [--json] [--seeds 0 … 7] [--steps N]
    python benchmarks/demo.py --scenario language [--json] [--seeds 0 1 2] [--steps N] [--folder FOLDER]

One `muster swarm demo` per seed, one after another. CPU seconds, which stand beside the figures, are read from /proc
five times a second: what a process used after the last look is not counted.

    demo_seconds    from an empty folder to the report, the longest
    demo_gain       held-out score after training minus before, the least over the seeds; `mean` beside it
    demo_convicted  share of the demos in which the cheater was convicted, and nothing went wrong

What a cheater does to the curve: for each seed a swarm of three workers, one of which cheats, and one of three honest
workers, in turns.

    cheated_curve       held-out score after training with the cheater minus that without: the lower end of the 95 %
                        interval over the seeds

The language scenario trains SmolLM2-135M. Its demo asks the first and the last model each held-out task 16 times, at
the run's temperature and with the same seeds (muster/swarm/comparison.py). Two cores that do nothing else are what the
minutes are meant for: the load average, and the processor time of all processes, stand beside them.

    language_gain       share of right answers after training minus before: the least lower end, over the seeds, of the
                        95 % interval over tasks
    language_minutes    from an empty folder to the report, the longest of the seeds
    language_convicted  share of the seeds whose cheater was convicted, with no honest node rejected or slashed
"""

from __future__ import annotations

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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report
from benchmarks.training_runs import half_interval
from muster.swarm.launch import role_of
from muster.swarm.scenarios import DIGITS, LANGUAGE
from testbed.paths import ROOT
from testbed.processes import Process
from testbed.samples.packaged_model import packaged_model

SECONDS_TARGET, GAIN_TARGET = 290.0, 0.27
LANGUAGE_GAIN, LANGUAGE_MINUTES = 0.15, 45.0
CHEATED_CURVE = -0.08
SIDES = {"cheated": (2, 1), "honest": (3, 0)}
"""Honest workers and cheaters: each makes about a third of the work, until the cheater is convicted."""
SEEDS = {DIGITS.name: [0, 11], LANGUAGE.name: [0, 1, 2]}
SAMPLE_SECONDS = 0.2
MAX_SECONDS = 3_600.0
"""Longest that a demo may take."""


@dataclass(frozen=True)
class DemoRun:
    """What one demo took, and its summary."""

    seconds: float
    cpu: dict[str, float]
    """CPU seconds by role, those of its processes together."""
    loads: list[float]
    """Load averages of the machine meanwhile."""
    summary: dict[str, Any]
    problems: list[str]
    """What went wrong, as the demo said it."""

    @property
    def gain(self) -> float:
        held_out = self.summary["held_out"]
        return held_out["after"] - held_out["before"]

    @property
    def well(self) -> float:
        """Return 1 where the cheater was convicted and nothing went wrong, else 0."""
        return float(bool(self.summary["slashes"]) and not self.problems)


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
    """Return the role of a swarm's process by its command; its parent's role if the command names none."""
    text = " ".join(command)
    if named := re.search(r"--config \S*?([^/\s]+)/muster\.toml", text):
        return role_of(named[1])
    if "muster model" in text:
        return "model"
    return "chain" if "/anvil " in text else parent


def run(scenario: str, seed: int, steps: int | None, folder: Path, more: Sequence[object] = ()) -> DemoRun:
    """Run one demo, with more options if there are any; its report stays in `folder`.

    Raises SystemExit when it has no summary.
    """
    programs = [str(ROOT / name) for name in (".venv/bin", "node_modules/.bin")]
    path = os.pathsep.join([*programs, os.environ["PATH"]])
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PATH": path}
    command = [programs[0] + "/muster", "swarm", "demo", "--json", "--seed", seed]
    command += ["--report", folder / f"{scenario}-{seed}.html"]
    command += [] if steps is None else ["--steps", steps]
    command += ["--scenario", scenario, *more]
    with tempfile.TemporaryDirectory(prefix="muster-demo-") as name:
        command += ["--folder", f"{name}/swarm"]
        files = {"log": Path(name, "errors"), "output": Path(name, "summary.json")}
        demo = Process(command, **files, folder=ROOT, environment=environment)
        demo.ends_at = signal.SIGINT  # as Ctrl-C, which ends the whole swarm
        loads, times, begun = list[float](), dict[tuple[int, float], tuple[str, float]](), time.monotonic()
        with demo:
            while demo.is_running and time.monotonic() < begun + MAX_SECONDS:
                with suppress(psutil.Error):
                    sample(psutil.Process(demo.pid), times)
                loads.append(os.getloadavg()[0])
                time.sleep(SAMPLE_SECONDS)
        seconds, said = time.monotonic() - begun, demo.said
        if not files["output"].stat().st_size:
            raise SystemExit(f"the demo failed with status {demo.process.returncode}:\n{said[-2_000:]}")
        summary, problems = demo.document, re.findall(r"check failed: (.*)", said)
    cpu: Counter[str] = Counter()
    for role, used in times.values():
        cpu[role] += used
    return DemoRun(seconds, {role: round(used, 2) for role, used in cpu.most_common()}, loads, summary, problems)


def figures(runs: Sequence[DemoRun]) -> list[report.Figure]:
    """Return the figures of demos of the small model."""
    gains, wrong = [one.gain for one in runs], ["; ".join(one.problems) for one in runs]
    about = [
        {"seed": one.summary["seed"], "updates": one.summary["steps"], **one.summary["held_out"]}
        | {"load": statistics.mean(one.loads)}
        for one in runs
    ]
    gained = {"mean": round(statistics.mean(gains), 4), "each": about}
    seconds, roles = [one.seconds for one in runs], [one.cpu for one in runs]
    timed = {"ratio": max, "target": SECONDS_TARGET, "unit": "s", "at_most": True}
    return [
        report.figure("demo_seconds", seconds, roles=roles, **timed),
        report.figure("demo_gain", gains, ratio=min, target=GAIN_TARGET, unit="score", **gained),
        report.figure("demo_convicted", [one.well for one in runs], ratio=min, target=1.0, unit="demos", wrong=wrong),
    ]


def cheated_figures(pairs: Sequence[Sequence[DemoRun]]) -> list[report.Figure]:
    """Return the cheater's effect on the score: for each seed, the swarm with it and the swarm without it."""
    scores = [[one.summary["held_out"]["after"] for one in pair] for pair in pairs]
    differences = [cheated - honest for cheated, honest in scores]
    lower = statistics.mean(differences) - (half_interval(differences) or 0.0)
    each = [
        {"seed": pair[0].summary["seed"], "scores": found, "share": round(_cheated_share(pair[0]), 3)}
        | {"wrong": [*pair[0].problems, *pair[1].problems]}
        for pair, found in zip(pairs, scores, strict=True)
    ]
    return [
        report.figure("cheated_curve", differences, ratio=lower, target=CHEATED_CURVE, unit="held-out score", each=each)
    ]


def _cheated_share(one: DemoRun) -> float:
    """Return the share of all commitments that the cheater made, until it was convicted."""
    workers = [row for row in one.summary["nodes"] if row["role"] == "worker"]
    return sum(row["commitments"] for row in workers if not row["honest"]) / sum(row["commitments"] for row in workers)


def language_figures(runs: Sequence[DemoRun]) -> list[report.Figure]:
    """Return the figures of demos of the language scenario."""
    found = [one.summary["comparison"] for one in runs]
    gains, lowest = [one["gain"] for one in found], min(one["low"] for one in found)
    minutes, well = [one.seconds / 60 for one in runs], [one.well for one in runs]
    share, most = "share of right answers", {"target": LANGUAGE_MINUTES, "at_most": True}
    each = list(map(_language_run, runs))
    return [
        report.figure("language_gain", gains, ratio=lowest, target=LANGUAGE_GAIN, unit=share, each=each),
        report.figure("language_minutes", minutes, ratio=max, unit="min", **most),
        report.figure("language_convicted", well, ratio=statistics.mean, target=1.0, unit="share of seeds"),
    ]


def _language_run(one: DemoRun) -> dict[str, Any]:
    """Return one demo's entry in the figures."""

    def compared(row: dict[str, Any]) -> dict[str, float]:
        return {name: round(row[name], 4) for name in ("before", "after", "gain", "low", "high")}

    comparison = one.summary["comparison"]
    return {
        "seed": one.summary["seed"],
        **compared(comparison),
        **{name: comparison[name] for name in ("tasks", "samples", "step")},
        "parts": [{"name": part["name"], **compared(part)} for part in comparison["parts"]],
        "minutes": round(one.seconds / 60, 1),
        "processor_minutes": round(sum(one.cpu.values()) / 60, 1),
        "load": [round(one.loads[0], 1), round(one.loads[-1], 1)],
        "convicted": [f"{row['node']}: {row['kind']}" for row in one.summary["slashes"]],
        "problems": one.problems,
    }


def main() -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--scenario", choices=SEEDS, default=DIGITS.name)
    parser.add_argument("--seeds", type=int, nargs="+", help="0 and 11; of the language scenario 0, 1 and 2")
    parser.add_argument("--steps", type=int, help="policy updates, instead of the demo's own number")
    parser.add_argument("--cheated", action="store_true", help="with a cheater among five workers, and without")
    parser.add_argument("--folder", type=Path, help="keep the reports here")
    options = parser.parse_args()

    # 1. The swarm, or two that take turns: with a cheater and without.
    model = ("--model", packaged_model()) if options.scenario == LANGUAGE.name else ()
    sides: dict[str, tuple[object, ...]] = {options.scenario: model}
    if options.cheated:
        sides = {name: ("--workers", few[0], "--cheaters", few[1]) for name, few in SIDES.items()}

    # 2. A demo of each side, seed by seed.
    seeds = options.seeds or (list(range(8)) if options.cheated else SEEDS[options.scenario])
    runs = []
    with tempfile.TemporaryDirectory(prefix="muster-demo-") as scratch:
        folder = (options.folder or Path(scratch)).absolute()
        for seed in seeds:
            for name, more in sides.items():
                one = run(options.scenario, seed, options.steps, folder, more)
                runs.append(one)
                cost = f"{one.seconds:.0f} s, {sum(one.cpu.values()):.0f} CPU s, held out {one.summary['held_out']}"
                print(f"{name}  seed {seed}  {cost}  {one.cpu}  {one.problems}", file=sys.stderr, flush=True)

    # 3. The figures.
    if options.cheated:
        found = cheated_figures([runs[i : i + 2] for i in range(0, len(runs), 2)])
    elif options.scenario == LANGUAGE.name:
        found = language_figures(runs)
    else:
        found = figures(runs)
    return report.show(found, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
