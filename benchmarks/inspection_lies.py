"""What the rule of steps at fault lets pass, and what it costs: figures of `benchmarks/inspection.py`.

Rows that no model wrote (`testbed.unrun_rows`) on a pretrained model, files of random tokens on the demo's model under
checkpoints that are made for them, and how long a file takes to judge.
"""

from __future__ import annotations

import asyncio
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import torch

from benchmarks import report
from muster.authoring.models.door import PROBE
from muster.errors import MalformedError
from muster.models.files import load_tokenizer
from muster.models.init import init_model
from muster.models.weights import FINAL_NORM, SCALE_PER_NAT, check_scale, logit_scale
from muster.protocol.prompts import end_token, prompt_tokens
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import write_rollouts
from muster.rollouts.schema import Rollout
from muster.rollouts.spans import one_span
from muster.verification.judging import judge
from muster.verification.model import DRAWS, DRAWS_AT_ONCE, blamed_for, replay_rows
from muster.verification.profiles import BF16, CPU_FP32, PROFILES
from muster.verification.replay import Replayer
from muster.verification.statistics import scaled_errors
from testbed.adversaries.lab import AdversaryLab, Job, open_lab
from testbed.adversaries.pipeline import KNOWN, LocalContext, Submission, inspect
from testbed.hostile_steps import CHANNEL, Maker, Tensors, hostile_steps, loud, save_hostile
from testbed.samples.packaged_model import packaged_model
from testbed.samples.task_sets import generated
from testbed.unrun_rows import LENGTHS, made_up, token_ids, unrun_rows
from worker.engine import GenerationRequest
from worker.rollouts import bare_rows

BOTH = (CPU_FP32.name, BF16.name)


@contextmanager
def pretrained(profile: str) -> Iterator[tuple[Replayer, np.ndarray, int]]:
    """Yield the replay of a pretrained model, a prompt of it, and the token that ends a completion."""
    torch.set_num_threads(1)
    folder = packaged_model()
    tokenizer = load_tokenizer(folder)
    replayer = Replayer(folder, PROFILES[profile], 1.0)
    replayer.load_weights(folder)
    yield replayer, prompt_tokens(tokenizer, PROBE, 8, thinks=False), end_token(tokenizer)


# --- unrun_rows


def judge_unrun(profile: str, ids: Sequence[int] = ()) -> list[tuple[int, int, str]]:
    """Return the token and the length of each row that accuses by itself, and what stays of it: "" for nothing."""
    found = []
    with pretrained(profile) as (replayer, prompt, end):
        rows = unrun_rows(prompt, end, ids or token_ids(replayer.vocabulary))
        for row, errors in zip(rows, replayer.errors(rows), strict=True):
            alone = judge(replayer.replay([row]), replayer.profile)
            if alone is not None and alone.accuse:
                judged, tokens = blamed_for(replayer, row, errors, alone), row.completion_tokens
                found.append((int(tokens[0]), len(tokens) - 1, judged.reason if judged.accuse else ""))
    return found


def unrun() -> list[report.Figure]:
    """Return how many rows that no model wrote are accused by themselves, and no longer after the honest spread."""
    found = {name: report.apart(judge_unrun, name) for name in BOTH}
    lost = [(name, token, length) for name, rows in found.items() for token, length, stays in rows if not stays]
    counts = {name: dict(Counter(stays or "excused" for *_, stays in rows)) for name, rows in found.items()}
    return [report.none("unrun", lost, "rows", accused_alone={n: len(rows) for n, rows in found.items()}, of=counts)]


# --- judged_file, judged_worst

SAMPLE, MIDDLE = 16, LENGTHS[1]
"""Rows of a file that are replayed, and how long they are."""


def seconds_of(work: Callable[[], object]) -> float:
    """Return CPU seconds, which other programs on the machine do not change."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def time_files(profile: str) -> dict[str, float]:
    """Return the CPU seconds of a replay of SAMPLE rows, of judging them, and if no row of them stayed blamed."""
    with pretrained(profile) as (replayer, prompt, end):
        rows = unrun_rows(prompt, end, token_ids(replayer.vocabulary)[:SAMPLE], [MIDDLE])
        replayer.replay(rows[:1])
        replayed = seconds_of(lambda: replayer.replay(rows))
        judged = seconds_of(lambda: replay_rows(replayer, rows))
        draws = seconds_of(lambda: list(islice(replayer.spread(rows[0], DRAWS_AT_ONCE), DRAWS // DRAWS_AT_ONCE)))
        return {"replay": replayed, "judged": judged, "worst": replayed + SAMPLE * draws}


def judging() -> list[report.Figure]:
    """Return how many times a replay's seconds a file takes whose rows are lies, and the worst that there can be."""
    found = {name: report.apart(time_files, name) for name in BOTH}
    figures = []
    for name, key, most in (("judged_file", "judged", 4.0), ("judged_worst", "worst", 34.0)):
        ratio = max(one[key] / one["replay"] for one in found.values())
        figures.append(report.figure(name, ratio, target=most, at_most=True, unit="replays", seconds=found))
    return figures


# --- let_in


def loudest(tensors: Tensors, *, scale: float) -> Tensors:
    """Put nearly all of every state into one channel that the head does not read, at this `logit_scale`."""
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor[CHANNEL] *= 1e4
    tensors = loud(tensors, k=0.0)
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    tensors[FINAL_NORM][CHANNEL] = 0.99 * scale / head.float().norm(dim=1).max()
    return tensors


def random_rows(shop: AdversaryLab, job: Job) -> list[Rollout]:
    """Return a commitment of random tokens, with true proofs and log-probabilities of them."""
    random, stops, longest = Random(7), shop.rules.model.stop_tokens, shop.rules.terms.max_completion_tokens
    tokens = [one for one in range(shop.vocabulary) if one not in stops]
    rows = []
    for row in shop.honest(job):
        count = random.randint(1, longest)
        made = np.array([*random.choices(tokens, k=count - 1), min(stops)], np.int32)
        rows.append(replace(row, completion_tokens=made, spans=one_span(count), finish_reason="stop"))
    return shop.prefill(job, rows)


def nearly_true(row: Rollout, share: float) -> Rollout:
    """Return the row with a proof that is off by this share of its size."""
    numbers = np.frombuffer(row.proof, "<f2").astype(np.float32).reshape(-1, 4)
    size = np.sqrt(np.square(numbers).mean(axis=1, keepdims=True))
    signs = np.random.default_rng(3).choice([-1.0, 1.0], numbers.shape)
    return replace(row, proof=np.clip(numbers + share * size * signs, -65504, 65504).astype("<f2").tobytes())


def judge_random(profile: str) -> dict[str, dict[str, str]]:
    """Return by checkpoint, and by what the proofs are, what a file of random tokens is rejected for: "" for nothing.

    None for a checkpoint that no node lets in.
    """
    found = {}

    async def run(shop: AdversaryLab, folder: Path) -> None:
        context, honest = LocalContext(shop), shop.checkpoints[-1]
        for place, (name, make) in enumerate(made_steps(shop).items()):
            hostile = save_hostile(honest, folder / f"hostile {place}", make)
            try:
                check_scale(hostile, shop.rules.terms.temperature)
            except MalformedError:
                continue
            job = shop.job(KNOWN)
            shop.honest(job)
            shop.checkpoints[-1] = hostile
            rows = random_rows(shop, job)
            limit = shop.profile.activation.reject
            kinds = {
                "true": rows,
                "nearly true": [nearly_true(row, 0.9 * limit) for row in rows],
                "zeros": [replace(row, proof=bytes(len(row.proof))) for row in rows],
            }
            for kind, some in kinds.items():
                work = replace(job.commitment, root=rollout_tree(some).root)
                inspection = await inspect(context, shop, job, Submission(write_rollouts(some), work))
                found.setdefault(name, {})[kind] = inspection.finding.reason if inspection.finding else ""
            print(f"{profile}: {name}: {found[name]}", file=sys.stderr)
            shop.checkpoints[-1] = honest
        await context.close()

    with tempfile.TemporaryDirectory() as name, open_lab(Path(name), PROFILES[profile]) as shop:
        asyncio.run(run(shop, Path(name)))
    return found


def made_steps(shop: AdversaryLab) -> dict[str, Maker]:
    """Return makers of checkpoints by name: hostile ones, and the loudest that is let in."""
    some = hostile_steps(shop.checkpoints[-1])
    for share in (0.25, 0.5, 1.0):
        scale = share * SCALE_PER_NAT * math.log(shop.vocabulary)
        some[f"loudest, {share:g} of what is let in"] = partial(loudest, scale=scale)
    return some | {"as it is": lambda tensors: tensors}


def let_in() -> list[report.Figure]:
    """Return how many files of random tokens are accepted under checkpoints that are let in."""
    found = {name: report.apart(judge_random, name) for name in BOTH}
    files = [
        (p, name, kind, why) for p, steps in found.items() for name, of in steps.items() for kind, why in of.items()
    ]
    accepted = [one[:3] for one in files if not one[3]]
    reasons = {p: dict(Counter(why or "accepted" for q, _, _, why in files if p == q)) for p in found}
    steps = {p: len(of) for p, of in found.items()}
    return [
        report.none("let_in", accepted, "files", files=len(files), steps=steps, of=reasons, scale_per_nat=SCALE_PER_NAT)
    ]


# --- last_norm

GAINS = tuple(10.0 ** (place / 4) for place in range(25))
"""Of the one channel of the last norm that is made loud."""
RANDOM_ROWS, RANDOM_TOKENS = 32, 32


def measure_gains(profile: str, folder: Path, temperature: float = 1.0) -> dict[str, float]:
    """Return a model's `logit_scale`, and from which gains of a channel on one, and half, of random tokens pass.

    The head does not read the channel, and proofs are true. Counted are tokens that a gain of 1 rejects by their gap.
    """
    torch.set_num_threads(1)
    replayer, random = Replayer(folder, PROFILES[profile], temperature), Random(3)
    replayer.load_weights(folder)
    drawn = [random.choices(range(replayer.vocabulary), k=RANDOM_TOKENS) for _ in range(RANDOM_ROWS)]
    tokens = [np.array(one, np.int32) for one in drawn]
    requests = [GenerationRequest(one[:1], random.getrandbits(63), RANDOM_TOKENS - 1) for one in tokens]
    rows = bare_rows(requests, [made_up(one[1:]) for one in tokens])  # the first stands for a prompt
    scale = logit_scale(folder)
    found = {"scale": scale, "per_nat": scale / math.log(replayer.vocabulary), "one": math.inf, "half": math.inf}
    norm = replayer.model.base_model.get_parameter("norm.weight")
    head = replayer.model.get_parameter("lm_head.weight")
    with torch.no_grad():
        head[:, CHANNEL] = 0.0
        rejected: np.ndarray | None = None
        for gain in GAINS:
            norm[CHANNEL] = gain
            errors = [replace(row.errors, states=np.zeros_like(row.errors.gaps)) for row in replayer.errors(rows)]
            gaps = np.concatenate([scaled_errors(one, replayer.profile).gaps for one in errors])
            passing = gaps <= replayer.profile.gap_worst.reject
            rejected = ~passing if rejected is None else rejected  # the others are what the model may well sample
            for name, share in (("one", 0.0), ("half", 0.5)):
                if passing[rejected].mean() > share:
                    found[name] = min(found[name], gain)
    return found


def last_norm() -> list[report.Figure]:
    """Return how many times the largest `logit_scale` of a first model is let in, and what it takes to pass."""
    with tempfile.TemporaryDirectory() as name:
        demo = Path(name) / "model"
        init_model(demo, generated(0), seed=0)
        models = {"demo": demo, "SmolLM2-135M": packaged_model()}
        found = {f"{of}, {p}": report.apart(measure_gains, p, folder) for of, folder in models.items() for p in BOTH}
    times = min(SCALE_PER_NAT / one["per_nat"] for one in found.values())
    return [report.figure("last_norm", times, target=2.0, unit="first models", scale_per_nat=SCALE_PER_NAT, of=found)]
