"""What asynchrony saves, and what it costs: wall time to the same held-out score, and the score in the end.

    python benchmarks/async_speedup.py [--json] [--seeds 0 1 2 3 4] [--updates 30] [--levels 0 1 2 4] [--models FOLDER]

Two processes, each on a core of its own: this one trains, the other samples with the policies it is sent. A policy
reaches the sampler one update's time after it was made: that is the broadcast, throttled to last as long as an update.
At level n a batch is trained on whose policy is n steps behind at most, and the sampler always takes the newest policy
it has; at level 0 that means to take turns. Tasks, model, rewards, batches and updates are those of
benchmarks/async_levels.py, so of the demo; scores are taken from saved weights after a run, off the clock.

    async_speedup     seconds at level 2 over seconds at level 0 until the mean curve over the seeds reaches nine tenths
                      of the smaller of the two final gains; `levels` has every level's seconds to nine tenths of the
                      least gain of all, and `curves` what both were read from
    score_difference  final score at level 2 minus at level 0, upper end of its 95 % interval over the seeds
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

import torch
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import report  # noqa: E402
from benchmarks.async_levels import (  # noqa: E402
    NOBODY,
    Sampler,
    half_interval,
    held_out,
    last_three,
    made_model,
    settings_of,
    terms_of,
)
from benchmarks.watched import expect, started, tell  # noqa: E402
from muster.models.files import load_tokenizer  # noqa: E402
from muster.models.init import WarmUp, load_model  # noqa: E402
from muster.rollouts.parquet import read_rollouts, write_rollouts  # noqa: E402
from muster.swarm import plan  # noqa: E402
from muster.tasksets.taskset import TaskSet  # noqa: E402
from testbed.samples.task_sets import generated  # noqa: E402
from trainer.batches import FileRef, WorkFile, samples_of  # noqa: E402
from trainer.learner import Recipe  # noqa: E402
from trainer.policy import Policy  # noqa: E402
from trainer.update import make_optimizer, update  # noqa: E402

SCORED_EVERY = 3
SHARE = 0.9
"""Of the least final gain: the score that levels are timed to."""
SYNC, AHEAD = 0, 2
"""The levels that the figures compare."""
BATCH_SECONDS = 600
"""Longest that a batch may take."""


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


def sample() -> None:
    """`… sample MODEL SEED`: for each line {"weights", "step", "out"} a batch, in files."""
    model_dir, seed = Path(sys.argv[2]), int(sys.argv[3])
    take_core(1)
    tasks = generated(seed)
    model = load_model(model_dir)
    sampler = Sampler(model, load_tokenizer(model_dir), tasks, terms_of(tasks, 0), seed)
    print("ready", flush=True)
    indices: dict[int, int] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        model.load_state_dict(load_file(asked["weights"]), strict=False)
        model.tie_weights()
        begun = time.perf_counter()
        first = indices.get(asked["step"], 0)
        indices[asked["step"]] = first + files_per_batch(sampler.terms.groups_per_commitment)
        for i, file in enumerate(sampler.files(asked["step"], range(first, indices[asked["step"]]))):
            (Path(asked["out"]) / f"{i}.parquet").write_bytes(write_rollouts(file.rollouts))
        print("done", time.perf_counter() - begun, flush=True)


def files_per_batch(groups_per_commitment: int) -> int:
    return plan.GROUPS_PER_BATCH // groups_per_commitment


def take_core(number: int) -> None:
    """One thread, on a core that the other side does not have."""
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})


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
        self._batches: list[tuple[int, Path]] = []
        """By training step: policy step, and where it lies."""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._generate, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def publish(self, step: int, model: torch.nn.Module, seconds: float) -> None:
        """Send a policy that arrives in so many seconds."""
        save_file({name: value.detach().clone() for name, value in model.named_parameters()}, self._path(step))
        with self._changed:
            self._usable[step] = time.monotonic() + seconds
            self._changed.notify_all()

    def batch(self, step: int) -> list[WorkFile]:
        """Return what this training step trains on, once it is there."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._batches) > step, timeout=BATCH_SECONDS):
                raise SystemExit(f"the sampler has not made batch {step} in {BATCH_SECONDS} s")
            policy, folder = self._batches[step]
        paths = sorted(folder.iterdir(), key=lambda path: int(path.stem))
        refs = [FileRef(policy, NOBODY, index, f"{step}-{index}", "") for index in range(len(paths))]
        return [WorkFile(ref, tuple(read_rollouts(p.read_bytes()))) for ref, p in zip(refs, paths, strict=True)]

    def _generate(self) -> None:
        for step in range(self._updates):
            policy = self._newest(step - self.level)
            out = self._folder / f"batch-{step}"
            out.mkdir()
            asked = {"weights": str(self._path(policy)), "step": policy, "out": str(out)}
            tell(self._sampler, json.dumps(asked))
            self.sampling.append(float(expect(self._sampler, "done")))
            with self._changed:
                self._batches.append((policy, out))
                self._changed.notify_all()

    def _newest(self, oldest: int) -> int:
        """Wait for the newest policy that has arrived, not older than `oldest`."""
        while True:
            with self._changed:
                here = [step for step, at in self._usable.items() if at <= time.monotonic()]
                if here and max(here) >= oldest:
                    return max(here)
                self._changed.wait(timeout=0.01)

    def _path(self, step: int) -> Path:
        return self._folder / f"policy-{step}.safetensors"


def train(model_dir: Path, tasks: TaskSet, seed: int, level: int, updates: int, recipe: Recipe) -> Curve:
    model = load_model(model_dir)
    policy = Policy(model, temperature=recipe.update.temperature)
    optimizer = make_optimizer(policy, recipe.update)
    command = [sys.executable, __file__, "sample", str(model_dir), str(seed)]
    seconds, updating = [0.0], []
    with tempfile.TemporaryDirectory(prefix="muster-async-") as name, started(command) as sampler:
        exchange = Exchange(sampler, Path(name), level, updates)
        exchange.publish(0, model, 0.0)
        begun = time.monotonic()
        exchange.begin()
        for step in range(updates):
            files = exchange.batch(step)
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
    model, tokenizer, terms = load_model(model_dir), load_tokenizer(model_dir), terms_of(tasks, 0)
    scores = {}
    for step in sorted({*range(0, updates + 1, SCORED_EVERY), *last_three(updates)}):
        model.load_state_dict(load_file(folder / f"policy-{step}.safetensors"), strict=False)
        model.tie_weights()
        scores[step] = held_out(model, tokenizer, tasks, terms)
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
    """Return what the table in docs/use/training.md says of one level.

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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--levels", type=int, nargs="+", default=[0, 1, 2, 4], help=f"{SYNC} and {AHEAD} among them")
    parser.add_argument("--models", type=Path, help="keep the models here, and take what is there")
    options = parser.parse_args()
    if not {SYNC, AHEAD} <= set(options.levels):
        parser.error(f"--levels needs {SYNC} and {AHEAD}")
    take_core(0)
    settings, curves = settings_of([]), []
    with tempfile.TemporaryDirectory(prefix="muster-async-models-") as scratch:
        for seed in options.seeds:
            tasks = generated(seed)
            model_dir = made_model(options.models or Path(scratch), tasks, seed, WarmUp.target)
            for level in options.levels:
                terms = terms_of(tasks, level)
                recipe = Recipe.from_settings(settings, terms)
                curves.append(train(model_dir, tasks, seed, level, options.updates, recipe))
    return report.show(figures(curves), as_json=options.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["sample"]:
        sample()
    else:
        sys.exit(main())
