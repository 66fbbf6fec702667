"""Replay: measuring does not depend on batching, weights are swapped cleanly, and broken input has a name."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from muster.authoring.models.variants import save_changed, with_noise
from muster.errors import ConfigError, MalformedError
from muster.models.numerics import numerics_pinned, pin_numerics
from muster.models.weights import read_weights
from muster.rollouts.schema import Rollout
from muster.verification import replay
from muster.verification.judging import Measurement, judge
from muster.verification.model import replay_rows
from muster.verification.profiles import CPU_FP32
from muster.verification.replay import Replayer
from muster.verification.statistics import FLOAT32, LEAST
from testbed.samples.models import unpin_numerics

CLEAN = Measurement(
    position=5, gap_mean=0, gap_worst=0, activation=2e-4, logprob_rms=0.01, logprob_worst=0.1, logprob_drift=0
)


@pytest.fixture(scope="module")
def noisy_dirs(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("noisy")
    return [save_changed(model_dir, folder / str(i), with_noise(0.1)) for i in range(3)]


def test_batches_do_not_change_what_is_measured(
    honest: list[Rollout], replayer: Replayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = [replace(rollout, logprobs=rollout.logprobs - np.float32(0.5)) for rollout in honest[:40]]
    together = replayer.replay(rollouts)
    monkeypatch.setattr(replay, "_PASS_TOKENS", 100)
    monkeypatch.setattr(replay, "_LOGITS_AT_ONCE", 105 * 7)
    for one, other in zip(together, replayer.replay(rollouts), strict=True):
        assert one.position == other.position
        assert one.logprob_worst > CPU_FP32.logprob_worst.accuse
        assert other.logprob_worst == pytest.approx(one.logprob_worst, rel=1e-2)
        assert other.activation == pytest.approx(one.activation, abs=1e-5)


@torch.inference_mode()
def test_forged_logprob_is_measured_in_expected_error(
    honest: list[Rollout], replayer: Replayer, model_dir: Path
) -> None:
    """By the formula in `muster.verification.statistics`, from the model's own states."""
    row, token, forged = honest[0], 1, math.log(0.3)
    replayer.load_weights(model_dir)
    ids = torch.from_numpy(np.concatenate([row.prompt_tokens, row.completion_tokens])[None].astype(np.int64))
    state = replayer.model.base_model(input_ids=ids).last_hidden_state[0, len(row.prompt_tokens) - 1 + token]
    head = replayer.model.get_output_embeddings()
    logits = head(state)
    chosen = int(row.completion_tokens[token])
    logprob = float(logits.log_softmax(0)[chosen])
    scale = float(state.norm() * head.weight[chosen].norm()) / math.sqrt(len(state))
    magnitude = max(abs(float(logits[chosen])), abs(float(logits.max())))
    least = LEAST + FLOAT32 * magnitude
    expected = math.hypot(CPU_FP32.state_error * scale, CPU_FP32.logit_rounding * magnitude)
    expected += least / max(-math.expm1(min(logprob, forged)), least)
    odds = [value - math.log(-math.expm1(value)) for value in (forged, min(logprob, -least))]
    logprobs = row.logprobs.copy()
    logprobs[token] = forged
    [found] = replayer.replay([replace(row, logprobs=logprobs)])
    assert found.logprob_worst == pytest.approx(abs(odds[0] - odds[1]) / expected, rel=0.01)


def test_a_replay_computes_in_float32_whatever_was_set(honest: list[Rollout], replayer: Replayer) -> None:
    unpin_numerics()
    try:
        replayer.replay(honest[:1])
        assert numerics_pinned()
    finally:
        pin_numerics()


def test_replay_of_no_rows_is_empty(replayer: Replayer) -> None:
    assert replayer.replay([]) == []


def test_weights_are_swapped_and_only_the_last_few_are_kept(
    honest: list[Rollout], model_dir: Path, noisy_dirs: list[Path]
) -> None:
    own = Replayer(model_dir, CPU_FP32, 1.0, keep=2)
    expected = {}
    for folder in [model_dir, *noisy_dirs]:
        own.load_weights(folder)
        expected[folder] = own.replay(honest[:8])
        assert len(own.weights) <= 2
    assert judge(expected[model_dir], CPU_FP32) is None
    assert judge(expected[noisy_dirs[0]], CPU_FP32) is not None
    for folder in [noisy_dirs[2], model_dir, noisy_dirs[0]]:
        own.load_weights(folder)
        assert own.replay(honest[:8]) == expected[folder]


def test_loading_what_is_loaded_reads_nothing(
    model_dir: Path, noisy_dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Replayer(model_dir, CPU_FP32, 1.0)
    own.load_weights(noisy_dirs[0])
    own.load_weights(noisy_dirs[1])
    monkeypatch.setattr(replay, "read_weights", lambda folder: pytest.fail(f"read {folder} again"))
    own.load_weights(noisy_dirs[1])
    own.load_weights(noisy_dirs[0])


@pytest.mark.parametrize("fault", ["shape", "missing", "extra", "bytes"])
def test_weights_that_do_not_fit_are_malformed(fault: str, model_dir: Path, tmp_path: Path) -> None:
    tensors = dict(read_weights(model_dir))
    name = "model.layers.0.mlp.up_proj.weight"
    if fault == "shape":
        tensors[name] = tensors[name][:-1].contiguous()
    elif fault == "missing":
        del tensors[name]
    elif fault == "extra":
        tensors["model.layers.7.mlp.up_proj.weight"] = tensors[name].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    if fault == "bytes":
        (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    own = Replayer(model_dir, CPU_FP32, 1.0)
    with pytest.raises(MalformedError):
        own.load_weights(tmp_path)


def test_broken_checkpoint_accuses_no_worker(honest: list[Rollout], model_dir: Path, tmp_path: Path) -> None:
    """NaN weights must not make claims pass (or fail): there is nothing to measure."""
    broken = save_changed(model_dir, tmp_path / "broken", lambda tensor: tensor * torch.nan)
    own = Replayer(model_dir, CPU_FP32, 1.0)
    own.load_weights(broken)
    rows = replay_rows(own, honest[:2])
    findings = [(row.finding.reason, row.finding.accuse) for row in rows if row.finding]
    assert findings == [("sampling_mismatch", False)] * 2
    assert rows[0].finding is not None
    assert rows[0].finding.detail.endswith("differ by inf limits on this row")


def test_a_missing_model_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        Replayer(tmp_path, CPU_FP32, 1.0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_log_probabilities_that_are_not_finite_are_infinitely_wrong(
    value: float, honest: list[Rollout], replayer: Replayer
) -> None:
    logprobs = honest[0].logprobs.copy()
    logprobs[0] = value
    for wrong in (logprobs, logprobs[:-1]):
        [found] = replayer.replay([replace(honest[0], logprobs=wrong)])
        assert (found.logprob_rms, found.logprob_worst, found.logprob_drift) == (np.inf, np.inf, np.inf)


def test_clean_measurements_have_no_finding() -> None:
    assert judge([], CPU_FP32) is None
    assert judge([CLEAN], CPU_FP32) is None


@pytest.mark.parametrize(
    ("statistic", "reason"),
    [
        ("gap_mean", "sampling_mismatch"),
        ("gap_worst", "sampling_mismatch"),
        ("activation", "activation_mismatch"),
        ("logprob_rms", "wrong_logprobs"),
        ("logprob_worst", "wrong_logprobs"),
        ("logprob_drift", "wrong_logprobs"),
    ],
)
def test_each_statistic_has_reject_and_accuse_limits(statistic: str, reason: str) -> None:
    limit = getattr(CPU_FP32, statistic)
    assert judge([replace(CLEAN, **{statistic: limit.reject})], CPU_FP32) is None
    for value, threshold, accuse in (
        (limit.reject * 1.01, limit.reject, False),
        (limit.accuse, limit.reject, False),
        (limit.accuse * 1.01, limit.accuse, True),
        (np.inf, limit.accuse, True),
        (np.nan, limit.accuse, True),
    ):
        finding = judge([CLEAN, replace(CLEAN, position=9, **{statistic: value})], CPU_FP32)
        assert finding is not None
        assert (finding.reason, finding.position, finding.threshold) == (reason, 9, threshold)
        assert finding.accuse == accuse


def test_judge_ranks_accusations_first_then_check_order() -> None:
    doubtful = replace(CLEAN, position=1, gap_mean=CPU_FP32.gap_mean.reject * 1.1)
    forged = replace(CLEAN, position=2, logprob_worst=1e6)
    other_weights = replace(CLEAN, position=3, activation=0.5)
    finding = judge([doubtful, forged, other_weights], CPU_FP32)
    assert finding is not None
    assert (finding.reason, finding.position, finding.measured) == ("activation_mismatch", 3, 0.5)


def test_a_malformed_proof_says_why() -> None:
    finding = judge([replace(CLEAN, activation=np.inf, detail="8 bytes for 2 tokens, 16 expected")], CPU_FP32)
    assert finding is not None
    assert finding.detail == "8 bytes for 2 tokens, 16 expected"
