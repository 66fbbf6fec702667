"""Our losses and advantages are TRL's where both mean the same: its own code's numbers, within 1e-5.

The vectors are written by benchmarks/peers/trl_loss_vectors.py. Left out are the cases that mean something else: a KL
term multiplied by the ratio (use_bias_correction_kl), an entropy bonus averaged otherwise than the loss, advantages
scaled by the whole batch's deviation.
"""

from __future__ import annotations

import json
import math
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

from muster.settings.recipes import Normaliser
from testbed import paths
from trainer.advantages import AdvantageTerms, group_advantages
from trainer.loss import LossTerms, TokenBatch, policy_loss, token_weight

VECTORS = json.loads((paths.VECTORS / "trl_loss.json").read_text())
NORMALISERS: dict[str, Normaliser] = {"grpo": "rollouts", "bnpo": "tokens", "dapo": "tokens", "dr_grpo": "constant"}


def same_meaning(case: dict[str, Any]) -> bool:
    if case["beta"] and case["use_bias_correction_kl"]:
        return False
    mean_over_tokens = case["loss_type"] == "bnpo"
    return not case["entropy_coef"] or mean_over_tokens


CASES = [case for case in VECTORS["losses"] if same_meaning(case)]


def flat(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor(list(chain.from_iterable(rows)), dtype=torch.float64)


def ours(case: dict[str, Any]) -> tuple[float, torch.Tensor]:
    batch = VECTORS["batches"][case["batch"]]
    lengths = [len(row) for row in batch["logprobs"]]
    tokens = case["tokens"] if case["loss_type"] == "dapo" else sum(lengths)
    weights = [
        token_weight(
            NORMALISERS[case["loss_type"]],
            tokens=tokens,
            length=length,
            rollouts=len(lengths),
            limit=case["max_completion_length"],
        )
        for length in lengths
    ]
    counts = torch.tensor(lengths)
    logprobs = flat(batch["logprobs"]).requires_grad_()
    entropy = flat(batch["entropy"])
    terms = LossTerms(
        epsilon=case["epsilon"],
        epsilon_high=case["epsilon_high"],
        delta=case["delta"],
        ratio=case["importance_sampling_level"],
        kl_coefficient=case["beta"],
        entropy_coefficient=case["entropy_coef"],
        mismatch_bound=math.inf,
    )
    report = policy_loss(
        TokenBatch(
            logprobs=logprobs,
            behaviour_logprobs=flat(batch["behaviour"]),
            advantages=torch.tensor(batch["advantages"], dtype=torch.float64).repeat_interleave(counts),
            weights=torch.tensor(weights, dtype=torch.float64).repeat_interleave(counts),
            entropy=entropy,
            rollouts=torch.arange(len(lengths)).repeat_interleave(counts),
            reference_logprobs=flat(batch["reference"]) if case["beta"] else None,
        ),
        terms,
    )
    (gradient,) = torch.autograd.grad(report.loss, logprobs)
    return float(report.loss.detach()), gradient


def name_of(case: dict[str, Any]) -> str:
    return "-".join(str(case[key]) for key in ("batch", "loss_type", "importance_sampling_level", "delta", "beta"))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_loss_and_its_gradient_are_trls(case: dict[str, Any]) -> None:
    loss, gradient = ours(case)
    assert loss == pytest.approx(case["loss"], rel=1e-5, abs=1e-5)
    assert torch.allclose(gradient, flat(case["gradient"]), rtol=1e-5, atol=1e-5)


def test_cases_cover_every_normaliser_ratio_bound_and_reference() -> None:
    keys = ("loss_type", "importance_sampling_level")
    assert {tuple(case[key] for key in keys) for case in CASES} == {
        (kind, level) for kind in NORMALISERS for level in ("token", "sequence")
    }
    assert {case["delta"] for case in CASES} >= {None, 4.0}
    assert {bool(case["beta"]) for case in CASES} == {bool(case["entropy_coef"]) for case in CASES} == {False, True}
    assert len(CASES) >= 130


@pytest.mark.parametrize("case", [case for case in VECTORS["advantages"] if case["scale_rewards"] != "batch"])
def test_advantages_are_trls(case: dict[str, Any]) -> None:
    terms = AdvantageTerms(scale_by_std=case["scale_rewards"] == "group", sample_std=True, std_floor=1e-4)
    for rewards, expected in zip(case["rewards"], case["advantages"], strict=True):
        micro = np.round(np.asarray(rewards) * 1e6).astype(np.int64)
        actual = group_advantages(micro, np.zeros(len(rewards)), terms)
        assert actual.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)
