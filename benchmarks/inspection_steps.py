"""Steps whose weights honest machines disagree on, and what it costs to know: figures of `benchmarks/inspection.py`.

Honest rows of the real engine on the demo's model, changed as `testbed.hostile_steps` says, are judged as a validator
does: by its own arithmetic, and by every honest one (`muster.models.arithmetic.HONEST`), under both profiles.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from operator import add
from pathlib import Path
from random import Random

import torch

from benchmarks import report
from muster.environments.task import ask
from muster.models.arithmetic import HONEST, computing
from muster.models.files import load_tokenizer
from muster.models.init import init_model
from muster.protocol.prompts import prompt_tokens
from muster.rollouts.schema import Rollout
from muster.verification.calibration import LEAST
from muster.verification.judging import judge
from muster.verification.model import honest_sums, replay_rows
from muster.verification.pools import FAULT_SHARE, unit_statistics
from muster.verification.profiles import BF16, CPU_FP32, PROFILES
from muster.verification.replay import Replayer
from testbed.hostile_steps import HUGE, LOUD, Maker, save_hostile, sharpened
from testbed.hostile_steps import hostile_steps as makers_of
from testbed.samples.packaged_model import packaged_model
from testbed.samples.task_sets import generated
from validator.step_check import check
from worker.engine import Engine, EngineLimits, GenerationRequest
from worker.rollouts import bare_rows

ROWS, TOKENS = 24, 32
"""Of one step."""


@contextmanager
def demo(profile: str) -> Iterator[tuple[Path, Engine, Replayer]]:
    """Yield the demo's model, and engine and replay of it under a profile."""
    torch.set_num_threads(1)
    judged = PROFILES[profile]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "model"
        init_model(source, generated(0), seed=0)
        engine = Engine(source, judged, EngineLimits(1.0, 64, TOKENS))
        try:
            yield source, engine, Replayer(source, judged, 1.0)
        finally:
            engine.close()


def requests_of(source: Path, count: int, seed: int) -> list[GenerationRequest]:
    """Return requests for tasks of the demo."""
    draw, tokenizer, tasks = Random(seed), load_tokenizer(source), generated(0).train
    return [
        GenerationRequest(
            prompt_tokens(tokenizer, draw.choice(tasks)[1], draw.choice((8, 12, 16))), draw.getrandbits(63), TOKENS
        )
        for _ in range(count)
    ]


# --- hostile_steps


def judge_hostile(profile: str) -> list[tuple[str, Counter[str]]]:
    """Return, for each kind of hostile step, how many of its honest rows came to what."""
    with demo(profile) as (source, engine, replayer):
        arithmetics = ("", *HONEST[PROFILES[profile].dtype])
        return judge_steps(source, engine, replayer, requests_of(source, ROWS, seed=1), arithmetics, makers_of(source))


def judge_steps(
    source: Path,
    engine: Engine,
    replayer: Replayer,
    requests: Sequence[GenerationRequest],
    arithmetics: Sequence[str],
    makers: Mapping[str, Maker],
) -> list[tuple[str, Counter[str]]]:
    """Return the same of an engine's rows for requests, replayed in each of these arithmetics."""
    found = []
    for name, make in makers.items():
        with tempfile.TemporaryDirectory() as folder:
            hostile = save_hostile(source, Path(folder) / "hostile", make)
            engine.load_weights(hostile)
            rows = bare_rows(requests, engine.generate(requests))
            replayer.load_weights(hostile)
        counted = Counter[str]()
        for arithmetic in arithmetics:
            with computing(replayer.model, arithmetic):
                counted += judged(replayer, rows)
        print(f"{replayer.profile.name}: {name}: {dict(counted)}", file=sys.stderr)
        found.append((name, counted))
    return found


def judged(replayer: Replayer, rows: Sequence[Rollout]) -> Counter[str]:
    """Count the rows that are accused, each by itself, with and without their honest spread.

    And the units of a forged calibration.
    """
    measured = replayer.replay(rows)
    alone = [judge([row], replayer.profile) for row in measured]
    together = [row.finding for one in rows for row in replay_rows(replayer, [one])]
    sums = [row.sums for row in measured], honest_sums(replayer, rows)
    units = [unit_statistics(reduce(add, some)) for some in sums]
    limits = {name: getattr(LEAST[replayer.profile.dtype], name, 0.0) for name in units[0]}
    leaning = [name for name, limit in limits.items() if units[0][name] > limit]
    return Counter(
        rows=len(rows),
        rejected=sum(finding is not None for finding in together),
        accused=sum(finding is not None and finding.accuse for finding in together),
        accused_without=sum(finding is not None and finding.accuse for finding in alone),
        units=1,
        leaning=any(units[1][name] < FAULT_SHARE * limits[name] for name in leaning),
        leaning_without=bool(leaning),
    )


def hostile_steps() -> list[report.Figure]:
    """Return how many honest rows of hostile steps are accused."""
    return accused("hostile_steps", {p.name: report.apart(judge_hostile, p.name) for p in (CPU_FP32, BF16)})


def accused(name: str, steps: Mapping[str, Sequence[tuple[str, Counter[str]]]]) -> list[report.Figure]:
    """Return a figure of what rows came to, by profile and kind of step."""
    counts = {f"{profile}: {kind}": counted for profile, some in steps.items() for kind, counted in some}
    total = reduce(add, counts.values())
    kinds = {kind: dict(counted) for kind, counted in counts.items() if counted["accused_without"]}
    figure = report.none(name, total["accused"], "accused honest rows of hostile steps", **total)
    return [figure | {"steps": len(counts), "hostile_without_spread": kinds}]


# --- hostile_real

REAL_ROWS, REAL_TOKENS, WORST = 8, 24, 8
"""Rows of one step of a pretrained model, and how many kinds are tried besides those that are loud or huge."""


def judge_real(profile: str, kinds: Sequence[str]) -> list[tuple[str, Counter[str]]]:
    """Return the same of a pretrained model and these kinds, by its own arithmetic and two others."""
    torch.set_num_threads(1)
    source, judged_by, draw = packaged_model(), PROFILES[profile], Random(1)
    tokenizer = load_tokenizer(source)
    tasks = [ask(f"What is {draw.randint(1, 12)} + 7? Answer with only the number.") for _ in range(REAL_ROWS)]
    prompts = [prompt_tokens(tokenizer, one, 8, thinks=False) for one in tasks]
    requests = [GenerationRequest(one, draw.getrandbits(63), REAL_TOKENS) for one in prompts]
    makers = {name: make for name, make in makers_of(source).items() if name in kinds}
    engine = Engine(source, judged_by, EngineLimits(1.0, 128, REAL_TOKENS))
    try:
        arithmetics = ("", *HONEST[judged_by.dtype][:2])
        return judge_steps(source, engine, Replayer(source, judged_by, 1.0), requests, arithmetics, makers)
    finally:
        engine.close()


def worst_kinds(profile: str) -> list[str]:
    """Return the kinds of the demo's model by which the most rows are accused without their spread."""
    found = report.apart(judge_hostile, profile)
    return [name for name, counted in sorted(found, key=lambda one: -one[1]["accused_without"])[:WORST]]


def hostile_real() -> list[report.Figure]:
    """Return how many honest rows of hostile steps of a pretrained model are accused."""
    named = [f"{kind}, {k:g}" for k in LOUD for kind in ("loud channel", "rare and loud channel")]
    named += [f"logits × {times:g}" for times in HUGE]
    steps = {p.name: report.apart(judge_real, p.name, [*named, *worst_kinds(p.name)]) for p in (CPU_FP32, BF16)}
    return accused("hostile_real", steps)


# --- sat_out

STEPS, GAINS, STEP_ROWS = 64, 12, 96
"""Usual steps, how many of them become surer one after the other, and rows of each."""


def measure_usual(profile: str) -> tuple[int, int]:
    """Return how many questions about usual steps were asked, one for each group of rows, and how many sat one out."""
    asked = sat = 0
    with demo(profile) as (source, engine, replayer):
        for step in range(STEPS):
            with tempfile.TemporaryDirectory() as folder:
                usual = save_hostile(source, Path(folder) / "usual", partial(sharpened, times=1.1 ** (step % GAINS)))
                engine.load_weights(usual)
                requests = requests_of(source, STEP_ROWS, seed=100 + step)
                rows = bare_rows(requests, engine.generate(requests))
                replayer.load_weights(usual)
                for first in range(0, STEP_ROWS, 4):
                    asked += 1
                    sat += bool(check(replayer, replayer.profile, rows[first : first + 4], 60.0).fault)
    return asked, sat


def sat_out() -> list[report.Figure]:
    """Return the share of honest steps of a usual run that a worker sits out."""
    found = {p.name: report.apart(measure_usual, p.name) for p in (CPU_FP32, BF16)}
    asked, sat = (sum(one[i] for one in found.values()) for i in (0, 1))
    detail = {name: list(one) for name, one in found.items()}
    return [report.figure("sat_out", sat / asked, target=0.001, at_most=True, unit="of steps", asked=asked, of=detail)]
