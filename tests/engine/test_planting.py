"""Traps by the real engine: a replay finds every planted row, all else in the file is true, and nothing else tells."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from muster.proofs.seeded_sampling import noise_at
from muster.rollouts.schema import Rollout
from muster.verification.judging import judge
from muster.verification.planting import LOWEST, Plant
from muster.verification.profiles import CPU_FP32
from muster.verification.replay import Replayer
from muster.verification.statistics import scaled_errors
from testbed.suite.engine_types import Requests
from worker.engine import Engine, Generation, GenerationRequest
from worker.planter import plant
from worker.rollouts import bare_rows
from worker.weights import CurrentWeights

COUNT = 16


@pytest.fixture
async def weights(engine: Engine, model_dir: Path) -> CurrentWeights:
    current = CurrentWeights(lambda _: engine)
    await current.load(SimpleNamespace(checkpoint=SimpleNamespace(step=1), path=model_dir))  # type: ignore[arg-type]
    return current


async def planted(
    weights: CurrentWeights, model_dir: Path, requests: list[GenerationRequest], count: int = COUNT
) -> tuple[list[Generation], list[Generation], list[Plant]]:
    """Return what was generated, what a trap makes of it, and where it is false."""
    before = await weights.generate(requests, rivals=True)
    made = await plant(weights, model_dir, CPU_FP32, requests, before, count)
    assert made is not None
    return before, *made


async def test_replay_finds_each_planted_row_and_nothing_else(
    weights: CurrentWeights, model_dir: Path, replayer: Replayer, requests_for: Requests
) -> None:
    """Exactly the promised rows, each beyond the accusing limit by one token: everything else there is true as well."""
    requests = requests_for(128, seed=61)
    before, after, plants = await planted(weights, model_dir, requests)
    assert len({one.row for one in plants}) == len(plants) == COUNT
    rows = bare_rows(requests, after)
    measured, errors = replayer.replay(rows), replayer.errors(rows)
    for row, (measurement, found) in enumerate(zip(measured, errors, strict=True)):
        finding = judge([measurement], CPU_FP32)
        places = [one.token for one in plants if one.row == row]
        if not places:
            assert finding is None
            assert after[row] is before[row]
            continue
        assert finding is not None
        assert (finding.reason, finding.accuse) == ("sampling_mismatch", True)
        gaps = scaled_errors(found.errors, CPU_FP32).gaps
        assert np.flatnonzero(gaps > CPU_FP32.gap_worst.reject).tolist() == places
        assert measurement.activation < CPU_FP32.activation.reject
        for name in ("logprob_rms", "logprob_worst", "logprob_drift"):
            assert getattr(measurement, name) < 0.6 * getattr(CPU_FP32, name).accuse
        assert np.array_equal(before[row].tokens[: places[0]], after[row].tokens[: places[0]])
        assert before[row].tokens[places[0]] != after[row].tokens[places[0]]


async def test_planted_token_is_the_runner_up(weights: CurrentWeights, model_dir: Path, requests_for: Requests) -> None:
    before, after, plants = await planted(weights, model_dir, requests_for(64, seed=62), 8)
    for one in plants:
        rivals = before[one.row].rivals
        assert rivals is not None
        assert rivals.tokens[one.token] == after[one.row].tokens[one.token]
        assert rivals.sampled[one.token] == before[one.row].tokens[one.token]
        assert after[one.row].logprobs[one.token] == pytest.approx(float(rivals.logprobs[one.token]), abs=1e-3)


async def test_recorded_runners_up_are_those_of_the_replay(
    weights: CurrentWeights, requests_for: Requests, replayer: Replayer
) -> None:
    """A gap that the worker expects is the one that a validator measures, in the same units."""
    requests = requests_for(16, seed=63)
    made = await weights.generate(requests, rivals=True)
    rows = bare_rows(requests, made)
    for row, generation in zip(rows, made, strict=True):
        rivals = generation.rivals
        assert rivals is not None
        assert np.array_equal(rivals.sampled, generation.tokens)
        claimed = _claiming(row, rivals.tokens[0])
        (found,) = replayer.errors([claimed])
        assert found.errors.gaps[0] == pytest.approx(float(rivals.gaps[0]), abs=1e-3)
        assert found.errors.magnitudes[0] == pytest.approx(float(rivals.magnitudes[0]), rel=1e-3)


def _claiming(row: Rollout, token: float) -> Rollout:
    """Return the row with another first token."""
    tokens = row.completion_tokens.copy()
    tokens[0] = int(token)
    return replace(row, completion_tokens=tokens)


async def test_no_trap_is_half_made(weights: CurrentWeights, model_dir: Path, requests_for: Requests) -> None:
    """Where fewer rows than promised have a place for a false token, the work stays true."""
    requests = requests_for(4, seed=64)
    before = await weights.generate(requests, rivals=True)
    assert await plant(weights, model_dir, CPU_FP32, requests, before, 5) is None


async def test_recording_runners_up_changes_no_work(engine: Engine, requests_for: Requests) -> None:
    requests = requests_for(32, seed=65)
    plain, noted = engine.generate(requests), engine.generate(requests, rivals=True)
    for one, other in zip(plain, noted, strict=True):
        assert one.rivals is None
        assert np.array_equal(one.tokens, other.tokens)
        assert np.array_equal(one.logprobs, other.logprobs)
        assert one.proof == other.proof


async def test_planted_tokens_lie_as_high_as_sampled_ones(
    weights: CurrentWeights, model_dir: Path, requests_for: Requests
) -> None:
    """Noise and log-probability of a token add up to its height: no false one is lower than true ones often are."""
    requests = requests_for(256, seed=66)
    _, after, plants = await planted(weights, model_dir, requests, 32)
    false, true = [], []
    for row, (request, made) in enumerate(zip(requests, after, strict=True)):
        seeds = torch.full((len(made.tokens),), request.seed, dtype=torch.int64)
        tokens = torch.from_numpy(made.tokens.astype(np.int64))
        found = made.logprobs + noise_at(seeds, torch.arange(len(tokens)), tokens).numpy()
        places = [one.token for one in plants if one.row == row]
        false += found[places].tolist()
        true += np.delete(found, places).tolist()
    assert min(false) > LOWEST - 0.01
    assert np.mean(np.array(true) < -1) == pytest.approx(math.exp(-math.e), abs=0.02)
    assert 0.3 < np.mean([np.mean(np.array(true) > one) for one in false]) < 0.75
