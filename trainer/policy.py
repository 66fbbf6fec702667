"""The model as the trainer sees it: packed sequences in, log-probabilities of their completion tokens out.

Two parts are our own, since they decide what a large vocabulary and ragged lengths cost:

    attention   each sequence of a packed row attends to itself alone, without a mask: one flash-attention call over all
                of them on GPUs (bf16, fp16), one call a sequence elsewhere
    head        logits are made 64 MiB at a time and never kept; the backward pass makes them again

Before the first update `check_model` compares the head, and attention without a GPU, with the model's own in float32.
A model whose logits are more than a linear map of its states is refused. The comparison covers neither the flash
kernel nor a sliding window longer than a few tokens.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from muster.errors import ConfigError
from muster.models.matmul import widen
from trainer.packing import MicroBatch, Sample, collate

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ATTENTION: Final = "muster_packed"
HEAD_BYTES: Final = 64 << 20
"""Size of one piece of logits in float32: 110 tokens of a vocabulary of 152,000, 16,000 of one of 1,000."""
SAME_NATS: Final = 1e-3
"""Two equivalent ways to compute log-probabilities in float32 differ by less."""
SAME_GAIN: Final = 1e-2
"""What a norm's epsilon and rounding may change of its gain."""


class Policy(nn.Module):
    """Wraps a causal language model, sharing its parameters; its forward pass returns what the loss needs."""

    def __init__(self, model: PreTrainedModel, *, temperature: float, wide: bool = False) -> None:
        """`wide`: multiply in float32 what is narrower, and round once."""
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.wide = wide
        if wide:
            widen(model)
        self.gain_offset = gain_offset(getattr(model.base_model, "norm", None))
        """What the last norm adds to its weights before it multiplies with them; None for norms of another form."""
        use_packed_attention(model)

    @property
    def layers(self) -> nn.ModuleList:
        """Return the blocks of the model, each of which is sharded by itself.

        They are the longest of the least nested lists of modules: lists inside blocks are experts.
        """
        lists = {name: m for name, m in self.model.named_modules() if isinstance(m, nn.ModuleList)}
        return lists[min(lists, key=lambda name: (name.count("."), -len(lists[name])))]

    @property
    def device(self) -> torch.device:
        return self.model.device

    def forward(self, micro: MicroBatch, *, entropy_gradient: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities and entropies under softmax(logits / T), one for each target: float32."""
        states = self.model.base_model(
            input_ids=micro.ids,
            position_ids=micro.positions,
            attention_mask=micro.ids.new_ones(1, 1, 1, 1),  # keeps transformers from making one of width × width
            use_cache=False,
            boundaries=micro.boundaries,
        ).last_hidden_state[0, micro.places]
        head = cast(nn.Linear, self.model.get_output_embeddings()).weight
        if self.wide:
            states, head = states.float(), head.float()
        return token_logprobs(
            states, head, micro.targets, temperature=self.temperature, entropy_gradient=entropy_gradient
        )


@torch.no_grad()
def gain_offset(norm: nn.Module | None) -> float | None:
    """Return 0 for a norm that multiplies by its weights, 1 for one that multiplies by 1 plus these, else None.

    Entries of 1 have a root mean square of 1, so that an RMS norm returns its gain for them.
    """
    weight = getattr(norm, "weight", None)
    if norm is None or not isinstance(weight, torch.Tensor) or weight.ndim != 1 or hasattr(norm, "bias"):
        return None
    added = norm(torch.ones_like(weight)[None])[0] - weight  # [H]
    return next((offset for offset in (0.0, 1.0) if bool(((added - offset).abs() < SAME_GAIN).all())), None)


# --- Attention


def use_packed_attention(model: PreTrainedModel) -> None:
    """Make a model attend within the boundaries given to its forward pass, or without any as transformers' `sdpa`."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION, packed_attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    model.set_attn_implementation(ATTENTION)


def packed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    boundaries: tuple[int, ...] | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute causal attention of each sequence to itself.

    query [1, heads, width, dim], key and value [1, fewer heads, width, dim]; returns [1, width, heads, dim]. The
    signature is that of transformers' attention functions.
    """
    if boundaries is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return _flash(query, key, value, boundaries, scaling, sliding_window)[None], None
    # Split, not sliced: the gradient of a slice is as large as what it was taken from.
    lengths = [stop - start for start, stop in pairwise(boundaries)]
    parts = zip(*(tensor.split(lengths, 2) for tensor in (query, key, value)), strict=True)
    outputs = [_attend(*part, scaling=scaling, window=sliding_window) for part in parts]
    return torch.cat(outputs, 2).transpose(1, 2).contiguous(), None


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scaling: float | None, window: int | None
) -> torch.Tensor:
    groups = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(groups, 1) if groups > 1 else tensor for tensor in (key, value))
    length = query.shape[2]
    if window is None or window >= length:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    at = torch.arange(length, device=query.device)
    distance = at[:, None] - at[None, :]
    near = (distance >= 0) & (distance < window)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=near, scale=scaling)


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    boundaries: tuple[int, ...],
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Return the attended values [width, heads, dim] of all sequences, in one flash-attention call."""
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    starts = torch.tensor(boundaries, dtype=torch.int32, device=query.device)
    longest = max(stop - start for start, stop in pairwise(boundaries))
    size = (-1 if window is None else window - 1, 0)
    attended = varlen_attn(
        query,
        key,
        value,
        starts,
        starts,
        longest,
        longest,
        scale=scaling,
        window_size=size,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(attended, torch.Tensor)
    return attended


# --- Head


def token_logprobs(
    states: torch.Tensor,
    head: torch.Tensor,
    targets: torch.Tensor,
    *,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    chunk: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each target's log-probability and the entropy in nats under softmax(states · headᵀ / temperature).

    states [tokens, width], head [vocabulary, width], targets int64 [tokens]; returns float32 [tokens] twice. Logits of
    at most `chunk` tokens exist at a time; the backward pass computes them again. The entropy has a gradient if
    `entropy_gradient` is set.
    """
    chunk = max(1, HEAD_BYTES // (4 * head.shape[0])) if chunk is None else chunk
    logprobs, entropy = _TokenLogprobs.apply(states, head, targets, temperature, entropy_gradient, chunk)
    return logprobs, entropy


class _TokenLogprobs(torch.autograd.Function):
    """d logp(t) / d logits = [v = t] − p(v); d H / d logits = −p(v) (log p(v) + H); each over the temperature."""

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        head: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        entropy_gradient: bool,
        chunk: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = states.new_empty(len(states), dtype=torch.float32)
        totals, entropy = torch.empty_like(logprobs), torch.empty_like(logprobs)
        for part in _parts(len(states), chunk):
            logits = scaled_logits(states[part], head, temperature)  # float32 [chunk, vocabulary]
            totals[part] = logits.logsumexp(-1)  # float32 [chunk]
            logprobs[part] = logits.gather(-1, targets[part, None])[:, 0] - totals[part]
            logits -= totals[part, None]  # log-probabilities of the whole vocabulary
            entropy[part] = -(logits.exp() * logits).sum(-1)
        ctx.save_for_backward(states, head, targets, totals, entropy)
        ctx.terms = temperature, entropy_gradient, chunk
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        states, head, targets, totals, entropy = ctx.saved_tensors
        temperature, entropy_gradient, chunk = ctx.terms
        by_logprob, by_entropy = gradients
        to_states = torch.empty_like(states)
        to_head = torch.zeros_like(head, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for part in _parts(len(states), chunk):
            logits = scaled_logits(states[part], head, temperature)
            logits -= totals[part, None]  # log p, float32 [chunk, vocabulary]
            slope = logits.exp()  # d loss / d logits, in place over p
            if entropy_gradient:
                factor = by_logprob[part, None] + (logits + entropy[part, None]) * by_entropy[part, None]
                slope.mul_(factor).neg_()
            else:
                slope.mul_(-by_logprob[part, None])
            slope.scatter_add_(1, targets[part, None], by_logprob[part, None])
            slope /= temperature
            narrow = slope.to(head.dtype)
            to_states[part] = narrow @ head  # [chunk, width]
            if to_head is None:
                continue
            if head.dtype == torch.float32:
                to_head.addmm_(narrow.t(), states[part])
            else:
                to_head += narrow.t() @ states[part]
        return to_states, None if to_head is None else to_head.to(head.dtype), None, None, None, None


def scaled_logits(states: torch.Tensor, head: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the logits over the temperature: float32 [tokens, vocabulary]."""
    return (states @ head.t()).float().div_(temperature)


def _parts(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


# --- Check of a model


@torch.no_grad()
def check_model(policy: Policy) -> None:
    """Raise ConfigError when a model's own log-probabilities of two short sequences are not those of `policy`."""
    model = policy.model
    vocabulary = cast(nn.Embedding, model.get_input_embeddings()).num_embeddings
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randint(vocabulary, (length,), generator=draw) for length in (5, 8)]
    model.set_attn_implementation("eager")  # every model writes this one out, with all its particulars
    try:
        own = torch.cat([_own_logprobs(model, row.to(model.device), policy.temperature) for row in rows])
    finally:
        model.set_attn_implementation(ATTENTION)
    ids = [row.numpy() for row in rows]
    samples = [Sample(row[:1], row[1:], np.zeros(len(row) - 1, np.float32), 0.0) for row in ids]
    ours, _ = policy(collate(samples, [0.0, 0.0], [0, 1]).to(model.device))
    worst = float((ours - own).abs().max())
    if not worst <= SAME_NATS:
        raise ConfigError(
            f"{type(model).__name__} computes log-probabilities that differ from its head's over its last states by "
            f"{worst:.3g}: it scales or caps its logits, or attends in a way that cannot be packed",
            hint="train a model of another architecture",
        )


def _own_logprobs(model: PreTrainedModel, row: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return log-probabilities by the model's own forward pass of one sequence: float32 [length − 1]."""
    logits = model(row[None], use_cache=False).logits[0, :-1].float() / temperature
    return logits.log_softmax(-1).gather(-1, row[1:, None])[:, 0]
