"""Steps whose weights honest machines disagree on, and what it costs to know: figures of `benchmarks/inspection.py`.

Honest rows of the real engine on the demo's model, changed as `testbed.hostile_steps` says, are judged as a validator
does: by its own arithmetic, and by every honest one (`muster.models.arithmetic.HONEST`), under both profiles.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
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
from muster.verification.pools import FAULT_SHARE, unit_statistics
from muster.verification.profiles import BF16, CPU_FP32, PROFILES
from testbed.hostile_steps import HUGE, LOUD, save_hostile, sharpened
from testbed.hostile_steps import hostile_steps as makers_of
from testbed.samples.packaged_model import packaged_model
from testbed.samples.task_sets import generated
from validator.model import honest_sums, replay_rows
from validator.replay import Replayer
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
    found = []
    with demo(profile) as (source, engine, replayer):
        config = json.loads((source / "config.json").read_text())
        head = config["hidden_size"] // config["num_attention_heads"]
        [token] = load_tokenizer(source)("7", add_special_tokens=False)["input_ids"]
        requests = requests_of(source, ROWS, seed=1)
        for name, make in makers_of(source, token, head).items():
            with tempfile.TemporaryDirectory() as folder:
                hostile = save_hostile(source, Path(folder) / "hostile", make)
                engine.load_weights(hostile)
                rows = bare_rows(requests, engine.generate(requests))
                replayer.load_weights(hostile)
                counted = Counter[str]()
                for arithmetic in ("", *HONEST[PROFILES[profile].dtype]):
                    with computing(replayer.model, arithmetic):
                        counted += judged(replayer, rows)
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
    steps = [(p.name, *one) for p in (CPU_FP32, BF16) for one in report.apart(judge_hostile, p.name)]
    total = reduce(add, (counted for _, _, counted in steps))
    kinds = {f"{profile}: {name}": dict(counted) for profile, name, counted in steps if counted["accused_without"]}
    accused = report.none("hostile_steps", total["accused"], "accused honest rows of hostile steps", **total)
    return [accused | {"steps": len(steps), "hostile_without_spread": kinds}]


# --- hostile_real

REAL_ROWS, REAL_TOKENS, WORST = 8, 24, 8
"""Rows of one step of a pretrained model, and how many kinds are tried besides those that are loud or huge."""


def judge_real(profile: str, kinds: Sequence[str]) -> list[tuple[str, Counter[str]]]:
    """Return the same of a pretrained model, by its own arithmetic and two others."""
    found, judged_by = [], PROFILES[profile]
    torch.set_num_threads(1)
    source = packaged_model()
    engine, replayer = Engine(source, judged_by, EngineLimits(1.0, 128, REAL_TOKENS)), Replayer(source, judged_by, 1.0)
    config, draw, tokenizer = json.loads((source / "config.json").read_text()), Random(1), load_tokenizer(source)
    [token] = tokenizer("7", add_special_tokens=False)["input_ids"]
    tasks = [ask(f"What is {draw.randint(1, 12)} + 7? Answer with only the number.") for _ in range(REAL_ROWS)]
    prompts = [prompt_tokens(tokenizer, one, 8, thinks=False) for one in tasks]
    requests = [GenerationRequest(one, draw.getrandbits(63), REAL_TOKENS) for one in prompts]
    try:
        for name, make in makers_of(source, token, config["hidden_size"] // config["num_attention_heads"]).items():
            if name not in kinds:
                continue
            with tempfile.TemporaryDirectory() as folder:
                hostile = save_hostile(source, Path(folder) / "hostile", make)
                engine.load_weights(hostile)
                rows = bare_rows(requests, engine.generate(requests))
                replayer.load_weights(hostile)
                counted = Counter[str]()
                for arithmetic in ("", *HONEST[judged_by.dtype][:2]):
                    with computing(replayer.model, arithmetic):
                        counted += judged(replayer, rows)
                print(f"{profile}: {name}: {dict(counted)}", file=sys.stderr)
                found.append((name, counted))
    finally:
        engine.close()
    return found


def worst_kinds(profile: str) -> list[str]:
    """Return the kinds of the demo's model by which the most rows are accused without their spread."""
    found = report.apart(judge_hostile, profile)
    return [name for name, counted in sorted(found, key=lambda one: -one[1]["accused_without"])[:WORST]]


def hostile_real() -> list[report.Figure]:
    """Return how many honest rows of hostile steps of a pretrained model are accused."""
    named = [f"{kind}, {k:g}" for k in LOUD for kind in ("loud channel", "rare and loud channel")]
    named += [f"logits × {times:g}" for times in HUGE]
    steps = [
        (p.name, *one)
        for p in (CPU_FP32, BF16)
        for one in report.apart(judge_real, p.name, [*named, *worst_kinds(p.name)])
    ]
    total = reduce(add, (counted for _, _, counted in steps))
    kinds = {f"{profile}: {name}": dict(counted) for profile, name, counted in steps if counted["accused_without"]}
    accused = report.none("hostile_real", total["accused"], "accused honest rows of a pretrained model", **total)
    return [accused | {"steps": len(steps), "hostile_without_spread": kinds}]


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
