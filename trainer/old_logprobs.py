"""Decide what the ratio is taken against: the samplers' log-probabilities, or the trainer's own old ones.

Samplers claim log-probabilities. Validators reject claims that are further off than honest arithmetic explains, and
`muster.verification.tolerance` says how far off the others can be. Claims are used only where that is a small share of
the clip: then no lie that passes moves a token's ratio by more than 2 %, or past the clip from further away than a
tenth of it. Elsewhere the trainer computes log-probabilities itself, and claims do not enter the ratio.

With recomputed ones, claims decide one thing: a rollout whose claims are beyond `mismatch_bound` is left out. That is
the claimant's own, and the weights of all others stay as they are. `mismatch_kl` is a metric. Advantages, the entropy
bonus and the divergence from the reference never read claims.
"""

from __future__ import annotations

import math
from typing import Final, cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from muster.errors import ConfigError
from muster.settings.recipes import OldLogprobs
from muster.verification.profiles import PROFILES
from muster.verification.tolerance import ModelSizes, ToleratedError, tolerated_error
from trainer.loss import LossTerms
from trainer.policy import Policy

CLIP_SHARE: Final = 0.1
"""Largest share of the clip that a lie may have. A tenth of 0.8 to 1.2 is 0.018 nats, so that a lie on all tokens
changes the gradient's norm by 2 % at most besides what it clips; `benchmarks/steering.py` measures both."""


def recomputes(policy: Policy, setting: OldLogprobs, profile: str, terms: LossTerms) -> bool:
    """Return whether an update computes the old log-probabilities itself. All ranks of a sharded model call it.

    `profile` names the one that the samplers' passed; without a name they are taken as exact. It is asked for before
    every update, because the answer depends on the weights: a resumed run gets the answers of one that never stopped.
    Raises ConfigError when the setting is `behaviour` and they may be further off than CLIP_SHARE of the clip.
    """
    if setting == "recomputed":
        return True
    if not profile:
        return False
    sizes, room = model_sizes(policy), clip_room(terms)
    off = math.inf if sizes is None else steering_error(tolerated_error(PROFILES[profile], sizes), terms)
    if off <= CLIP_SHARE * room:
        return False
    if setting == "behaviour":
        raise ConfigError(
            f"under {profile} a worker may claim log-probabilities of this model that are {off:.3g} nats off, which is "
            f"{off / room:.0%} of the recipe's clip ({room:.3g} nats): such lies steer the gradient",
            hint="set trainer.old_logprobs to auto or recomputed",
        )
    return True


def clip_room(terms: LossTerms) -> float:
    """Return how far a log ratio can be from 0 without being clipped, on the nearer side: nats."""
    low, high = terms.clip
    return min(-math.log(low), math.log(high))


def steering_error(tolerated: ToleratedError, terms: LossTerms) -> float:
    """Return by how much a lie can move a log ratio of a token that has a gradient: nats.

    Sure tokens have next to none of their own, but count like any other in a sequence's mean.
    """
    return max(tolerated.worst, tolerated.sure) if terms.ratio == "sequence" else tolerated.worst


@torch.no_grad()
def model_sizes(policy: Policy) -> ModelSizes | None:
    """Return bounds of the model's sizes as its weights are now; None where its last norm is none that we know."""
    if policy.gain_offset is None:
        return None
    weight = cast(nn.Module, policy.model.base_model).get_parameter("norm.weight").detach()  # [H]
    head = cast(nn.Linear, policy.model.get_output_embeddings()).weight.detach()  # [V, H]
    gain = (_whole(weight) + policy.gain_offset).abs().max()
    row_norm = _whole(torch.linalg.vector_norm(head, dim=1)).max()
    return ModelSizes.bounded_by(
        gain=float(gain), row_norm=float(row_norm), hidden=head.shape[1], temperature=policy.temperature
    )


def _whole(values: torch.Tensor) -> torch.Tensor:
    return values.full_tensor() if isinstance(values, DTensor) else values
