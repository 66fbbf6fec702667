"""Other machines' arithmetic, emulated on this one: a calibration measures honest work over all of it.

Two processors, or two kernels of one, add the same numbers in another order, round partial sums to another precision,
or write the attention down otherwise. Each entry of ARITHMETICS changes a loaded transformers model that way, for as
long as the context lasts. They are no faster than the real thing, only different.

The instruction set of the processor itself cannot be changed in a running process: EMULATIONS in
`muster.runtime.processor` are variables for one that is yet to start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
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
    products = [linear(part, columns) for part, columns in parts]
    total = products[0]
    for product in products[1:]:
        total = total + product
    return total


def backwards(inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Multiply with the terms of every sum in reverse order."""
    return linear(inputs.flip(-1), weights.flip(-1))


def float16_sums(inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Multiply in SPLITS parts that are rounded to float16 and added in it: a GPU's float16 accumulation."""
    parts = zip(inputs.chunk(SPLITS, dim=-1), weights.chunk(SPLITS, dim=-1), strict=True)
    total: torch.Tensor | None = None
    for part, columns in parts:
        product = linear(part.float(), columns.float()).half()
        total = product if total is None else total + product
    assert total is not None
    return total.to(inputs.dtype)


def tf32(values: torch.Tensor) -> torch.Tensor:
    """Round float32 values to TF32's 10 bits of mantissa, to the nearest and halves away from zero."""
    bits = values.float().view(torch.int32)
    return ((bits + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32).to(values.dtype)


def tf32_product(inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Multiply with both sides rounded to TF32."""
    return linear(tf32(inputs), tf32(weights))


def _tf32_attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **options: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    return sdpa_attention_forward(module, tf32(query), tf32(key), tf32(value), *args, **options)


AttentionInterface.register("muster_tf32", _tf32_attention)


@contextmanager
def _products(model: PreTrainedModel, product: Product) -> Iterator[None]:
    """Compute every linear layer of the model by `product`."""
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]

    def forward(layer: torch.nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        result = product(inputs, layer.weight)
        return result if layer.bias is None else result + layer.bias

    for layer in layers:
        layer.forward = partial(forward, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


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
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation("sdpa")  # as `load_model` loads it


ARITHMETICS: Final = MappingProxyType(
    {
        "split sums": partial(_products, product=split),
        "sums backwards": partial(_products, product=backwards),
        "sums in float32": _widened,
        "sums in float16": partial(_products, product=float16_sums),
        "attention written out": partial(_attention, name="eager"),
        "TF32": partial(_products, product=tf32_product),
        "TF32 attention": partial(_attention, name="muster_tf32"),
    }
)
"""By name: a context that a model computes so in."""

HONEST: Final = MappingProxyType(
    {
        "float32": ("split sums", "sums backwards", "attention written out"),
        "bfloat16": ("split sums", "sums backwards", "sums in float32", "sums in float16", "attention written out"),
    }
)
"""By dtype: what a machine that a profile of it allows may do. TF32 is none of it: float32 profiles refuse it."""


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
