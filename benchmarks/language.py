"""What a whole local swarm teaches SmolLM2-135M, in how long, and whether it convicts its cheater.

    python benchmarks/language.py [--json] [--seeds 0 1 2] [--steps N] [--folder FOLDER]

One `muster swarm demo --scenario language` per seed, one after another. The demo asks the first and the last model each
held-out task 16 times, at the run's temperature and with the same seeds (muster/swarm/comparison.py). Two cores that do
nothing else are what the minutes are meant for: the load average before and after each run, and the processor time of
all its processes, stand beside them.

    language_gain       share of right answers after training minus before: the least lower end, over the seeds, of the
                        95 % interval over tasks
    language_minutes    from an empty folder to the report, the longest of the seeds
    language_convicted  share of the seeds whose cheater was convicted, while nobody honest was rejected or slashed
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import report  # noqa: E402
from muster.swarm.scenarios import LANGUAGE  # noqa: E402
from muster.swarm.summary import problems  # noqa: E402

GAIN = 0.15
MINUTES = 45.0
SOMETHING_WRONG = 3
"""Exit status of a demo in which something did not go as it must; it prints its summary all the same."""


def run(seed: int, steps: int, folder: Path) -> dict[str, Any]:
    """Run one demo; return its summary, and what it took."""
    load, begun, used = os.getloadavg()[0], time.monotonic(), processor_seconds()
    command = [sys.executable, "-m", "muster", "swarm", "demo", "--scenario", LANGUAGE.name, "--json"]
    command += ["--seed", str(seed), "--steps", str(steps), "--folder", str(folder / f"swarm-{seed}")]
    command += ["--report", str(folder / f"language-{seed}.html")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    if done.returncode not in (0, SOMETHING_WRONG):
        sys.exit(f"the demo of seed {seed} failed with status {done.returncode}")
    summary = json.loads(done.stdout)
    summary["minutes"] = (time.monotonic() - begun) / 60
    summary["processor_minutes"] = (processor_seconds() - used) / 60
    summary["load"] = [load, os.getloadavg()[0]]
    summary["problems"] = problems(summary, steps)
    return summary


def processor_seconds() -> float:
    """Return what all processes that this one started, and that have ended, took of the processors."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def figures(seeds: Sequence[int], runs: Sequence[dict[str, Any]]) -> list[report.Figure]:
    """Return the figures of the demos' summaries, one per seed."""
    found = [one["comparison"] for one in runs]
    minutes = [one["minutes"] for one in runs]
    well = [float(bool(one["slashes"]) and not one["problems"]) for one in runs]
    each = [
        {
            "seed": seed,
            **{name: round(one["comparison"][name], 4) for name in ("before", "after", "gain", "low", "high")},
            **{name: one["comparison"][name] for name in ("tasks", "samples", "step")},
            "parts": [
                {"name": part["name"]}
                | {name: round(part[name], 4) for name in ("before", "after", "gain", "low", "high")}
                for part in one["comparison"]["parts"]
            ],
            "minutes": round(one["minutes"], 1),
            "processor_minutes": round(one["processor_minutes"], 1),
            "load": [round(value, 1) for value in one["load"]],
            "convicted": [f"{row['node']}: {row['kind']}" for row in one["slashes"]],
            "problems": one["problems"],
        }
        for seed, one in zip(seeds, runs, strict=True)
    ]
    gains = [one["gain"] for one in found]
    lowest = min(one["low"] for one in found)
    return [
        report.figure("language_gain", gains, ratio=lowest, target=GAIN, unit="share of right answers", each=each),
        report.figure("language_minutes", minutes, ratio=max(minutes), target=MINUTES, unit="min", at_most=True),
        report.figure("language_convicted", well, ratio=sum(well) / len(well), target=1.0, unit="share of seeds"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=LANGUAGE.steps)
    parser.add_argument("--folder", type=Path, help="keep the reports here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="muster-language-") as scratch:
        folder = options.folder or Path(scratch)
        runs = [run(seed, options.steps, folder) for seed in options.seeds]
    return report.show(figures(options.seeds, runs), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
