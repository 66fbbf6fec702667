"""How far off honest work is, and how far off lies are: the numbers behind the limits in `muster.profiles`.

    python benchmarks/calibrate.py [--json] [--rollouts 256]

Runs vLLM against the transformers forward of `validator.replay` for every profile: a small trained model at two
temperatures, and larger random ones with long prompts and a prefix cache. For each statistic the worst honest value
stands against the limit that accuses (at least twice as far out); for each adversary the median of its most telling
statistic stands against the same limit. Takes some minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from muster.model_files import load_tokenizer
from muster.models import ModelShape, WarmUp, make_model, make_tokenizer, save_model, warm_up
from muster.profiles import PROFILES, Profile
from muster.prompts import prompt_tokens
from muster.rollouts.schema import Rollout
from muster.tasks import TaskSet, make_task_set
from tests.engine import controls
from validator.replay import Measurement, Replayer
from worker.engine import Engine, EngineLimits, GenerationRequest

STATISTICS = ("mean_gap", "worst_gap", "activation", "logprobs")
SHAPES = {"0.34M": ModelShape(), "20M": ModelShape(hidden=512, layers=6, heads=8, intermediate=1536)}


@dataclass(frozen=True)
class Bench:
    """One model under one profile at one temperature."""

    engine: Engine
    replayer: Replayer
    model_dir: Path
    requests: list[GenerationRequest]

    def run(self, requests: Sequence[GenerationRequest] | None = None) -> list[Rollout]:
        chosen = self.requests if requests is None else requests
        return controls.rollouts_of(chosen, self.engine.generate(chosen))

    def with_weights(self, folder: Path) -> list[Measurement]:
        """What is measured when the worker runs other weights than the validator."""
        self.engine.load_weights(folder)
        measured = self.replayer.replay(self.run())
        self.engine.load_weights(self.model_dir)
        return measured


def values(measurements: Sequence[Measurement], statistic: str) -> np.ndarray:
    return np.array([getattr(measurement, statistic) for measurement in measurements])


def make_models(folder: Path, tasks: TaskSet) -> dict[str, Path]:
    """The demo's shape, trained until it is sure of most tokens; the same and a larger one with random weights."""
    tokenizer = make_tokenizer()
    models = {"trained 0.34M": folder / "trained"}
    trained = make_model(tokenizer, SHAPES["0.34M"], seed=1)
    warm_up(trained, tokenizer, tasks, WarmUp(target=0.0, min_steps=100), seed=1)
    save_model(trained, tokenizer, models["trained 0.34M"])
    for name, shape in SHAPES.items():
        models[f"random {name}"] = folder / f"random-{name}"
        save_model(make_model(tokenizer, shape, seed=2), tokenizer, models[f"random {name}"])
    return models


def make_requests(model_dir: Path, tasks: TaskSet, count: int, *, prefix: int = 0, max_tokens: int = 32):
    tokenizer, random = load_tokenizer(model_dir), Random(5)
    before = np.random.default_rng(5).integers(20, 100, prefix).astype(np.int32)
    prompts = [
        np.concatenate([before, prompt_tokens(tokenizer, random.choice(tasks.train), random.choice((8, 12, 16)))])
        for _ in range(-(-count // controls.GROUP))
    ]
    return [GenerationRequest(prompts[i // controls.GROUP], random.getrandbits(63), max_tokens) for i in range(count)]


def honest(bench: Bench, tasks: TaskSet) -> list[Measurement]:
    """Short prompts side by side, then long ones with a common beginning, twice: the second time from the cache."""
    long = make_requests(bench.model_dir, tasks, len(bench.requests) // 4, prefix=300, max_tokens=96)
    rollouts = [*bench.run(), *bench.run(long), *bench.run(long)]
    return bench.replayer.replay(rollouts)


def adversaries(bench: Bench, folder: Path) -> Iterator[tuple[str, str, list[Measurement]]]:
    """(name, most telling statistic, measurements) of every control."""
    source, rollouts = bench.model_dir, bench.run()
    folder.mkdir()
    for name, change in (("noise 2%", controls.with_noise(0.02)), ("int8", controls.rounded_to_int8)):
        yield name, "activation", bench.with_weights(controls.save_changed(source, folder / name, change))
    older, newer = controls.train_on(source, folder, rollouts, 6)[-2:]
    bench.replayer.load_weights(newer)
    yield "one step old", "activation", bench.with_weights(older)
    bench.replayer.load_weights(source)
    for name, temperature in (("greedy", 1e-4), ("temperature 1.2", 1.2 * bench.engine.limits.temperature)):
        with controls.tempered(bench.engine, temperature):
            yield name, "mean_gap", bench.replayer.replay(bench.run())
    claims = (
        ("another seed", "mean_gap", controls.claim_another_seed),
        ("another prompt", "mean_gap", controls.claim_another_prompt),
        ("constant proofs", "activation", controls.constant_proofs),
        ("random proofs", "activation", controls.random_proofs),
        ("shuffled proofs", "activation", controls.shuffled_proofs),
        ("log-probabilities scaled", "logprobs", controls.scale_logprobs),
    )
    for name, statistic, tamper in claims:
        yield name, statistic, bench.replayer.replay(tamper(rollouts))
    edited = controls.edit_one_token(rollouts, vocabulary=bench.replayer.vocabulary)
    yield "one edited token", "worst_gap", bench.replayer.replay(edited)


def calibrate(profile: Profile, count: int, folder: Path) -> Iterator[dict[str, Any]]:
    """The figures of one profile: honest values over all models, adversaries on the trained one."""
    tasks = make_task_set(0, train=2048, held_out=64)
    worst = dict.fromkeys(STATISTICS, 0.0)
    found: list[tuple[str, str, list[Measurement]]] = []
    benches = []  # kept to the end: vLLM takes what its engines share along with the first that goes
    for name, model_dir in make_models(folder, tasks).items():
        for temperature in (1.0, 0.6) if name.startswith("trained") else (1.0,):
            limits = EngineLimits(temperature=temperature, max_prompt_tokens=400, max_completion_tokens=96)
            engine, replayer = Engine(model_dir, profile, limits), Replayer(model_dir, profile, temperature)
            bench = Bench(engine, replayer, model_dir, make_requests(model_dir, tasks, count))
            benches.append(bench)
            measured = honest(bench, tasks)
            worst = {s: max(worst[s], float(values(measured, s).max())) for s in STATISTICS}
            if not found:
                found = list(adversaries(bench, folder / "controls"))
    for statistic, value in worst.items():
        yield figure(profile, f"honest {statistic}", value, getattr(profile, statistic).accuse, honest=True)
    for name, statistic, measured in found:
        limit = getattr(profile, statistic).accuse
        yield {
            **figure(profile, name, float(np.median(values(measured, statistic))), limit, honest=False),
            "min": float(values(measured, statistic).min()),
            "max": float(values(measured, statistic).max()),
            "accused": float((values(measured, statistic) > limit).mean()),
        }


def figure(profile: Profile, name: str, value: float, limit: float, *, honest: bool) -> dict[str, Any]:
    """One line of the table. `ratio`: how many times the limit is beyond honest work, or a lie beyond the limit."""
    ratio = limit / max(value, 1e-12) if honest else value / limit
    target = 2.0 if honest else 1.0
    return {
        "name": f"{profile.name}: {name}",
        "ours": value,
        "peer": None,
        "limit": limit,
        "ratio": ratio,
        "target": target,
        "holds": ratio >= target,
        "unit": "statistic",
    }


def calibrate_apart(name: str, count: int) -> list[dict[str, Any]]:
    """The figures of one profile, from a process of its own."""
    command = [sys.executable, __file__, "--json", "--rollouts", str(count), "--profile", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=3600)
    return json.loads(done.stdout)["figures"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--rollouts", type=int, default=256, help="rollouts of each kind")
    parser.add_argument("--profile", choices=PROFILES, help="only this profile")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.profile:
        with tempfile.TemporaryDirectory() as folder:
            figures = list(calibrate(PROFILES[arguments.profile], arguments.rollouts, Path(folder)))
    else:
        figures = [figure for name in PROFILES for figure in calibrate_apart(name, arguments.rollouts)]
    if arguments.json:
        print(json.dumps({"machine": platform.processor() or platform.machine(), "runs": 1, "figures": figures}))
        return
    for line in figures:
        extra = f"  min {line['min']:.1e}  accused {line['accused']:.0%}" if "accused" in line else ""
        print(f"{line['name']:55s} {line['ours']:.2e}  limit {line['limit']:.1e}  ratio {line['ratio']:.1f}{extra}")


if __name__ == "__main__":
    main()
