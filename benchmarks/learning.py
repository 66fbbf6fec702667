"""What our training learns against TRL's, from the same number of rollouts.

    python benchmarks/learning.py [--json] [--seeds 0 … 7] [--updates 45] [--held-out 1000] [--models FOLDER]

The demo's model and tasks for each seed. Ours trains as a swarm does, two steps stale at most, by its default recipe
(benchmarks/training_runs.py); TRL's GRPOTrainer always on its own newest policy, with the same optimiser, learning
rate, groups and updates (benchmarks/peers/trl_learn.py, in a separate environment: `make bench-peers`). Both are
scored greedily on the same held-out tasks, the mean of the last three checkpoints. One side at a time, or both beside
each other on two cores: nothing here is timed.

    learning_vs_trl     ours minus TRL's, lower end of its 95 % interval over the seeds
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report
from benchmarks.training_runs import half_interval, made_model, recipe_of, train
from benchmarks.watched import peer
from testbed.samples.task_sets import generated

LEVEL = 2
SIDE_SECONDS = 3600


def ours(model: Path, seed: int, held_out: int, updates: int) -> float:
    tasks = generated(seed, held_out=held_out)
    return train(model, tasks, seed, *recipe_of(tasks, LEVEL), [updates]).after(updates)


def trls(model: Path, seed: int, held_out: int, updates: int) -> float:
    command = ["env", "OMP_NUM_THREADS=1"]
    command += peer("trl_learn", model, seed, "--updates", updates, "--held-out", held_out)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=SIDE_SECONDS, check=True)
    return float(json.loads(done.stdout)["after"])


def figures(seeds: Sequence[int], models: Path, held_out: int, updates: int) -> list[report.Figure]:
    found: list[tuple[float, float]] = []
    for seed in seeds:
        tasks = generated(seed, held_out=held_out)
        model = made_model(models, tasks, seed)
        with ThreadPoolExecutor(2) as threads:
            pair = [threads.submit(side, model, seed, held_out, updates) for side in (ours, trls)]
            found.append((pair[0].result(), pair[1].result()))
        print(f"seed {seed}  ours {found[-1][0]:.3f}  TRL {found[-1][1]:.3f}", file=sys.stderr, flush=True)
    differences = [one - other for one, other in found]
    lower = statistics.mean(differences) - (half_interval(differences) or 0.0)
    mine, theirs = [one for one, _ in found], [other for _, other in found]
    return [
        report.figure("learning_vs_trl", mine, peer=theirs, ratio=lower, target=-0.05, unit="held-out score"),
    ]


def main() -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(8)))
    parser.add_argument("--updates", type=int, default=45)
    parser.add_argument("--held-out", type=int, default=1000)
    parser.add_argument("--models", type=Path, help="keep the models here, and take what is there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="muster-learning-") as scratch:
        folder = options.models or Path(scratch)
        found = figures(options.seeds, folder, options.held_out, options.updates)
    return report.show(found, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
