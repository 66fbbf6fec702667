"""Compute the policy loss: a pure function on flat tensors of the tokens that a policy sampled.

One function computes every recipe's loss; `LossTerms` says which. The default is INTELLECT-2's two-sided clip with one
correction: the ratio is taken against the log-probabilities that the *samplers* reported and validators checked. That
corrects both staleness and the difference between engines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch

from muster.settings.recipes import Normaliser, RatioLevel

MAX_LOG_RATIO: Final = 20.0
"""Far above any useful δ, and far below where float32's exp overflows and its gradient with it. Beyond it, without a δ,
a token's loss is constant and has no gradient."""


@dataclass(frozen=True)
class TokenBatch:
    """Sampled tokens of one micro-batch, rollout after rollout."""

    logprobs: torch.Tensor
    """float32 [tokens], with gradient: the trainer's own, under softmax(logits / temperature)"""
    behaviour_logprobs: torch.Tensor
    """float32 [tokens]: the sampler's"""
    advantages: torch.Tensor
    """float32 [tokens]"""
    weights: torch.Tensor
    """float32 [tokens]: share of each token in the global batch, from `token_weight`"""
    entropy: torch.Tensor
    """float32 [tokens]: entropy of the trainer's distribution in nats; with gradient if a coefficient is set"""
    rollouts: torch.Tensor
    """int64 [tokens]: which rollout of the micro-batch a token belongs to, ascending from 0"""
    old_logprobs: torch.Tensor | None = None
    """float32 [tokens]: the trainer's before this batch's first optimiser step; None: the ratio is to the sampler's"""
    reference_logprobs: torch.Tensor | None = None
    """float32 [tokens]: those of the model the run began with; None where no KL term is asked for"""
    given_logprobs: torch.Tensor | None = None
    """float32 [given tokens], with gradient: of what tools and users said; None where they have no term"""
    given_rollouts: torch.Tensor | None = None
    """int64 [given tokens]: as `rollouts`"""
    given_weight: float = 0.0
    """Of each given token: the coefficient over the given tokens of the global batch"""


@dataclass(frozen=True)
class LossTerms:
    epsilon: float = 0.2
    """Lower clip of the ratio, 1 − ε; also the upper one unless `epsilon_high` is set."""
    epsilon_high: float | None = None
    """Upper clip of the ratio, 1 + ε_high (DAPO's clip-higher, arXiv 2503.14476, section 3.1)."""
    delta: float | None = 4.0
    """Upper bound of the ratio where the advantage is negative: without it one token can dominate the batch."""
    ratio: RatioLevel = "token"
    """`sequence`: the geometric mean of a rollout's ratios stands for each of its tokens (GSPO, arXiv 2507.18071)."""
    normaliser: Normaliser = "tokens"
    """What a token's loss is divided by: see `token_weight`."""
    entropy_coefficient: float = 0.0
    kl_coefficient: float = 0.0
    """Weight of KL(trainer ‖ reference), by its k3 estimate, with a gradient."""
    given_coefficient: float = 0.0
    """Weight of the cross-entropy on given tokens, a mean over those of the global batch: the policy learns what its
    tools answer. It knows no advantages, and leaves out the rollouts that the rest leaves out."""
    mismatch_bound: float = 1.0
    """Largest mean absolute difference per token, in nats, between a rollout's log-probabilities and the trainer's
    (the old ones, if there are any). A rollout beyond it is left out."""
    mask_ratio_low: float | None = None
    """Least ratio k of a token's probability by the trainer to that by the sampler (IcePop's α, arXiv 2510.18855). The
    trainer's is the old one, or the current one without any. Beyond a mask, a token has no policy term; its entropy
    and KL terms stay, if there are any. A masked token counts as 1 in the ratio of a sequence."""
    mask_ratio_high: float | None = None
    """Largest such ratio (IcePop's β). With either bound and old log-probabilities, k is a token's weight too. Without
    old ones it is not, because the ratio to the sampler already has k as a factor."""
    mask_probability_difference: float | None = None
    """Largest |p − q| of a token, where p is its probability by the trainer (as for k) and q that by the sampler.
    Source: prime-rl's IPO, its pull request 1930: the mask of DPPO-Binary-TV (arXiv 2602.04879), but whatever the
    advantage's sign."""

    @property
    def weighs_by_claims(self) -> bool:
        """Return whether IcePop's mask is on."""
        return self.mask_ratio_low is not None or self.mask_ratio_high is not None

    @property
    def clip(self) -> tuple[float, float]:
        """Return the least and the largest ratio that is not clipped."""
        high = self.epsilon if self.epsilon_high is None else self.epsilon_high
        return 1 - self.epsilon, 1 + high


@dataclass(frozen=True)
class LossReport:
    """`loss` is this micro-batch's share of the batch's loss; the rest are sums over tokens of rollouts it keeps."""

    loss: torch.Tensor
    tokens: int
    """Tokens of rollouts that were kept."""
    masked_tokens: int
    """Those of them that a mask left without a policy term. Clips do not count them again."""
    dropped_rollouts: int
    """Rollouts beyond the mismatch bound."""
    entropy: float
    mismatch_kl: float
    """k3 estimate of KL(sampler ‖ trainer): sum of ratio − 1 − log ratio. The ratio is that of the trainer's old
    log-probabilities, or its current ones without any, to the samplers'."""
    reference_kl: float
    """k3 estimate of KL(trainer ‖ reference); 0 without a reference."""
    clipped_low: float
    """Tokens whose gradient the lower clip removed (ratio below it, advantage negative)."""
    clipped_high: float
    """Tokens whose gradient the upper clip removed (ratio above it and advantage positive, or above δ)."""


def token_weight(normaliser: Normaliser, *, tokens: int, length: int, rollouts: int, limit: int) -> float:
    """Return the weight of each sampled token of a completion that has `length` of them, in a global batch.

    The batch has `tokens` sampled tokens in `rollouts` rollouts. By normaliser:

    tokens:   1 / tokens: every token weighs the same (DAPO; INTELLECT-2's intent)
    rollouts: 1 / (length · rollouts): every rollout weighs the same (GRPO, arXiv 2402.03300)
    constant: 1 / (limit · rollouts), `limit` the longest completion possible: no length is favoured (Dr. GRPO, arXiv
              2503.20783; INTELLECT-2's code)
    """
    match normaliser:
        case "tokens":
            return 1 / tokens
        case "rollouts":
            return 1 / (length * rollouts)
        case "constant":
            return 1 / (limit * rollouts)


def policy_loss(batch: TokenBatch, terms: LossTerms) -> LossReport:
    """Return the clipped policy-gradient loss with two upper bounds and a lower one, summed with the tokens' weights.

    Per token −M·min(min(r, δ)·A, clip(r, 1−ε, 1+ε_high)·A) − c·H + β·k3. Weights are shares of the global batch, so the
    losses of micro-batches and ranks add up to its loss. M is 1 without masks, 0 beyond one, and k within IcePop's.
    Sources: INTELLECT-2 report, section 4.1; for β, GRPO; for M, IcePop in arXiv 2510.18855, and `LossTerms`.
    """
    # 1. Leave out rollouts beyond the mismatch bound. What this batch's own optimiser steps moved is no mismatch.
    before = batch.logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs  # float32 [tokens]
    mismatch = before - batch.behaviour_logprobs  # float32 [tokens]
    close = _rollout_means(mismatch.abs(), batch.rollouts) <= terms.mismatch_bound  # bool [rollouts]; NaN never is
    keep = close[batch.rollouts]  # bool [tokens]

    # 2. Mask single tokens whose probabilities by trainer and sampler are too far apart.
    trained = keep & _within_masks(before, batch.behaviour_logprobs, terms)  # bool [tokens]

    # 3. The ratio. Tokens are left out before it is computed: NaN would reach the gradient through a mask.
    old = batch.behaviour_logprobs if batch.old_logprobs is None else batch.old_logprobs
    log_ratio = _kept(batch.logprobs - old, trained)  # float32 [tokens]
    if terms.ratio == "sequence":
        log_ratio = _rollout_means(log_ratio, batch.rollouts)[batch.rollouts]
    ratio = torch.exp(torch.clamp(log_ratio, max=MAX_LOG_RATIO))

    # 4. The clipped objective, the entropy bonus and the divergence from the reference.
    capped = ratio if terms.delta is None else torch.clamp(ratio, max=terms.delta)
    low, high = terms.clip
    clipped = torch.clamp(ratio, low, high)
    per_token = -torch.minimum(capped * batch.advantages, clipped * batch.advantages)  # float32 [tokens]
    if terms.weighs_by_claims and batch.old_logprobs is not None:
        k = torch.exp(torch.clamp(_kept(mismatch, trained), max=MAX_LOG_RATIO))  # float32 [tokens]
        per_token = k * per_token
    per_token = _kept(per_token, trained)
    if terms.entropy_coefficient:
        per_token = per_token - terms.entropy_coefficient * batch.entropy
    reference_kl = torch.zeros_like(per_token)
    if batch.reference_logprobs is not None:
        reference_kl = _k3(_kept(batch.reference_logprobs - batch.logprobs, keep))
        per_token = per_token + terms.kl_coefficient * reference_kl
    loss = (_kept(per_token, keep) * batch.weights).sum()
    if batch.given_logprobs is not None and batch.given_rollouts is not None:
        loss = loss - batch.given_weight * _kept(batch.given_logprobs, close[batch.given_rollouts]).sum()

    # 5. The report: clips over the tokens that were trained on, the rest over all of the rollouts that were kept.
    with torch.no_grad():
        r, good = ratio[trained], batch.advantages[trained] > 0
        bad = batch.advantages[trained] < 0
        beyond = torch.zeros_like(good) if terms.delta is None else r > terms.delta
        return LossReport(
            loss=loss,
            tokens=int(keep.sum()),
            masked_tokens=int((keep & ~trained).sum()),
            dropped_rollouts=int(batch.rollouts[~keep].unique().numel()),
            entropy=float(batch.entropy[keep].sum()),
            mismatch_kl=float(_k3(mismatch[keep]).sum()),
            reference_kl=float(reference_kl.sum()),
            clipped_low=float(((r < low) & bad).sum()),
            clipped_high=float((((r > high) & good) | (beyond & bad)).sum()),
        )


def _within_masks(trainer: torch.Tensor, sampler: torch.Tensor, terms: LossTerms) -> torch.Tensor:
    """Return which tokens no mask removes: bool [tokens].

    trainer, sampler: float32 [tokens], log-probabilities without gradient. Bounds are inclusive; NaN is within none.
    The ratio is compared as a logarithm: exp would overflow.
    """
    within = torch.ones_like(trainer, dtype=torch.bool)
    if terms.mask_ratio_low is not None:
        within &= trainer - sampler >= math.log(terms.mask_ratio_low)
    if terms.mask_ratio_high is not None:
        within &= trainer - sampler <= math.log(terms.mask_ratio_high)
    if terms.mask_probability_difference is not None:
        within &= (torch.exp(trainer) - torch.exp(sampler)).abs() <= terms.mask_probability_difference
    return within


def _k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """Return exp(x) − 1 − x: an unbiased estimate, never negative, of KL(q ‖ p) from samples of q; x = log p − log q.

    Source: J. Schulman, Approximating KL Divergence, 2020.
    """
    return torch.expm1(torch.clamp(log_ratio, max=MAX_LOG_RATIO)) - log_ratio


def _kept(values: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return torch.where(keep, values, torch.zeros_like(values))


def _rollout_means(values: torch.Tensor, rollouts: torch.Tensor) -> torch.Tensor:
    """Return the mean over the tokens of each rollout: float32 [rollouts]."""
    count = int(rollouts.max()) + 1 if rollouts.numel() else 0
    total = values.new_zeros(count).index_add(0, rollouts, values)
    tokens = values.new_zeros(count).index_add(0, rollouts, torch.ones_like(values))
    return total / tokens
