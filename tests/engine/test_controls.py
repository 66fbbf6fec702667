"""Nothing false gets in, nothing honest is kept out: every control through the real engine at production limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from muster.draws import draw_sample
from muster.inspection import Finding
from muster.profiles import CPU_FP32
from muster.rollouts.schema import Rollout
from tests.engine.conftest import COMMITMENT, Requests, UsingWeights
from tests.engine.controls import (
    claim_another_prompt,
    claim_another_seed,
    constant_proofs,
    edit_one_token,
    random_proofs,
    rollouts_of,
    rounded_to_int8,
    save_changed,
    scale_logprobs,
    shift_one_logprob,
    short_proofs,
    shuffled_proofs,
    tempered,
    train_on,
    with_noise,
    zero_proofs,
)
from validator.replay import Measurement, Replayer, judge
from worker.engine import Engine

SAMPLE = 32
"""Rollouts of a commitment that a validator runs again."""
OTHER_WEIGHTS = ("sampling_mismatch", "activation_mismatch")
SAMPLES = 20
"""Samples drawn from each adversary's commitment; every one of them must convict."""


def findings_of(measurements: Sequence[Measurement]) -> list[Finding]:
    return [finding for measurement in measurements if (finding := judge([measurement], CPU_FP32))]


def accused_share(measurements: Sequence[Measurement]) -> float:
    return sum(finding.accuse for finding in findings_of(measurements)) / len(measurements)


def assert_convicted(measurements: Sequence[Measurement], *reasons: str) -> None:
    """Whatever 32 rollouts a validator draws: it accuses, and of one of these."""
    for i in range(SAMPLES):
        node = f"0x{i:040x}"
        drawn = draw_sample(
            block_hash=bytes(32), preimage=bytes(32), node=node, index=i, positions=len(measurements), count=SAMPLE
        )
        finding = judge([measurements[position] for position in drawn], CPU_FP32)
        assert finding is not None
        assert finding.accuse
        assert finding.reason in reasons


def test_honest_work_is_accepted_with_room_to_spare(honest: list[Rollout], replayer: Replayer) -> None:
    measurements = replayer.replay(honest)
    assert findings_of(measurements) == []
    assert sum(len(rollout.completion_tokens) for rollout in honest) > 2000
    assert max(m.mean_gap for m in measurements) < CPU_FP32.mean_gap.accuse / 2
    assert max(m.worst_gap for m in measurements) < CPU_FP32.worst_gap.accuse / 2
    assert max(m.activation for m in measurements) < CPU_FP32.activation.accuse / 2
    assert max(m.logprobs for m in measurements) < CPU_FP32.logprobs.accuse / 2


def test_noise_of_two_percent_is_accused_in_every_rollout(
    engine: Engine,
    replayer: Replayer,
    requests_for: Requests,
    using_weights: UsingWeights,
    model_dir: Path,
    tmp_path: Path,
) -> None:
    """The demo's cheater."""
    requests = requests_for(COMMITMENT)
    with using_weights(save_changed(model_dir, tmp_path / "noisy", with_noise(0.02))):
        measurements = replayer.replay(rollouts_of(requests, engine.generate(requests)))
    assert accused_share(measurements) == 1.0
    assert all(measurement.activation > CPU_FP32.activation.accuse for measurement in measurements)
    assert_convicted(measurements, *OTHER_WEIGHTS)


def test_int8_weights_are_caught(
    engine: Engine,
    replayer: Replayer,
    requests_for: Requests,
    using_weights: UsingWeights,
    model_dir: Path,
    tmp_path: Path,
) -> None:
    requests = requests_for(COMMITMENT)
    with using_weights(save_changed(model_dir, tmp_path / "int8", rounded_to_int8)):
        measurements = replayer.replay(rollouts_of(requests, engine.generate(requests)))
    assert len(findings_of(measurements)) == COMMITMENT
    assert_convicted(measurements, *OTHER_WEIGHTS)


@pytest.mark.parametrize("step", [1, 6])
def test_weights_one_step_old_are_caught(
    step: int,
    engine: Engine,
    replayer: Replayer,
    requests_for: Requests,
    using_weights: UsingWeights,
    honest: list[Rollout],
    model_dir: Path,
    tmp_path: Path,
) -> None:
    """Consecutive checkpoints of the real trainer, also from where its learning rate is still ramping up; and a worker
    with the right one of the two is honest."""
    *_, older, newer = train_on(model_dir, tmp_path, honest, step + 1)
    requests = requests_for(COMMITMENT)
    with using_weights(older):
        rollouts = rollouts_of(requests, engine.generate(requests))
        replayer.load_weights(newer)
        stale = replayer.replay(rollouts)
        replayer.load_weights(older)
        assert findings_of(replayer.replay(rollouts)) == []
    assert len(findings_of(stale)) == COMMITMENT
    assert_convicted(stale, *OTHER_WEIGHTS)


@pytest.mark.parametrize("temperature", [1e-4, 0.8, 1.2], ids=["greedy", "colder", "hotter"])
def test_another_temperature_is_a_sampling_mismatch(
    temperature: float, engine: Engine, replayer: Replayer, requests_for: Requests
) -> None:
    requests = requests_for(COMMITMENT)
    with tempered(engine, temperature):
        measurements = replayer.replay(rollouts_of(requests, engine.generate(requests)))
    assert_convicted(measurements, "sampling_mismatch")


CLAIMS: dict[Callable[[Sequence[Rollout]], list[Rollout]], tuple[str, float]] = {
    claim_another_seed: ("sampling_mismatch", 1.0),
    claim_another_prompt: ("sampling_mismatch", 1.0),
    zero_proofs: ("activation_mismatch", 1.0),
    constant_proofs: ("activation_mismatch", 1.0),
    random_proofs: ("activation_mismatch", 1.0),
    shuffled_proofs: ("activation_mismatch", 1.0),
    short_proofs: ("activation_mismatch", 1.0),
    scale_logprobs: ("wrong_logprobs", 1.0),
    shift_one_logprob: ("wrong_logprobs", 1.0),
}
"""What is claimed → the reason to accuse, and the share of rollouts that must be accused (of anything)."""


@pytest.mark.parametrize("tamper", CLAIMS, ids=lambda tamper: tamper.__name__)
def test_a_false_claim_is_caught(
    tamper: Callable[[Sequence[Rollout]], list[Rollout]], honest: list[Rollout], replayer: Replayer
) -> None:
    reason, share = CLAIMS[tamper]
    measurements = replayer.replay(tamper(honest))
    assert accused_share(measurements) >= share
    assert_convicted(measurements, reason)


def test_one_edited_token_is_caught_in_every_rollout(honest: list[Rollout], replayer: Replayer) -> None:
    measurements = replayer.replay(edit_one_token(honest, vocabulary=105))
    assert all(finding.accuse and finding.reason == "sampling_mismatch" for finding in findings_of(measurements))
    assert accused_share(measurements) == 1.0


def test_malformed_proofs_measure_as_infinitely_far(honest: list[Rollout], replayer: Replayer) -> None:
    measurement = replayer.replay(short_proofs(honest[:1]))[0]
    assert measurement.activation == np.inf
    assert "expected" in measurement.detail
