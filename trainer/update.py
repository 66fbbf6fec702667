"""One optimiser step on one closed batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from trainer.layout import MicroBatch, Sample, completion_tokens, micro_batches
from trainer.loss import LossReport, LossTerms, TokenBatch, policy_loss

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class UpdateTerms:
    learning_rate: float = 3e-4
    ramp_steps: int = 10
    """Updates over which the learning rate rises linearly to its value."""
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.01
    gradient_clip: float = 0.1
    """Largest norm of the gradient; a larger one is scaled down to it."""
    micro_batch_area: int = 4096
    """Tokens per micro-batch, padding included."""
    temperature: float = 1.0
    """What the samplers divide the logits by."""
    loss: LossTerms = field(default_factory=LossTerms)


@dataclass(frozen=True)
class UpdateReport:
    """What an update did. All values are finite unless `skipped`."""

    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    dropped_rollouts: int
    entropy: float
    kl: float
    clip_low: float
    clip_high: float
    skipped: bool
    """The loss or the gradient was not finite, so the weights are unchanged."""


def make_optimizer(model: PreTrainedModel, terms: UpdateTerms) -> torch.optim.AdamW:
    """AdamW that decays matrices only: gains and biases have nothing to be regularised."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": terms.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=terms.learning_rate, betas=terms.betas)


def update(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[Sample],
    terms: UpdateTerms,
    *,
    step: int,
    pad: int,
) -> UpdateReport:
    """Train on `samples` with one optimiser step; `step` counts from 1 and sets the ramp.

    Changes model and optimiser in place, unless the loss or the gradient is not finite.
    """
    rate = terms.learning_rate * min(1.0, step / max(1, terms.ramp_steps))
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    normaliser = completion_tokens(samples)
    reports = []
    for micro in micro_batches(samples, area=terms.micro_batch_area, pad=pad):
        report = policy_loss(token_batch(model, micro, terms), terms.loss, normaliser=normaliser)
        report.loss.backward()
        reports.append(report)
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), terms.gradient_clip))
    loss = sum(float(report.loss.detach()) for report in reports)
    skipped = not (math.isfinite(loss) and math.isfinite(norm))
    if not skipped:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return _summary(reports, loss=loss, grad_norm=norm, learning_rate=rate, skipped=skipped)


def token_batch(model: PreTrainedModel, micro: MicroBatch, terms: UpdateTerms) -> TokenBatch:
    """Forward a micro-batch: log-probabilities and entropy of its completion tokens under `logits / temperature`."""
    states = model.base_model(input_ids=micro.ids.to(model.device), use_cache=False).last_hidden_state
    chosen = states.flatten(0, 1)[micro.places.to(model.device)]
    head = model.get_output_embeddings()
    assert head is not None, "a causal language model has a head"
    logits = head(chosen).float() / terms.temperature
    logprobs = torch.log_softmax(logits, dim=-1)
    with torch.set_grad_enabled(terms.loss.entropy_coefficient != 0.0):
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    device = logits.device
    return TokenBatch(
        logprobs=logprobs.gather(-1, micro.targets.to(device)[:, None]).squeeze(-1),
        behaviour_logprobs=micro.behaviour_logprobs.to(device),
        advantages=micro.advantages.to(device),
        entropy=entropy,
        rollouts=micro.rollouts.to(device),
    )


def _summary(
    reports: Sequence[LossReport], *, loss: float, grad_norm: float, learning_rate: float, skipped: bool
) -> UpdateReport:
    tokens = sum(report.tokens for report in reports)
    share = 1 / max(1, tokens)
    return UpdateReport(
        loss=loss,
        grad_norm=grad_norm,
        learning_rate=learning_rate,
        tokens=tokens,
        dropped_rollouts=sum(report.dropped_rollouts for report in reports),
        entropy=share * sum(report.entropy for report in reports),
        kl=share * sum(report.kl for report in reports),
        clip_low=share * sum(report.clipped_low for report in reports),
        clip_high=share * sum(report.clipped_high for report in reports),
        skipped=skipped,
    )
