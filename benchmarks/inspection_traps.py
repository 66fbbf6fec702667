"""Whether traps are found by who looks, and by no one else: figures of `benchmarks/inspection.py`.

Commitments of the real engine on the demo's model, of which each is made a trap as a worker makes it. Who looks is a
validator's replay. Who does not has the file: its tokens' log-probabilities and their noise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import cast

import numpy as np
import torch

from benchmarks import report
from benchmarks.inspection_steps import demo, requests_of
from muster.models.weights import read_head
from muster.proofs.seeded_sampling import noise_at
from muster.protocol.traps import FIRST_COMMITMENTS, planted_rows
from muster.verification.planting import chances, draw_plants, expected_gaps, heights
from muster.verification.profiles import BF16, CPU_FP32
from muster.verification.sample_policy import detection
from validator.replay import judge
from worker.engine import Generation, GenerationRequest
from worker.planter import apart, plant
from worker.rollouts import bare_rows
from worker.weights import CurrentWeights, FetchedStep, Stopwatch

POSITIONS, SAMPLE = 128, 12
"""Rows of a commitment, and how many of them a validator's own sample has."""
FALSE = planted_rows(POSITIONS, FIRST_COMMITMENTS)
"""Of these, in a trap of a node that is no newcomer."""

# --- trap_seen

TRAPS = 64


def measure_seen(profile: str) -> tuple[int, list[int], int]:
    """Return how many commitments could not be made traps, found false rows of each other, and true ones accused."""
    with demo(profile) as (source, engine, replayer):
        weights = CurrentWeights(lambda _: engine, Stopwatch())
        step = cast(FetchedStep, SimpleNamespace(checkpoint=SimpleNamespace(step=0), path=source))

        async def made(seed: int) -> tuple[list[GenerationRequest], list[Generation], set[int]] | None:
            await weights.load(step)
            requests = requests_of(source, POSITIONS, seed)
            before = await weights.generate(requests, rivals=True)
            found = await plant(weights, source, replayer.profile, requests, before, FALSE)
            return found and (requests, found[0], {one.row for one in found[1]})

        async def all_made() -> list[tuple[list[GenerationRequest], list[Generation], set[int]] | None]:
            return [await made(1000 + number) for number in range(TRAPS)]

        none, found, accused = 0, [], 0
        for trap in asyncio.run(all_made()):
            if trap is None:
                none += 1
                continue
            requests, generations, false = trap
            findings = [judge([row], replayer.profile) for row in replayer.replay(bare_rows(requests, generations))]
            seen = {row for row, finding in enumerate(findings) if finding is not None and finding.accuse}
            found.append(len(seen & false))
            accused += len(seen - false)
        return none, found, accused


def trap_seen() -> list[report.Figure]:
    """Return the share of false rows that a replay accuses, and of traps that a sample rejects, beside the policy's."""
    figures = []
    policy = detection(POSITIONS, FALSE, SAMPLE)
    for profile in (CPU_FP32.name, BF16.name):
        none, found, accused = report.apart(measure_seen, profile)
        rows = sum(found) / (FALSE * max(1, len(found)))
        share = sum(detection(POSITIONS, one, SAMPLE) for one in found) / max(1, len(found))
        more = {"profile": profile, "traps": len(found), "not_planted": none, "true_rows_accused": accused}
        figures += [
            report.figure("trap_seen_rows", rows, target=0.999, unit=f"of false rows, {profile}", **more),
            report.relative("trap_seen", share, limit=policy, target=0.999, unit=f"of traps, {profile}", **more),
        ]
    return figures


# --- trap_guess

COMMITMENTS, PLANTINGS = 100, 10
"""Commitments, and how often each is made a trap."""
BINS = 8
"""Of height, and of log-probability: what the likelihood tells apart."""

Row = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]
"""Of a row's tokens: height, log-probability, the same of the runners-up, and where these may stand; all its tokens."""
Tokens = tuple[np.ndarray, np.ndarray]
"""Heights and log-probabilities of all tokens of a commitment."""


def measure_rows(profile: str) -> list[list[Row]]:
    """Return the rows of commitments. `chances` is kept whole, and for gaps that are too small negative."""
    found = []
    with demo(profile) as (source, engine, replayer):
        head = read_head(source)
        for number in range(COMMITMENTS):
            requests = requests_of(source, POSITIONS, 5000 + number)
            rows = []
            for request, made in zip(requests, engine.generate(requests, rivals=True), strict=True):
                assert made.rivals is not None
                tokens = torch.from_numpy(made.tokens.astype(np.int64))
                seeds = torch.full((len(tokens),), request.seed)
                own = made.logprobs + noise_at(seeds, torch.arange(len(tokens)), tokens).numpy()
                distance = apart(head, made.rivals, replayer.profile)
                places = chances(made.rivals, request.seed, distance, replayer.profile)
                beyond = expected_gaps(made.rivals, distance, replayer.profile) > replayer.profile.gap_worst.accuse
                second = heights(made.rivals, request.seed)
                places = np.where(beyond & (places == 0), -1.0, places)
                total = len(request.prompt_tokens) + len(tokens)
                rows.append((own, made.logprobs, second, made.rivals.logprobs, places, total))
            found.append(rows)
    return found


def by_height(row: Row, _: Random) -> np.ndarray:
    """Return in what proportion each place is taken, as workers do it."""
    return np.maximum(row[4], 0.0)


def first_beyond(row: Row, random: Random) -> np.ndarray:
    """Return the first place from a uniform one on, round the end, whose gap is large enough."""
    places = row[4] != 0
    turned = np.roll(places, -(start := random.randrange(len(places))))
    chosen = np.zeros(len(places))
    if turned.any():
        chosen[(start + int(turned.argmax())) % len(places)] = 1.0
    return chosen


def planted(rows: Sequence[Row], rule: Callable[[Row, Random], np.ndarray], random: Random) -> tuple[Tokens, Tokens]:
    """Return the tokens of a commitment that was made a trap, and its false ones."""
    own, logprobs = [row[0].copy() for row in rows], [row[1].copy() for row in rows]
    draws = draw_plants([row[5] for row in rows], lambda number: rule(rows[number], random), random)
    false = [one for one, _ in zip(draws, range(FALSE), strict=False)]
    high, likely = list[float](), list[float]()
    for one in false:  # what follows is as true as what followed before
        high.append(rows[one.row][2][one.token])
        likely.append(rows[one.row][3][one.token])
        own[one.row][one.token], logprobs[one.row][one.token] = high[-1], likely[-1]
    return (np.concatenate(own), np.concatenate(logprobs)), (np.array(high), np.array(likely))


def auc(false: np.ndarray, true: np.ndarray) -> float:
    """Return how often a trap's statistic is above that of true work, ties by half."""
    return float(((false[:, None] > true) + 0.5 * (false[:, None] == true)).mean())


def best_detector(commitments: Sequence[Sequence[Row]], rule: Callable[[Row, Random], np.ndarray]) -> dict[str, float]:
    """Return the AUC of each detector that has nothing but noise and log-probabilities.

    The likelihood is that of a file's tokens by height and log-probability, learnt from half of the commitments and
    asked about the others.
    """
    random = Random(1)
    true = [(np.concatenate([r[0] for r in rows]), np.concatenate([r[1] for r in rows])) for rows in commitments]
    made = [[planted(rows, rule, random)[0] for _ in range(PLANTINGS)] for rows in commitments]
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

    half = len(true) // 2
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
    for profile in (CPU_FP32.name, BF16.name):
        commitments = report.apart(measure_rows, profile)
        ours, other = best_detector(commitments, by_height), best_detector(commitments, first_beyond)
        more = {"profile": profile, "detectors": ours, "first_beyond": other}
        best = max(max(value, 1 - value) for value in ours.values())
        figures.append(report.figure("trap_guess", best, target=0.55, at_most=True, unit=f"AUC, {profile}", **more))
    return figures
