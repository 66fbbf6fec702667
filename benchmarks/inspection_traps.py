"""Whether traps are found by who looks, and by no one else: figures of `benchmarks/inspection.py`.

Commitments of the real engine, of which each is made a trap as a worker makes it: of the demo's model, whose rows have
ten tokens, and of SmolLM2-135M-Instruct, whose rows have up to TOKENS. Who looks is a validator's replay. Who does not
has the file: its tokens' log-probabilities and their noise.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from benchmarks import inspection_steps, real_model, report
from benchmarks.real_model_days import NAME as SMOLLM2
from benchmarks.real_model_days import TOKENS
from muster.models.weights import read_head
from muster.protocol.traps import FIRST_COMMITMENTS, planted_rows
from muster.verification.judging import Measurement, judge
from muster.verification.planting import (
    HeadRows,
    Rivals,
    chances,
    draw_plants,
    expected_gaps,
    false_claims,
    noise_of,
)
from muster.verification.profiles import BF16, CPU_FP32, PROFILES, STATISTICS, Profile
from muster.verification.replay import Replayer
from muster.verification.sample_policy import detection
from worker.engine import Engine, EngineLimits, Generation, GenerationRequest
from worker.planter import head_rows, plant
from worker.rollouts import bare_rows
from worker.weights import CurrentWeights, FetchedStep

POSITIONS, SAMPLE = 128, 12
"""Rows of a commitment, and how many of them a validator's own sample has."""
FALSE = planted_rows(POSITIONS, FIRST_COMMITMENTS)
"""Of these, in a trap of a node that is no newcomer."""

DEMO = "the demo's model"
CASES = [(model, profile.name) for model in (DEMO, SMOLLM2) for profile in (CPU_FP32, BF16)]

Requests = Callable[[int], list[GenerationRequest]]
"""Returns the requests of a commitment, by its number."""


@contextmanager
def running(model: str, profile: str) -> Iterator[tuple[Path, Engine, Replayer, Requests]]:
    """Yield one of the two models, engine and replay of it under a profile, and what it is asked."""
    if model == DEMO:
        with inspection_steps.demo(profile) as (source, engine, replayer):
            yield source, engine, replayer, partial(inspection_steps.requests_of, source, POSITIONS)
        return
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        source = real_model.model_in(Path(folder))
        ask = partial(real_model.requests_of, source, POSITIONS)
        longest = max(len(one.prompt_tokens) for one in ask(0))
        engine = Engine(source, PROFILES[profile], EngineLimits(1.0, 2 * longest, TOKENS, cache_bytes=1 << 30))
        try:
            yield source, engine, Replayer(source, PROFILES[profile], 1.0), ask
        finally:
            engine.close()


# --- trap_seen

TRAPS = {DEMO: 64, SMOLLM2: 12}


def measure_seen(model: str, profile: str) -> tuple[int, list[int], int, float]:
    """Return how many commitments could not be made traps, found false rows of each other, and true ones accused.

    And the largest share of an accusing limit that anything but gaps comes to in a false row.
    """
    with running(model, profile) as (source, engine, replayer, requests_of):
        weights = CurrentWeights(lambda _: engine)
        step = cast(FetchedStep, SimpleNamespace(checkpoint=SimpleNamespace(step=0), path=source))

        async def made(seed: int) -> tuple[list[GenerationRequest], list[Generation], set[int]] | None:
            await weights.load(step)
            requests = requests_of(seed)
            before = await weights.generate(requests, rivals=True)
            found = await plant(weights, source, replayer.profile, requests, before, FALSE)
            return found and (requests, found[0], {one.row for one in found[1]})

        async def all_made() -> list[tuple[list[GenerationRequest], list[Generation], set[int]] | None]:
            return [await made(1000 + number) for number in range(TRAPS[model])]

        none, found, accused, share = 0, [], 0, 0.0
        for trap in asyncio.run(all_made()):
            if trap is None:
                none += 1
                continue
            requests, generations, false = trap
            measured = replayer.replay(bare_rows(requests, generations))
            share = max(share, *(other_share(measured[row], replayer.profile) for row in false))
            findings = [judge([row], replayer.profile) for row in measured]
            seen = {row for row, finding in enumerate(findings) if finding is not None and finding.accuse}
            found.append(len(seen & false))
            accused += len(seen - false)
        return none, found, accused, share


def other_share(measured: Measurement, profile: Profile) -> float:
    """Return the largest share of an accusing limit that a row's statistics come to, gaps left out: 1 accuses."""
    names = [name for name in STATISTICS if not name.startswith("gap_")]
    return max(getattr(measured, name) / getattr(profile, name).accuse for name in names)


def trap_seen() -> list[report.Figure]:
    """Return the share of false rows that a replay accuses, and of traps that a sample rejects, beside the policy's.

    And how near a false row comes to being accused of anything but its gap, for which no ticket answers.
    """
    figures = []
    policy = detection(POSITIONS, FALSE, SAMPLE)
    for model, profile in CASES:
        none, found, accused, other = report.apart(measure_seen, model, profile)
        rows = sum(found) / (FALSE * max(1, len(found)))
        seen = sum(detection(POSITIONS, one, SAMPLE) for one in found) / max(1, len(found))
        more: dict[str, Any] = {"traps": len(found), "not_planted": none, "true_rows_accused": accused}
        of = f"{model}, {profile}"
        figures += [
            report.figure("trap_seen_rows", rows, target=0.999, unit=f"of false rows, {of}", **more),
            report.figure("trap_claims", other, target=1.0, at_most=True, unit=f"of what accuses, {of}"),
            report.relative("trap_seen", seen, limit=policy, target=0.999, unit=f"of traps, {of}", **more),
        ]
    return figures


# --- trap_guess

MADE = {DEMO: 100, SMOLLM2: 16}
"""Commitments that are generated."""
COMMITMENTS, PLANTINGS = 200, 10
"""Commitments whose rows are drawn from those, and how often each is made a trap."""
BINS = 8
"""Of height, and of log-probability: what the likelihood tells apart."""

Tokens = tuple[np.ndarray, np.ndarray]
"""Heights and log-probabilities of all tokens of a commitment."""


@dataclass(frozen=True, eq=False)
class Row:
    """What a worker knows of a row before it makes it false."""

    heights: np.ndarray
    logprobs: np.ndarray
    places: np.ndarray
    """`chances`; and negative where a gap that accuses is too small for them."""
    length: int
    """All its tokens."""
    rivals: Rivals
    head: HeadRows
    noise: np.ndarray
    """Of the runners-up."""
    profile: Profile
    planted: dict[int, Tokens] = field(default_factory=dict)

    def made_false(self, place: int) -> Tokens:
        """Return its heights and log-probabilities with a false token: what follows is as true as what was there."""
        if place not in self.planted:
            true, noise = self.logprobs.copy(), self.heights - self.logprobs
            true[place], noise[place] = self.rivals.logprobs[place], self.noise[place]
            claimed = false_claims(self.rivals, self.head, true, place, self.profile)
            self.planted[place] = claimed + noise, claimed
        return self.planted[place]


def measure_rows(model: str, profile: str) -> list[Row]:
    """Return the rows of commitments."""
    rows = []
    with running(model, profile) as (source, engine, replayer, requests_of):
        head, judged = read_head(source), replayer.profile
        for number in range(MADE[model]):
            requests = requests_of(5000 + number)
            for request, made in zip(requests, engine.generate(requests, rivals=True), strict=True):
                assert made.rivals is not None
                found = head_rows(head, made.rivals, judged)
                places = chances(made.rivals, found, request.seed, judged)
                beyond = expected_gaps(made.rivals, found.apart, judged) > judged.gap_worst.accuse
                own, others = (noise_of(one, request.seed) for one in (made.tokens, made.rivals.tokens))
                rows.append(
                    Row(
                        heights=made.logprobs + own,
                        logprobs=made.logprobs,
                        places=np.where(beyond & (places == 0), -1.0, places),
                        length=len(request.prompt_tokens) + len(made.tokens),
                        rivals=made.rivals,
                        head=found,
                        noise=others,
                        profile=judged,
                    )
                )
    return rows


def as_workers_do(row: Row, _: Random) -> np.ndarray:
    """Return in what proportion each place is taken, as workers do it."""
    return np.maximum(row.places, 0.0)


def first_beyond(row: Row, random: Random) -> np.ndarray:
    """Return the first place from a uniform one on, round the end, whose gap is large enough."""
    places = row.places != 0
    turned = np.roll(places, -(start := random.randrange(len(places))))
    chosen = np.zeros(len(places))
    if turned.any():
        chosen[(start + int(turned.argmax())) % len(places)] = 1.0
    return chosen


def planted(rows: Sequence[Row], rule: Callable[[Row, Random], np.ndarray], random: Random) -> Tokens:
    """Return the tokens of a commitment that was made a trap."""
    made = [(row.heights, row.logprobs) for row in rows]
    draws = draw_plants([row.length for row in rows], lambda number: rule(rows[number], random), random)
    for one, _ in zip(draws, range(FALSE), strict=False):
        made[one.row] = rows[one.row].made_false(one.token)
    return joined(made)


def joined(rows: Iterable[Tokens]) -> Tokens:
    """Return the tokens of all rows."""
    high, likely = zip(*rows, strict=True)
    return np.concatenate(high), np.concatenate(likely)


def auc(false: np.ndarray, true: np.ndarray) -> float:
    """Return how often a trap's statistic is above that of true work, ties by half."""
    return float(((false[:, None] > true) + 0.5 * (false[:, None] == true)).mean())


def best_detector(rows: Sequence[Row], rule: Callable[[Row, Random], np.ndarray]) -> dict[str, float]:
    """Return the AUC of each detector that has nothing but noise and log-probabilities.

    The likelihood is that of a file's tokens by height and log-probability, learnt from half of the rows and asked
    about the others.
    """
    random, middle, half = Random(1), len(rows) // 2, COMMITMENTS // 2
    halves = (rows[:middle], rows[middle:])
    commitments = [random.sample(halves[number >= half], POSITIONS) for number in range(COMMITMENTS)]
    true = [joined((row.heights, row.logprobs) for row in rows) for rows in commitments]
    made = [[planted(rows, rule, random) for _ in range(PLANTINGS)] for rows in commitments]
    edges = [np.quantile(np.concatenate([one[i] for one in true]), np.linspace(0, 1, BINS + 1)[1:-1]) for i in (0, 1)]

    def bins(tokens: Tokens) -> np.ndarray:
        return np.digitize(tokens[0], edges[0]) * BINS + np.digitize(tokens[1], edges[1])

    def shares(files: Sequence[Tokens]) -> np.ndarray:
        counts = np.bincount(np.concatenate([bins(one) for one in files]), minlength=BINS**2) / len(files) + 0.5
        return counts / counts.sum()

    def learnt(known: slice, asked: slice) -> float:
        """Return the AUC of what the one half says of the other."""
        ratio = np.log(shares([one for files in made[known] for one in files]) / shares(true[known]))
        scores = [
            np.array([ratio[bins(one)].sum() for one in files])
            for files in ([one for own in made[asked] for one in own], true[asked])
        ]
        return auc(*scores)

    looks: dict[str, Callable[[Tokens], float]] = {
        "lowest height": lambda one: -float(one[0].min()),
        "mean height": lambda one: -float(one[0].mean()),
        "mean log-probability": lambda one: -float(one[1].mean()),
    }
    found = {
        name: auc(np.array([look(one) for files in made for one in files]), np.array([look(one) for one in true]))
        for name, look in looks.items()
    }
    return found | {"likelihood": (learnt(slice(half), slice(half, None)) + learnt(slice(half, None), slice(half))) / 2}


def trap_guess() -> list[report.Figure]:
    """Return the AUC of the best of these detectors; beside it, where places are taken without regard to height."""
    figures = []
    for model, profile in CASES:
        rows = report.apart(measure_rows, model, profile)
        ours, other = best_detector(rows, as_workers_do), best_detector(rows, first_beyond)
        more = {"detectors": ours, "first_beyond": other, "tokens": float(np.mean([len(row.heights) for row in rows]))}
        best = max(max(value, 1 - value) for value in ours.values())
        figures.append(
            report.figure("trap_guess", best, target=0.55, at_most=True, unit=f"AUC, {model}, {profile}", **more)
        )
    return figures
