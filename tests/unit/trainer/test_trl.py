"""Our losses and advantages are TRL's where both mean the same: its own code's numbers, within 1e-5.

The vectors are written by benchmarks/peers/trl_loss_vectors.py; TRL's own loop over tools made the conversations.
Left out are the cases that mean something else: a KL term multiplied by the ratio (use_bias_correction_kl), an
entropy bonus averaged otherwise than the loss, advantages scaled by the whole batch's deviation.
"""

from __future__ import annotations

import json
import math
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

from muster.environments.tools.manifest import TurnsManifest
from muster.protocol.turns.conversation import next_given, turn_rules
from muster.settings.recipes import Normaliser
from testbed import paths
from testbed.samples.chat_templates import family_tokenizer
from trainer.advantages import AdvantageTerms, group_advantages
from trainer.loss import LossTerms, TokenBatch, policy_loss, token_weight
from trainer.packing import Sample

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


def spans_of_mask(given: list[int]) -> np.ndarray:
    return np.array([*(np.flatnonzero(np.diff(given)) + 1), len(given)], np.int32)


def sampled_only(batch: dict[str, Any], rows: list[list[float]]) -> list[list[float]]:
    """Return a row's values at the tokens that packing would train on."""
    if "given" not in batch:
        return rows
    none = np.zeros(0, np.int32)
    masks = [Sample(none, np.zeros(len(given)), none, 0.0, spans=spans_of_mask(given)).mask for given in batch["given"]]
    return [np.asarray(row)[mask].tolist() for row, mask in zip(rows, masks, strict=True)]


def ours(case: dict[str, Any]) -> tuple[float, torch.Tensor]:
    batch = VECTORS["batches"][case["batch"]]
    keys = ("logprobs", "behaviour", "reference", "entropy")
    batch = batch | {key: sampled_only(batch, batch[key]) for key in keys}
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
    batch = VECTORS["batches"][case["batch"]]
    assert torch.allclose(gradient, flat(sampled_only(batch, case["gradient"])), rtol=1e-5, atol=1e-5)
    everywhere = float(flat(case["gradient"]).abs().sum())
    assert float(gradient.abs().sum()) == pytest.approx(everywhere, rel=1e-5, abs=1e-5), "TRL trains on given tokens"


@pytest.mark.parametrize("place", range(4))
def test_conversations_and_masks_are_trls(place: int) -> None:
    said, given = VECTORS["conversations"][place], VECTORS["batches"]["turns"]["given"][place]
    tokenizer = family_tokenizer("Qwen3")
    stops = frozenset(tokenizer("<|im_end|>", add_special_tokens=False)["input_ids"])
    rules = turn_rules(tokenizer, TurnsManifest(("calculator",)), stops, thinks=False)
    spans: list[list[int]] = []
    for text in said["texts"]:
        spans.append([*tokenizer(text, add_special_tokens=False)["input_ids"], rules.template.end])
        if answered := next_given(rules, spans, room=1000):
            spans.append(answered.tokens.tolist())
    assert list(chain.from_iterable(spans)) == said["tokens"]
    assert np.cumsum([len(span) for span in spans]).tolist() == spans_of_mask(given).tolist()


def test_cases_cover_every_normaliser_ratio_bound_and_reference() -> None:
    keys = ("loss_type", "importance_sampling_level")
    assert {tuple(case[key] for key in keys) for case in CASES} == {
        (kind, level) for kind in NORMALISERS for level in ("token", "sequence")
    }
    assert {case["delta"] for case in CASES} >= {None, 4.0}
    assert {bool(case["beta"]) for case in CASES} == {bool(case["entropy_coef"]) for case in CASES} == {False, True}
    assert len(CASES) >= 150
    assert {case["batch"] for case in CASES} == set(VECTORS["batches"])


@pytest.mark.parametrize("case", [case for case in VECTORS["advantages"] if case["scale_rewards"] != "batch"])
def test_advantages_are_trls(case: dict[str, Any]) -> None:
    terms = AdvantageTerms(scale_by_std=case["scale_rewards"] == "group", sample_std=True, std_floor=1e-4)
    for rewards, expected in zip(case["rewards"], case["advantages"], strict=True):
        micro = np.round(np.asarray(rewards) * 1e6).astype(np.int64)
        actual = group_advantages(micro, np.zeros(len(rewards)), terms)
        assert actual.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)
