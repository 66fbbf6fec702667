"""The policy loss as a pure function on flat tensors of completion tokens.

The default is INTELLECT-2's two-sided clip with one correction: the ratio is taken against the log-probabilities the
*samplers* reported (and validators checked), so that staleness and the difference between engines are both corrected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

MAX_LOG_RATIO: Final = 20.0
"""Far beyond δ, so it changes no loss, and far below where float32's exp overflows and its gradient with it."""


@dataclass(frozen=True)
class TokenBatch:
    """Completion tokens of one micro-batch, rollout after rollout."""

    logprobs: torch.Tensor
    """float32 [tokens], with gradient: the trainer's own, under softmax(logits / temperature)"""
    behaviour_logprobs: torch.Tensor
    """float32 [tokens]: the sampler's"""
    advantages: torch.Tensor
    """float32 [tokens]"""
    entropy: torch.Tensor
    """float32 [tokens]: entropy of the trainer's distribution in nats; with gradient if a coefficient is set"""
    rollouts: torch.Tensor
    """int64 [tokens]: which rollout of the micro-batch a token belongs to, ascending from 0"""


@dataclass(frozen=True)
class LossTerms:
    epsilon: float = 0.2
    """Clip of the ratio around 1."""
    delta: float = 4.0
    """Upper bound of the ratio where the advantage is negative: without it one token can dominate the batch."""
    entropy_coefficient: float = 0.0
    mismatch_bound: float = 1.0
    """A rollout whose log-probabilities differ from the trainer's by more than this, in the mean of the absolute
    differences per token in nats, is left out."""


@dataclass(frozen=True)
class LossReport:
    """`loss` is this micro-batch's share of the batch's loss; the rest are sums, to be divided by `tokens`."""

    loss: torch.Tensor
    tokens: int
    """Tokens that were trained on."""
    dropped_rollouts: int
    """Rollouts beyond the mismatch bound."""
    entropy: float
    kl: float
    """k3 estimate of KL(sampler ‖ trainer): sum of ratio − 1 − log ratio."""
    clipped_low: float
    """Tokens whose gradient the lower clip removed (ratio below 1−ε, advantage negative)."""
    clipped_high: float
    """Tokens whose gradient the upper clip removed (ratio above 1+ε and advantage positive, or above δ)."""


def policy_loss(batch: TokenBatch, terms: LossTerms, *, normaliser: int) -> LossReport:
    """Two-sided clipped GRPO loss: −min(min(r, δ)·A, clip(r, 1±ε)·A), summed over tokens and divided by `normaliser`.

    `normaliser` is the number of completion tokens in the global batch, so the shares of micro-batches and ranks add
    up to the batch's loss and every token weighs the same. Source: INTELLECT-2 report, section 4.1.
    """
    log_ratio = batch.logprobs - batch.behaviour_logprobs
    keep = _agreeing(log_ratio.detach(), batch.rollouts, terms.mismatch_bound)
    # Left out before anything is computed from it: the gradient of what is not a number is none either.
    log_ratio = torch.where(keep, log_ratio, torch.zeros_like(log_ratio))
    ratio = torch.exp(torch.clamp(log_ratio, max=MAX_LOG_RATIO))
    capped = torch.clamp(ratio, max=terms.delta)
    clipped = torch.clamp(ratio, 1 - terms.epsilon, 1 + terms.epsilon)
    per_token = -torch.minimum(capped * batch.advantages, clipped * batch.advantages)
    per_token = per_token - terms.entropy_coefficient * batch.entropy
    loss = torch.where(keep, per_token, torch.zeros_like(per_token)).sum() / normaliser

    with torch.no_grad():
        kept_ratio, kept_log_ratio, advantages = ratio[keep], log_ratio[keep], batch.advantages[keep]
        low = (kept_ratio < 1 - terms.epsilon) & (advantages < 0)
        high = ((kept_ratio > 1 + terms.epsilon) & (advantages > 0)) | ((kept_ratio > terms.delta) & (advantages < 0))
        return LossReport(
            loss=loss,
            tokens=int(keep.sum()),
            dropped_rollouts=int(batch.rollouts[~keep].unique().numel()),
            entropy=float(batch.entropy[keep].sum()),
            kl=float((kept_ratio - 1 - kept_log_ratio).sum()),
            clipped_low=float(low.sum()),
            clipped_high=float(high.sum()),
        )


def _agreeing(log_ratio: torch.Tensor, rollouts: torch.Tensor, bound: float) -> torch.Tensor:
    """bool [tokens]: whether the token's rollout is within the bound; one that is not a number never is."""
    count = int(rollouts.max()) + 1 if rollouts.numel() else 0
    total = log_ratio.new_zeros(count).index_add_(0, rollouts, log_ratio.abs())
    tokens = log_ratio.new_zeros(count).index_add_(0, rollouts, torch.ones_like(log_ratio))
    return ((total / tokens) <= bound)[rollouts]
