"""Train one update by the recipe `cispo`, and compute its loss on two tokens."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from muster.models.init import ModelShape, make_model, make_tokenizer
from muster.settings.schema import TrainerSettings
from muster.verification.profiles import CPU_FP32, profile_hash
from trainer.learner import Recipe
from trainer.loss import TokenBatch, policy_loss
from trainer.packing import Sample
from trainer.policy import Policy
from trainer.update import make_optimizer, update


def recipe(**values: Any) -> Recipe:
    terms: Any = SimpleNamespace(
        temperature=1.0, max_completion_tokens=8, async_level=2, profile=profile_hash(CPU_FP32.name)
    )
    return Recipe.from_settings(TrainerSettings.model_validate(values), terms)


def gradient(name: str) -> list[float]:
    """Return the slope at two tokens of ratios 2 and 8, with advantages 1 and -2."""
    behaviour = torch.full((2,), -1.0)
    logprobs = (behaviour + torch.tensor([2.0, 8.0]).log()).requires_grad_()
    ones, advantages = torch.ones(2), torch.tensor([1.0, -2.0])
    batch = TokenBatch(logprobs, behaviour, advantages, ones, ones, torch.tensor([0, 1]))
    policy_loss(batch, recipe(recipe=name, mismatch_bound=10.0).update.loss).loss.backward()
    assert logprobs.grad is not None
    return logprobs.grad.tolist()


def train() -> bool:
    """Return whether one update changed the weights, with a norm that is finite."""
    shape = ModelShape(hidden=32, layers=1, heads=1, intermediate=32)
    policy = Policy(make_model(make_tokenizer(), shape, seed=2), temperature=1.0)
    before = [parameter.clone() for parameter in policy.parameters()]
    tokens = np.arange(9, 15, dtype=np.int32)
    samples = [Sample(tokens, tokens, np.full(6, -4.6, dtype=np.float32), advantage) for advantage in (1.0, -1.0)]
    terms = recipe(recipe="cispo", mismatch_bound=50.0).update
    update(policy, make_optimizer(policy, terms), samples, terms, step=1)
    after = list(policy.parameters())
    finite = all(bool(torch.isfinite(one).all()) for one in after)
    return finite and any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


print(
    json.dumps(
        {
            "bound": [recipe(recipe=name).update.loss.cispo_high for name in ("cispo", "grpo")],  # type: ignore[attr-defined]
            "cispo": gradient("cispo"),
            "grpo": gradient("grpo"),
            "trained": train(),
        }
    )
)
