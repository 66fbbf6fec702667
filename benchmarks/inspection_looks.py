"""Whether the numbers of looks show who looked, and what they cost: figures of `benchmarks/inspection.py`.

Rows of the real engine, of the demo's model and of SmolLM2-135M-Instruct. Who looks is a replay in one of the product's
arithmetics. Who does not makes up numbers, takes those of something else, or computes less. A trainer checks either.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from benchmarks import inspection_steps, real_model, report
from benchmarks.real_model_days import NAME as SMOLLM2
from benchmarks.real_model_days import TOKENS
from muster.authoring.models.variants import Change, rounded_to, save_changed, to_fp8, with_noise
from muster.models.arithmetic import HONEST, computing, perturbing
from muster.proofs import seeded_sampling
from muster.rollouts.schema import Rollout
from muster.verification import replay
from muster.verification.calibration import LOOK_MARGIN
from muster.verification.look import LookSeeds, distance, encode_look, numbers_of
from muster.verification.model import check_row
from muster.verification.profiles import BF16, CPU_FP32, PROFILES, LookLimits, Profile
from muster.verification.replay import Replayer
from testbed.hostile_steps import hostile_steps, save_hostile
from worker.engine import Engine, EngineLimits, GenerationRequest
from worker.rollouts import bare_rows

DEMO = "the demo's model"
COUNTS = {DEMO: 128, SMOLLM2: 24}
"""Rows of each model."""
HOSTILE_ROWS = 24
"""Of each hostile step."""
PERTURBED = 4
"""Perturbed machines beside those of each arithmetic."""
CONTEXT = {DEMO: 8, SMOLLM2: 16}
"""Tokens of the prompt that who computes less still reads. Prompts have 13 and 38 at least; in bfloat16 32 may pass."""
CASES = [(model, profile.name) for model in COUNTS for profile in (CPU_FP32, BF16)]
SEEDS = LookSeeds("0x" + "11" * 20, bytes([1] * 32), bytes([2] * 32), "0x" + "22" * 20, 5, bytes([3] * 32))


@contextmanager
def running(model: str, profile: str, count: int) -> Iterator[tuple[Path, Engine, Replayer, list[GenerationRequest]]]:
    """Yield one of the two models, engine and replay of it under a profile, and so many requests."""
    if model == DEMO:
        with inspection_steps.demo(profile) as (source, engine, replayer):
            yield source, engine, replayer, inspection_steps.requests_of(source, count, seed=7)
        return
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        source = real_model.model_in(Path(folder))
        requests = real_model.requests_of(source, count, "looks")
        longest = max(len(one.prompt_tokens) for one in requests)
        engine = Engine(source, PROFILES[profile], EngineLimits(1.0, longest, TOKENS, cache_bytes=1 << 30))
        try:
            yield source, engine, Replayer(source, PROFILES[profile], 1.0), requests
        finally:
            engine.close()


def looks_of(replayer: Replayer, rows: Sequence[Rollout], seeds: LookSeeds = SEEDS) -> np.ndarray:
    """Return the numbers of rows: [rows, 2, K]."""
    return np.array([row.look for row in replayer.errors(rows, seeds)])


def others_of(replayer: Replayer) -> list[AbstractContextManager[None]]:
    """Return contexts in which a replay computes as other machines might: in each arithmetic, and some perturbed."""
    named = [computing(replayer.model, one) for one in HONEST[replayer.profile.dtype]]
    return [*named, *(perturbing(replayer.model) for _ in range(PERTURBED))]


# --- look_honest


def measure_honest(model: str, profile: str, count: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Return how far each machine's sums are from this one's, at most, and the outcomes of all these looks."""
    with running(model, profile, count) as (_, engine, replayer, requests):
        rows = bare_rows(requests, engine.generate(requests))
        own, apart, outcomes = looks_of(replayer, rows), {}, Counter[str]()
        names = [*HONEST[replayer.profile.dtype], *(f"perturbed, {number}" for number in range(PERTURBED))]
        for name, machine in zip(names, others_of(replayer), strict=True):
            with machine:
                looks = looks_of(replayer, rows)
            apart[name] = [float(one) for one in np.abs(looks - own).max(axis=(0, 2))]
            outcomes.update(check_row(replayer, row, look, SEEDS) for row, look in zip(rows, looks, strict=True))
        alone = np.concatenate([looks_of(replayer, [row]) for row in rows])
        apart["one at a time"] = [float(one) for one in np.abs(alone - own).max(axis=(0, 2))]
        return apart, dict(outcomes)


def measure_hostile(profile: str, count: int) -> dict[str, int]:
    """Return the outcomes of honest looks at the demo's model under steps that are made so that machines differ."""
    outcomes = Counter[str]()
    with running(DEMO, profile, count) as (source, engine, replayer, requests):
        for name, make in hostile_steps(source).items():
            with tempfile.TemporaryDirectory() as folder:
                hostile = save_hostile(source, Path(folder) / "hostile", make)
                engine.load_weights(hostile)
                rows = bare_rows(requests, engine.generate(requests))
                replayer.load_weights(hostile)
            before = outcomes.copy()
            for machine in others_of(replayer):
                with machine:
                    looks = looks_of(replayer, rows)
                held = [np.zeros_like(look) if not np.isfinite(look).all() else look for look in looks]
                outcomes.update(check_row(replayer, row, look, SEEDS) for row, look in zip(rows, held, strict=True))
            print(f"{profile}: {name}: {dict(outcomes - before)}", file=sys.stderr)
    return dict(outcomes)


def look_honest() -> list[report.Figure]:
    """Return honest looks that are called false, and how near to a limit they come in a profile of every model."""
    figures = []
    for model, profile in CASES:
        apart, outcomes = report.apart(measure_honest, model, profile, COUNTS[model])
        limits = PROFILES[profile].look
        share = max(max(one[0] / limits.states, one[1] / limits.leads) for one in apart.values())
        about = {"apart": apart, "outcomes": outcomes}
        of = f"{model}, {profile}"
        figures += [
            report.none("look_honest", outcomes.get("false", 0), unit=f"of {sum(outcomes.values())} looks, {of}"),
            report.figure("look_share", share, target=0.5, at_most=True, unit=f"of a limit, {of}", **about),
        ]
    for profile in (CPU_FP32.name, BF16.name):
        outcomes = report.apart(measure_hostile, profile, HOSTILE_ROWS)
        share = outcomes.get("false", 0) / sum(outcomes.values())
        unit = f"of honest looks at hostile steps, {profile}"
        figures.append(report.figure("look_hostile", share, target=1e-3, at_most=True, unit=unit, outcomes=outcomes))
    return figures


# --- look_lies


@dataclass(frozen=True)
class Lie:
    """A way to have numbers without the look."""

    make: Callable[[Path, Replayer, Sequence[Rollout], int], np.ndarray]
    """From the model's folder, a replay of it, the rows and the tokens of context that are left: [rows, 2, K]."""
    seen: tuple[str, ...] = ("float32", "bfloat16")
    """Dtypes in which no row may pass."""


def invented(_: Path, replayer: Replayer, rows: Sequence[Rollout], __: int) -> np.ndarray:
    """Draw numbers as large as true ones are."""
    true = looks_of(replayer, rows)
    return np.random.default_rng(1).standard_normal(true.shape) * true.std(axis=(0, 2), keepdims=True)


def of_another_row(_: Path, replayer: Replayer, rows: Sequence[Rollout], __: int) -> np.ndarray:
    return np.roll(looks_of(replayer, rows), 1, axis=0)


def of_another_validator(_: Path, replayer: Replayer, rows: Sequence[Rollout], __: int) -> np.ndarray:
    return looks_of(replayer, rows, replace(SEEDS, validator="0x" + "33" * 20))


def of_a_short_context(_: Path, replayer: Replayer, rows: Sequence[Rollout], context: int) -> np.ndarray:
    return looks_of(replayer, [replace(row, prompt_tokens=row.prompt_tokens[-context:]) for row in rows])


def without_a_layer(_: Path, replayer: Replayer, rows: Sequence[Rollout], __: int) -> np.ndarray:
    layers = replayer.model.base_model.get_submodule("layers")
    assert isinstance(layers, torch.nn.ModuleList)
    some = torch.nn.ModuleList([one for place, one in enumerate(layers) if place != len(layers) // 2])
    with patch.dict(replayer.model.base_model._modules, layers=some):  # noqa: SLF001 - a submodule is swapped
        return looks_of(replayer, rows)


def without_the_head(_: Path, replayer: Replayer, rows: Sequence[Rollout], context: int) -> np.ndarray:
    """Take true sums of states, and invent those of leads."""
    made = invented(_, replayer, rows, context)
    made[:, 0] = looks_of(replayer, rows)[:, 0]
    return made


def half_of_the_head(_: Path, replayer: Replayer, rows: Sequence[Rollout], __: int) -> np.ndarray:
    """Compute the leads of every other token, and take their mean for the others."""

    def half(*arguments: object) -> torch.Tensor:
        found: torch.Tensor = seeded_sampling.leads(*arguments)  # type: ignore[arg-type]
        found[1::2] = found[::2].mean()
        return found

    with patch.object(replay, "leads", half):
        return looks_of(replayer, rows)


def with_weights(change: Callable[[], Change]) -> Callable[[Path, Replayer, Sequence[Rollout], int], np.ndarray]:
    """Return how to look with weights that are changed so."""

    def look(source: Path, replayer: Replayer, rows: Sequence[Rollout], _: int) -> np.ndarray:
        with tempfile.TemporaryDirectory() as folder:
            replayer.load_weights(save_changed(source, Path(folder) / "changed", change()))
            found = looks_of(replayer, rows)
            replayer.load_weights(source)
            return found

    return look


LIES = {
    "invented": Lie(invented),
    "another row's": Lie(of_another_row),
    "another validator's": Lie(of_another_validator),
    "a short context": Lie(of_a_short_context),
    "a layer skipped": Lie(without_a_layer),
    "int4 weights": Lie(with_weights(partial(rounded_to, 4))),
    "int8 weights": Lie(with_weights(partial(rounded_to, 8)), ("float32",)),
    "fp8 weights": Lie(with_weights(lambda: to_fp8), ("float32",)),
    "the step before": Lie(with_weights(partial(with_noise, 4e-5)), ("float32",)),
    "no head": Lie(without_the_head, ("float32",)),
    "the head at half of the tokens": Lie(half_of_the_head, ("float32",)),
}


def measure_lies(model: str, profile: str, count: int) -> dict[str, tuple[dict[str, int], float]]:
    """Return by lie the outcomes of its rows, and how many limits the least of them is off.

    The limits are those of a calibration on other rows.
    """
    with running(model, profile, 2 * count) as (source, engine, replayer, requests):
        made = bare_rows(requests, engine.generate(requests))
        rows, others = made[:count], made[count:]
        own, apart = looks_of(replayer, others), []
        for machine in others_of(replayer):
            with machine:
                apart.append(np.abs(looks_of(replayer, others) - own).max(axis=(0, 2)))
        states, leads = LOOK_MARGIN[replayer.profile.dtype] * np.max(apart, axis=0)
        replayer.profile = replace(replayer.profile, look=LookLimits(states=states, leads=leads))
        return {name: judged(lie, source, replayer, rows, CONTEXT[model]) for name, lie in LIES.items()}


def judged(
    lie: Lie, source: Path, replayer: Replayer, rows: Sequence[Rollout], context: int
) -> tuple[dict[str, int], float]:
    """Return the outcomes of the rows of a lie, and how many limits the least of them is off."""
    looks, own = lie.make(source, replayer, rows, context), looks_of(replayer, rows)
    outcomes = Counter(check_row(replayer, row, look, SEEDS) for row, look in zip(rows, looks, strict=True))
    return dict(outcomes), min(distance(*one, replayer.profile) for one in zip(looks, own, strict=True))


def look_lies() -> list[report.Figure]:
    """Return the rows of lies that have to be seen, and are not."""
    figures = []
    for model, profile in CASES:
        found = report.apart(measure_lies, model, profile, COUNTS[model])
        dtype = PROFILES[profile].dtype
        missed = sum(outcomes.get("true", 0) for name, (outcomes, _) in found.items() if dtype in LIES[name].seen)
        unit = f"rows that pass, {model}, {profile}"
        figures.append(report.none("look_lies", missed, unit=unit, lies=found))
    return figures


# --- look_cost

RUNS = 7
"""Times that each is measured."""
MOST_BYTES = {"float32": 32, "bfloat16": 64}


def time_looks(model: str, profile: str, count: int) -> list[list[float]]:
    """Return the CPU seconds of replaying rows without and with their numbers, of each run."""
    with running(model, profile, count) as (_, engine, replayer, requests):
        rows = bare_rows(requests, engine.generate(requests))
        replayer.errors(rows[:1], SEEDS)
        return report.alternate(RUNS, lambda: seconds(replayer, rows, None), lambda: seconds(replayer, rows, SEEDS))


def seconds(replayer: Replayer, rows: Sequence[Rollout], seeds: LookSeeds | None) -> float:
    """Return the CPU seconds of a replay."""
    begun = time.process_time()
    replayer.errors(rows, seeds)
    return time.process_time() - begun


def bytes_of(profile: Profile) -> int:
    """Return the bytes of a row's numbers."""
    return len(encode_look([np.zeros((2, numbers_of(profile)))], profile).removeprefix("0x")) // 2


def look_cost() -> list[report.Figure]:
    """Return what the numbers add to a replay; beside it for the demo's model, whose rows take half a millisecond."""
    figures = []
    for profile in (CPU_FP32, BF16):
        times = {model: report.apart(time_looks, model, profile.name, COUNTS[model]) for model in COUNTS}
        ratios = {model: min(looked) / min(bare) for model, (bare, looked) in times.items()}
        unit = f"replays, {SMOLLM2}, {profile.name}"
        more = {"demo": ratios[DEMO], "seconds": times}
        figures.append(report.figure("look_cost", ratios[SMOLLM2], target=1.03, at_most=True, unit=unit, **more))
        size, most = bytes_of(profile), MOST_BYTES[profile.dtype]
        figures.append(
            report.figure("look_bytes", size, target=most, at_most=True, unit=f"bytes a row, {profile.name}")
        )
    return figures
