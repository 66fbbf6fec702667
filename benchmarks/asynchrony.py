"""What asynchrony saves, and what it costs: wall time to a held-out score, the score in the end, and stale samples.

    python benchmarks/asynchrony.py [speedup] [--json] [--seeds 0 1 2 3 4] [--updates 30] [--levels 0 1 2 4]
        [--models FOLDER]
    python benchmarks/asynchrony.py stale [--json] [--levels 0 1 2 4] [--seeds 0 1 2] [--updates 45]
        [--set learning_rate=5e-4 ...] [--target 0.45] [--models FOLDER]

`speedup`: two processes, each on a separate core. This one trains, the other samples with the policies it receives. The
broadcast is throttled to last as long as an update, so a policy reaches the sampler one update after it was made. At
level n the policy of a batch is at most n steps behind the trainer. The sampler always takes the newest policy it has;
at level 0 the two processes take turns. Scores are taken from saved weights after a run, off the clock.

    async_speedup     seconds at level 2 over seconds at level 0 until the mean curve over the seeds reaches nine tenths
                      of the smaller of the two final gains; `levels` has every level's seconds to nine tenths of the
                      least gain of all, and `curves` what both were read from
    score_difference  final score at level 2 minus at level 0, upper end of its 95 % interval over the seeds

`stale`: what stale samples do to learning, without a clock, in one process (`benchmarks.training_runs`). At async level
n > 0, half of a batch is n steps old and half n - 1, as in a swarm that never waits. The base is greedy on all held-out
tasks before the first update, `after` the mean of the last three checkpoints; both as in the demo. Intervals are 95 %,
Student's t over seeds. `missed` is how far completions were from their thinking budgets, in budgets, in the first and
in the last five batches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty, Queue

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report
from benchmarks.training_runs import (
    Run,
    Sampler,
    half_interval,
    held_out,
    last_three,
    made_model,
    recipe_of,
    summarise,
    train,
)
from benchmarks.watched import ask, module, started
from muster.models.init import WarmUp, load_model
from muster.protocol.terms_file import ZERO_ADDRESS
from muster.rollouts.parquet import read_rollouts, write_rollouts
from muster.swarm import plan
from muster.tasksets.taskset import TaskSet
from testbed.samples.task_sets import generated
from trainer.batches import FileRef, WorkFile, samples_of
from trainer.learner import Recipe
from trainer.policy import Policy
from trainer.update import make_optimizer, update

SCORED_EVERY = 3
SHARE = 0.9
"""Of the least final gain: the score that levels are timed to."""
SYNC, AHEAD = 0, 2
"""The levels that the figures compare."""
BATCH_SECONDS = 600
"""Longest that a batch may take."""
PARTS = {"speedup": (5, 30), "stale": (3, 45)}
"""Seeds and updates of each, unless they are chosen."""


@dataclass(frozen=True)
class Curve:
    """One run: when each step was there, and the scores of some."""

    level: int
    seed: int
    seconds: list[float]
    """By step, from the beginning."""
    scores: dict[int, float]
    sampling: float
    updating: float
    """Medians, in seconds."""


# --- The other side


def sample(model_dir: Path, seed: int) -> None:
    """Make a batch, in files, for each line {"weights", "step", "out"} of stdin."""
    take_core(1)
    torch.set_num_threads(1)
    model, tasks = load_model(model_dir), generated(seed)
    sampler = Sampler(model_dir, model, tasks, seed)
    per_batch = plan.GROUPS_PER_BATCH // sampler.rules.terms.groups_per_commitment
    print("ready", flush=True)
    indices: dict[int, int] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        take_weights(model, Path(asked["weights"]))
        begun = time.perf_counter()
        first = indices.get(asked["step"], 0)
        indices[asked["step"]] = first + per_batch
        for i, file in enumerate(sampler.files(asked["step"], range(first, first + per_batch))):
            (Path(asked["out"]) / f"{i}.parquet").write_bytes(write_rollouts(file.rollouts))
        print("done", time.perf_counter() - begun, flush=True)


def take_core(number: int) -> None:
    """Stay on a core that the other side does not have."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})


def take_weights(model: torch.nn.Module, path: Path) -> None:
    model.load_state_dict(load_file(path), strict=False)
    model.tie_weights()  # type: ignore[operator]


# --- This side


class Exchange:
    """Policies on their way to the sampler, and batches on their way back. One thread each way."""

    def __init__(self, sampler: subprocess.Popen[str], folder: Path, level: int, updates: int) -> None:
        self.level = level
        self.sampling: list[float] = []
        self._sampler = sampler
        self._folder = folder
        self._updates = updates
        self._usable: dict[int, float] = {}
        """When the sampler has a policy."""
        self._batches: Queue[tuple[int, Path]] = Queue()
        """In the order of training steps: policy step, and where it lies."""
        self._thread = threading.Thread(target=self._generate, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def publish(self, step: int, model: torch.nn.Module, seconds: float) -> None:
        """Send a policy that arrives in so many seconds."""
        save_file({name: value.detach().clone() for name, value in model.named_parameters()}, self._path(step))
        self._usable[step] = time.monotonic() + seconds

    def next_batch(self) -> list[WorkFile]:
        """Wait for the next training step's files and return them."""
        try:
            policy, folder = self._batches.get(timeout=BATCH_SECONDS)
        except Empty:
            raise SystemExit(f"the sampler has not made a batch in {BATCH_SECONDS} s") from None
        paths = sorted(folder.iterdir(), key=lambda path: int(path.stem))
        return [
            WorkFile(
                FileRef(policy, ZERO_ADDRESS, n, f"{folder.name}-{n}", ""), tuple(read_rollouts(path.read_bytes()))
            )
            for n, path in enumerate(paths)
        ]

    def _generate(self) -> None:
        for step in range(self._updates):
            policy = self._newest(step - self.level)
            out = self._folder / f"batch-{step}"
            out.mkdir()
            asked = {"weights": str(self._path(policy)), "step": policy, "out": str(out)}
            self.sampling.append(ask(self._sampler, json.dumps(asked)))
            self._batches.put((policy, out))

    def _newest(self, oldest: int) -> int:
        """Wait for the newest policy that has arrived, not older than `oldest`."""
        while True:
            here = [step for step, at in list(self._usable.items()) if at <= time.monotonic()]
            if here and max(here) >= oldest:
                return max(here)
            time.sleep(0.01)

    def _path(self, step: int) -> Path:
        return self._folder / f"policy-{step}.safetensors"


def train_apart(model_dir: Path, tasks: TaskSet, seed: int, level: int, updates: int, recipe: Recipe) -> Curve:
    """Train while another process samples."""
    model = load_model(model_dir)
    policy = Policy(model, temperature=recipe.update.temperature)
    optimizer = make_optimizer(policy, recipe.update)
    command = module("benchmarks.asynchrony", "--sample", model_dir, seed)
    seconds, updating = [0.0], []
    with tempfile.TemporaryDirectory(prefix="muster-async-") as name, started(command) as sampler:
        exchange = Exchange(sampler, Path(name), level, updates)
        exchange.publish(0, model, 0.0)
        begun = time.monotonic()
        exchange.begin()
        for step in range(updates):
            files = exchange.next_batch()
            started_at = time.monotonic()
            update(policy, optimizer, samples_of(files, recipe.advantages), recipe.update, step=step + 1)
            updating.append(time.monotonic() - started_at)
            seconds.append(time.monotonic() - begun)
            exchange.publish(step + 1, model, updating[-1])
        scores = score(model_dir, Path(name), tasks, updates)
    print(f"level {level}  seed {seed}  {seconds[-1]:.0f} s  {scores[0]:.3f} → {scores[updates]:.3f}", file=sys.stderr)
    medians = statistics.median(exchange.sampling), statistics.median(updating)
    return Curve(level, seed, seconds, scores, *medians)


def score(model_dir: Path, folder: Path, tasks: TaskSet, updates: int) -> dict[int, float]:
    """Return the held-out scores of some of the policies that were published."""
    sampler, scores = Sampler(model_dir, load_model(model_dir), tasks, seed=0), {}
    for step in sorted({*range(0, updates + 1, SCORED_EVERY), *last_three(updates)}):
        take_weights(sampler.model, folder / f"policy-{step}.safetensors")
        scores[step] = held_out(sampler, tasks)
    return scores


# --- Figures


def final(curve: Curve) -> float:
    """Mean of the last three steps' scores."""
    return statistics.mean(curve.scores[step] for step in last_three(max(curve.scores)))


def seconds_to(curves: Sequence[Curve], target: float) -> float | None:
    """Return when the mean curve first reaches a score, between two scored steps by proportion."""
    steps = sorted(curves[0].scores)
    means = [statistics.mean(curve.scores[step] for curve in curves) for step in steps]
    times = [statistics.mean(curve.seconds[step] for curve in curves) for step in steps]
    for i in range(1, len(steps)):
        if means[i] >= target:
            share = (target - means[i - 1]) / (means[i] - means[i - 1]) if means[i] > means[i - 1] else 1.0
            return times[i - 1] + max(0.0, share) * (times[i] - times[i - 1])
    return None


def at_level(curves: Sequence[Curve], target: float) -> dict[str, object]:
    """Return one level's row for the table in docs/use/training.md.

    Intervals: 95 % over the seeds for the score; for the time, the least and the largest when each seed in turn is left
    out.
    """
    finals = [final(curve) for curve in curves]
    others = [[other for other in curves if other is not curve] for curve in curves] if len(curves) > 1 else []
    without = [seconds_to(few, target) for few in others]
    reached = [seconds for seconds in without if seconds is not None]
    within = half_interval(finals)
    return {
        "level": curves[0].level,
        "final": round(statistics.mean(finals), 4),
        "final_within": None if within is None else round(within, 4),
        "seconds_to_score": seconds_to(curves, target),
        "seconds_without_one": [min(reached), max(reached)] if reached and len(reached) == len(curves) else None,
        "seconds": round(statistics.mean(curve.seconds[-1] for curve in curves), 1),
    }


def score_of(base: float, sides: Iterable[Sequence[Curve]]) -> float:
    """Return the score that these levels are timed to."""
    return base + SHARE * (min(statistics.mean(map(final, side)) for side in sides) - base)


def figures(curves: Sequence[Curve]) -> list[report.Figure]:
    levels = {level: [c for c in curves if c.level == level] for level in sorted({c.level for c in curves})}
    base = statistics.mean(curve.scores[0] for curve in curves)
    target, least = score_of(base, [levels[SYNC], levels[AHEAD]]), score_of(base, levels.values())
    slow, fast = (seconds_to(levels[level], target) for level in (SYNC, AHEAD))
    if slow is None or fast is None:
        raise SystemExit(f"a score of {target:.3f} was never reached: take more --updates")
    differences = [final(one) - final(other) for one, other in zip(levels[AHEAD], levels[SYNC], strict=True)]
    within = half_interval(differences) or 0.0
    return [
        report.figure(
            "async_speedup",
            [fast],
            limit=[slow],
            ratio=fast / slow,
            target=0.75,
            unit="s",
            at_most=True,
            score=round(target, 4),
            base=round(base, 4),
            seeds=len(levels[AHEAD]),
            updates=max(curves[0].scores),
            least=round(least, 4),
            levels=[at_level(side, least) for side in levels.values()],
            curves=[asdict(curve) for curve in curves],
        ),
        report.figure(
            "score_difference",
            differences,
            ratio=statistics.mean(differences) + within,
            target=0.0,
            unit="held-out score",
            within=round(within, 4),
        ),
    ]


# --- Stale samples


def show_stale(runs: Sequence[Run], options: argparse.Namespace) -> int:
    rows = summarise(runs, options.updates)
    if options.json:
        chosen = {"set": options.set, "target": options.target}
        document = {"settings": chosen, "summary": rows, "runs": [asdict(run) for run in runs]}
        print(json.dumps({"machine": report.machine(), **document}))
        return 0
    print("level  updates   base  after          gain           smallest  missed")
    for row in rows:
        names = ("after_within", "gain_within", "missed_last_within")
        within = [f"±{row[name]:.3f}" if row[name] is not None else " " * 6 for name in names]
        print(
            f"{row['level']:5d}  {row['updates']:7d}  {row['base']:.3f}  {row['after']:.3f} {within[0]}"
            f"  {row['gain']:+.3f} {within[1]}  {row['smallest_gain']:+.3f}"
            f"    {row['missed_first']:.3f} → {row['missed_last']:.3f} {within[2]}"
        )
    return 0


# --- Both


def parsed() -> argparse.Namespace:
    parser = report.parser(__doc__)
    parser.add_argument("part", nargs="?", choices=PARTS, default="speedup")
    parser.add_argument("--levels", type=int, nargs="+", default=[0, 1, 2, 4], help=f"{SYNC} and {AHEAD} in `speedup`")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--updates", type=int, nargs="+", help="of a run; in `stale` several lengths to report")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="trainer settings")
    parser.add_argument("--target", type=float, default=WarmUp.target, help="accuracy at which the warm-up ends")
    parser.add_argument("--models", type=Path, help="keep the models here, and take what is there")
    parser.add_argument("--sample", nargs=2, metavar=("MODEL", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    seeds, updates = PARTS[options.part]
    options.seeds, options.updates = options.seeds or list(range(seeds)), options.updates or [updates]
    if options.part == "speedup" and not ({SYNC, AHEAD} <= set(options.levels) and len(options.updates) == 1):
        parser.error(f"`speedup` takes one number of --updates, and needs {SYNC} and {AHEAD} among its --levels")
    return options


def main() -> int:
    options = parsed()
    if options.sample:
        sample(Path(options.sample[0]), int(options.sample[1]))
        return 0
    speedup = options.part == "speedup"
    if speedup:
        take_core(0)
    torch.set_num_threads(1)
    curves, runs = list[Curve](), list[Run]()
    with tempfile.TemporaryDirectory(prefix="muster-async-models-") as scratch:
        for seed in options.seeds:
            tasks = generated(seed)
            model = made_model(options.models or Path(scratch), tasks, seed, options.target)
            for level in options.levels:
                terms, recipe = recipe_of(tasks, level, options.set)
                if speedup:
                    curves.append(train_apart(model, tasks, seed, level, options.updates[0], recipe))
                else:
                    runs.append(train(model, tasks, seed, terms, recipe, options.updates))
    return report.show(figures(curves), as_json=options.json) if speedup else show_stale(runs, options)


if __name__ == "__main__":
    sys.exit(main())
