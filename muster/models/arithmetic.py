"""Other machines' arithmetic, emulated on this one: a calibration measures honest work over all of it.

Two processors, or two kernels of one, add the same numbers in another order, round partial sums to another precision,
or write the attention down otherwise. Each entry of ARITHMETICS changes a loaded transformers model that way, for as
long as the context lasts. They are no faster than the real thing, only different.

`perturbing` stands for all orders of summation at once: a trainer can place neurons so that any fixed list of orders
agrees, and noise that is drawn when a row is measured cannot be foreseen.

The instruction set of the processor itself cannot be changed in a running process: EMULATIONS in
`muster.runtime.processor` are variables for one that is yet to start.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, reduce
from operator import add
from types import MappingProxyType
from typing import Any, Final

import torch
from torch.nn.functional import linear
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from muster.errors import ConfigError
from muster.models.matmul import widen

SPLITS: Final = 4
"""Parts that a sum of products is split into."""

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""inputs [..., K], weights [N, K]: inputs times the transposed weights, [..., N], in the inputs' dtype."""


def split(inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Multiply in SPLITS parts whose results are rounded to the inputs' dtype and added: split-K on a GPU."""
    parts = zip(inputs.chunk(SPLITS, dim=-1), weights.chunk(SPLITS, dim=-1), strict=True)
    return reduce(add, (linear(part, columns) for part, columns in parts))


def backwards(inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Multiply with the terms of every sum in reverse order."""
    return linear(inputs.flip(-1), weights.flip(-1))


def float16_sums(inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Multiply in SPLITS parts that are rounded to float16 and added in it: a GPU's float16 accumulation."""
    parts = zip(inputs.chunk(SPLITS, dim=-1), weights.chunk(SPLITS, dim=-1), strict=True)
    return reduce(add, (linear(part.float(), columns.float()).half() for part, columns in parts)).to(inputs.dtype)


@contextmanager
def _products(model: PreTrainedModel, product: Product) -> Iterator[None]:
    """Compute every linear layer of the model by `product`."""
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]

    def forward(layer: torch.nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        result = product(inputs, layer.weight)
        return result if layer.bias is None else result + layer.bias

    before = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        layer.forward = partial(forward, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer, outer in zip(layers, before, strict=True):
            del layer.forward
            if outer is not None:
                layer.forward = outer  # type: ignore[method-assign]


@contextmanager
def _widened(model: PreTrainedModel) -> Iterator[None]:
    """Compute every linear layer of the model in float32."""
    layers = widen(model)
    try:
        yield
    finally:
        for layer in layers:
            layer.__class__ = torch.nn.Linear


@contextmanager
def _attention(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Compute the model's attention by transformers' function of this name."""
    before = model.config._attn_implementation or "sdpa"  # noqa: SLF001 - it has no public name
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


ARITHMETICS: Final = MappingProxyType(
    {
        "split sums": partial(_products, product=split),
        "sums backwards": partial(_products, product=backwards),
        "sums in float32": _widened,
        "sums in float16": partial(_products, product=float16_sums),
        "attention written out": partial(_attention, name="eager"),
    }
)
"""By name: a context that a model computes so in."""

HONEST: Final = MappingProxyType(
    {
        "float32": ("split sums", "sums backwards", "attention written out"),
        "bfloat16": ("split sums", "sums backwards", "sums in float32", "sums in float16", "attention written out"),
    }
)
"""By dtype: what a machine that a profile of it allows may do."""


@contextmanager
def computing(model: PreTrainedModel, arithmetic: str) -> Iterator[None]:
    """Let a model compute by an entry of ARITHMETICS, or as it does by itself for an empty name.

    Raises ConfigError for a name that is none.
    """
    if not arithmetic:
        yield
        return
    if arithmetic not in ARITHMETICS:
        raise ConfigError(f"no arithmetic {arithmetic!r}", hint=f"choose one of: {', '.join(ARITHMETICS)}")
    with ARITHMETICS[arithmetic](model):
        yield


# --- Any order of summation

PERTURBATION: Final = MappingProxyType({torch.float32: 16.0, torch.bfloat16: 1.0})
"""Size of the noise by dtype, in units of roundoff: half of `torch.finfo(dtype).eps`.

In bfloat16 sums are float32 inside, so that one roundoff is what a product is off by. In float32 it is what adding some
thousand terms one by one comes to, three times what the HONEST ones move SmolLM2-135M by.
`benchmarks/inspection.py --only hostile_steps` measures what it shows."""

_LAYOUTS: Final = 8
"""Layouts that the rows of one product draw from."""


class _Noise:
    """Draws noise for one model: each product's inputs times 1 + e, |e| at most `size`.

    The error of a sum of products is that of its partial sums. So in every other row each input has its own e. In the
    other rows the inputs that some kernel adds up first share one: those of a block, or of every m-th block, as the
    lanes of a vector do. A layout's block and m are drawn log-uniformly.
    """

    def __init__(self, dtype: torch.dtype, seed: int | None) -> None:
        self.size = PERTURBATION[dtype] * torch.finfo(dtype).eps / 2
        self._generator = torch.Generator().manual_seed(secrets.randbits(63) if seed is None else seed)

    def on(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs [..., K], in which sums run along K, with noise on them: float32."""
        rows = inputs.float().flatten(0, -2)
        count, terms = rows.shape
        noise = self._uniform(count, terms).mul_(2).sub_(1)

        # Which terms share their noise: [layouts, K], one layout for every other row.
        blocks, modulus = (self._log_uniform(terms) for _ in range(2))
        start = (self._uniform(_LAYOUTS) * terms).long()
        layouts = (torch.arange(terms) + start[:, None]) // blocks[:, None] % modulus[:, None]
        first = int(self._uniform(1) * 2)
        some = noise[first::2]
        noise[first::2] = some.gather(1, layouts[(self._uniform(len(some)) * _LAYOUTS).long()])
        return rows.addcmul(rows, noise, value=self.size).view(inputs.shape)

    def _uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self._generator)

    def _log_uniform(self, most: int) -> torch.Tensor:
        """Draw a whole number from 1 to `most` for each layout, small ones as often as large ones."""
        return (float(most) ** self._uniform(_LAYOUTS)).long().clamp(1, most)

    def product(self, inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Multiply as a `Product`, with noise on the inputs."""
        return linear(self.on(inputs), weights.float()).to(inputs.dtype)

    def attention(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *args: Any,
        **options: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend with noise on all three, [B, heads, T, head]: scores sum along the last, and values along T."""
        moved = self.on(value.transpose(-1, -2)).transpose(-1, -2)
        result, weights = sdpa_attention_forward(module, self.on(query), self.on(key), moved, *args, **options)
        return result.to(query.dtype), weights


@contextmanager
def perturbing(model: PreTrainedModel, seed: int | None = None) -> Iterator[None]:
    """Let a model compute as some honest machine might, another one in every product; the same with the same `seed`.

    What it is off by then bounds, up to a small factor, what honest machines differ by.
    """
    noise, name = _Noise(model.dtype, seed), "muster_perturbed"
    AttentionInterface.register(name, noise.attention)
    with _products(model, noise.product), _attention(model, name):
        yield
