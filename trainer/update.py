"""Update the policy on one closed batch: one optimiser step, or several on equal parts of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Final

import torch
from torch.distributed.tensor import DTensor

from muster.settings.recipes import OldLogprobs
from muster.settings.schema import Matmul
from trainer.distributed import Ranks
from trainer.loss import LossReport, LossTerms, TokenBatch, policy_loss, token_weight
from trainer.old_logprobs import recomputes
from trainer.packing import MicroBatch, Sample, collate, completion_tokens, first_fit, share_out
from trainer.policy import Policy

_SUMS: Final = tuple(field.name for field in fields(LossReport))
"""Fields of a `LossReport`, all of which add up over micro-batches and ranks."""
_LOSS, _TOKENS, _MASKED = map(_SUMS.index, ("loss", "tokens", "masked_tokens"))


@dataclass(frozen=True)
class UpdateTerms:
    learning_rate: float = 3e-4
    warmup_steps: int = 10
    """Updates over which the learning rate rises linearly to `learning_rate`."""
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.01
    gradient_clip: float = 0.1
    """Largest norm of the gradient; a larger one is scaled down to it."""
    optimiser_steps: int = 1
    """Equal parts of the batch, one optimiser step each."""
    old_logprobs: OldLogprobs = "auto"
    """What the ratio is taken against: see `trainer.old_logprobs.recomputes`."""
    profile: str = ""
    """Name of the verification profile that the samplers' log-probabilities passed; empty: they are exact."""
    micro_batch_tokens: int = 4096
    """Tokens of one forward pass."""
    activation_checkpointing: bool = False
    """Keep only each layer's input, and compute the rest again in the backward pass."""
    lora_rank: int = 0
    """Rank of the adapter that is trained; 0: all weights are trained."""
    lora_alpha: float = 32.0
    """The adapter's product is multiplied by this over its rank."""
    matmul: Matmul = "native"
    """How matrices are multiplied where the passes compute in bfloat16."""
    temperature: float = 1.0
    """Divisor of the samplers' logits."""
    max_completion: int = 0
    """Longest completion possible, for the loss that divides by it."""
    loss: LossTerms = field(default_factory=LossTerms)


@dataclass(frozen=True)
class UpdateReport:
    """What an update did.

    `loss` is the mean over its optimiser steps; tokens and rollouts are sums over them, the rest are means over the
    tokens of rollouts that were kept.
    """

    loss: float
    grad_norm: float
    """Largest of the optimiser steps, before clipping."""
    learning_rate: float
    tokens: int
    """Tokens of rollouts that were kept."""
    masked_tokens: int
    """Those of them that a mask of the loss left without a policy term."""
    rollouts: int
    """All samples, those that were left out included."""
    dropped_rollouts: int
    """Rollouts beyond the mismatch bound, which were left out."""
    entropy: float
    """Nats per token."""
    mismatch_kl: float
    """KL(sampler ‖ trainer), k3 estimate, nats per token."""
    reference_kl: float
    clip_low: float
    clip_high: float
    skipped: bool
    """The loss or the gradient of an optimiser step was not finite: that one, and those after it, were not taken."""
    suspects: tuple[int, ...] = ()
    """Places in the batch of samples that may have caused a skipped update: those whose log-probabilities were not
    finite, and all samples of a micro-batch whose loss was not."""


def make_optimizer(model: torch.nn.Module, terms: UpdateTerms) -> torch.optim.AdamW:
    """Return AdamW over the trained parameters. It decays matrices only, not gains and biases."""
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices, vectors = [p for p in trained if p.ndim >= 2], [p for p in trained if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": terms.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=terms.learning_rate, betas=terms.betas)


def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[Sample],
    terms: UpdateTerms,
    *,
    step: int,
    reference: Policy | None = None,
    ranks: Ranks | None = None,
) -> UpdateReport:
    """Train on `samples`; `step` counts updates from 1 and sets the warm-up. All ranks pass the same samples.

    Changes the policy and the optimiser in place, as far as losses and gradients are finite. Raises ConfigError when
    the terms ask for the samplers' log-probabilities and these may be too far off.
    """
    # 1. The learning rate, and this rank's micro-batches of each optimiser step.
    ranks = ranks or Ranks()
    rate = terms.learning_rate * min(1.0, step / max(1, terms.warmup_steps))
    for group in optimizer.param_groups:
        group["lr"] = rate
    parts = [_rows(samples, places, terms, ranks) for places in split(len(samples), terms.optimiser_steps)]
    # 2. Log-probabilities of the policy before the update, and of the reference. The first optimiser step computes its
    # own old ones on the way: nothing has moved the policy yet.
    recomputed = recomputes(policy, terms.old_logprobs, terms.profile, terms.loss)
    if recomputed:
        later = [[replace(row, old=_logprobs(policy, row)) for row in part] for part in parts[1:]]
        parts = [*parts[:1], *later]
    if reference is not None:
        parts = [[replace(row, reference=_logprobs(reference, row)) for row in part] for part in parts]
    # 3. The optimiser steps, until one is not finite.
    sums, norms, suspects = torch.zeros(len(_SUMS), dtype=torch.float64), [], torch.zeros(len(samples))
    skipped, seen = False, 0.0
    for place, part in enumerate(parts):
        optimizer.zero_grad(set_to_none=True)
        sums += _backward(policy, part, terms, ranks, suspects, own_old=recomputed and place == 0)
        trained = (p for p in policy.parameters() if p.requires_grad)
        norm = torch.nn.utils.clip_grad_norm_(trained, terms.gradient_clip)  # before it is scaled down
        norms.append(float(norm.full_tensor() if isinstance(norm, DTensor) else norm))
        skipped = not (math.isfinite(sums[_LOSS]) and math.isfinite(norms[-1]))
        if skipped:
            break
        trained_tokens = float(sums[_TOKENS] - sums[_MASKED])
        if trained_tokens > seen:  # with no token left, momentum and decay alone would move the weights
            optimizer.step()
        seen = trained_tokens
    # 4. The report.
    optimizer.zero_grad(set_to_none=True)
    sums[_LOSS] /= len(norms)
    blamed = ranks.sum(suspects.double()).nonzero()[:, 0].tolist() if skipped else []
    total = dict(zip(_SUMS, sums.tolist(), strict=True))
    share = 1 / max(1.0, total["tokens"])
    return UpdateReport(
        loss=total["loss"],
        grad_norm=norms[-1] if skipped else max(norms),
        learning_rate=rate,
        tokens=int(total["tokens"]),
        masked_tokens=int(total["masked_tokens"]),
        rollouts=len(samples),
        dropped_rollouts=int(total["dropped_rollouts"]),
        **{name: share * total[name] for name in ("entropy", "mismatch_kl", "reference_kl")},
        clip_low=share * total["clipped_low"],
        clip_high=share * total["clipped_high"],
        skipped=skipped,
        suspects=tuple(blamed),
    )


def split(count: int, parts: int) -> list[range]:
    """Divide the places of a batch into parts of nearly equal size, in order; no part is empty."""
    parts = max(1, min(parts, count))
    ends = [count * part // parts for part in range(parts + 1)]
    return [range(start, stop) for start, stop in pairwise(ends)]


@dataclass(frozen=True)
class _Row:
    """A micro-batch, and log-probabilities of its tokens by other policies: float32 [tokens] each."""

    micro: MicroBatch
    given_weight: float
    """Of each given token."""
    old: torch.Tensor | None = None
    reference: torch.Tensor | None = None


def _rows(samples: Sequence[Sample], places: Sequence[int], terms: UpdateTerms, ranks: Ranks) -> list[_Row]:
    """Return this rank's micro-batches of one optimiser step over the samples at `places`."""
    part = [samples[place] for place in places]
    lengths = [sample.length for sample in part]
    tokens = completion_tokens(part)
    given = sum(sample.given_length for sample in part) if terms.loss.given_coefficient else 0
    weights = [
        token_weight(
            terms.loss.normaliser,
            tokens=tokens,
            length=sample.completion_length,
            rollouts=len(part),
            limit=terms.max_completion,
        )
        for sample in part
    ]
    mine = share_out(first_fit(lengths, terms.micro_batch_tokens), lengths, ranks.world)[ranks.rank]
    rows = [collate(part, weights, row, given=given > 0) for row in mine]
    share = terms.loss.given_coefficient / max(1, given)
    return [_Row(replace(row, members=tuple(places[i] for i in row.members)), given_weight=share) for row in rows]


@torch.no_grad()
def _logprobs(policy: Policy, row: _Row) -> torch.Tensor:
    return policy(row.micro.to(policy.device))[0][: len(row.micro.rollouts)]


def _backward(
    policy: Policy, rows: Sequence[_Row], terms: UpdateTerms, ranks: Ranks, suspects: torch.Tensor, *, own_old: bool
) -> torch.Tensor:
    """Compute one optimiser step's gradients; return the sums of its loss reports over all ranks, and mark suspects.

    With `own_old` the policy's log-probabilities of this very pass are the old ones.
    """
    sums = torch.zeros(len(_SUMS), dtype=torch.float64)
    for row in rows:
        batch = token_batch(policy, row.micro, terms, old=row.old, reference=row.reference)
        batch = replace(batch, given_weight=row.given_weight)
        if own_old:
            batch = replace(batch, old_logprobs=batch.logprobs.detach())
        report = policy_loss(batch, terms.loss)
        (report.loss * ranks.world).backward()  # sharded gradients are averaged over the ranks
        one = _sums(report)
        not_finite = ~batch.logprobs.detach().isfinite().cpu()  # bool [tokens]
        suspects[[row.micro.members[i] for i in row.micro.rollouts[not_finite].unique().tolist()]] = 1
        if not math.isfinite(one[_LOSS]):
            suspects[list(row.micro.members)] = 1
        sums += one
    return ranks.sum(sums)


def token_batch(
    policy: Policy,
    micro: MicroBatch,
    terms: UpdateTerms,
    *,
    old: torch.Tensor | None = None,
    reference: torch.Tensor | None = None,
) -> TokenBatch:
    """Return what the loss needs of a micro-batch, by one forward pass."""
    micro = micro.to(policy.device)
    logprobs, entropy = policy(micro, entropy_gradient=terms.loss.entropy_coefficient != 0.0)
    sampled, given = len(micro.rollouts), len(micro.given_rollouts)
    return TokenBatch(
        logprobs=logprobs[:sampled],
        behaviour_logprobs=micro.behaviour_logprobs,
        advantages=micro.advantages,
        weights=micro.weights,
        entropy=entropy[:sampled],
        rollouts=micro.rollouts,
        old_logprobs=old,
        reference_logprobs=reference,
        given_logprobs=logprobs[sampled:] if given else None,
        given_rollouts=micro.given_rollouts if given else None,
    )


def _sums(report: LossReport) -> torch.Tensor:
    """Return the report's numbers: float64 [len(_SUMS)]."""
    report = replace(report, loss=report.loss.detach())
    return torch.tensor([float(getattr(report, name)) for name in _SUMS], dtype=torch.float64)
