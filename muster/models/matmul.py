"""How a model multiplies bfloat16 matrices: by torch's own kernels, or in float32 with one rounding.

An x86 processor without AVX-512 multiplies float32 many times as fast as bfloat16. Products of bfloat16 numbers are
exact in float32, so results differ as those of any two honest machines do: by the order of sums. Weights stay bfloat16.
Each product widens them, which takes a tenth of the time of a product over some hundred tokens.
"""

from __future__ import annotations

import time
import timeit
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from muster.runtime.processor import lacks_bfloat16
from muster.settings.schema import Matmul, MatmulSetting


def choose_matmul(setting: MatmulSetting, device: str = "cpu") -> Matmul:
    """Return how to multiply bfloat16 on a kind of device: natively on all but processors.

    `auto` asks torch what it uses of the processor.
    """
    if device != "cpu":
        return "native"
    return setting if setting != "auto" else "float32" if lacks_bfloat16() else "native"


def wide(inputs: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Multiply in float32 and round once, forwards and backwards.

    inputs [..., K], weights [N, K], bias [N]: inputs times the transposed weights, [..., N], in the inputs' dtype.
    """
    result = _Wide.apply(inputs, weights, bias)
    assert isinstance(result, torch.Tensor)
    return result


class _Wide(torch.autograd.Function):
    """Keeps the narrow tensors for the backward pass, where autograd alone would keep their float32 copies."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(inputs, weights)
        added = None if bias is None else bias.float()
        return functional.linear(inputs.float(), weights.float(), added).to(inputs.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs, weights = ctx.saved_tensors
        to_inputs, to_weights, to_bias = ctx.needs_input_grad
        slope = gradients[0].float()  # [..., N]
        rows = slope.flatten(0, -2)
        return (
            (slope @ weights.float()).to(inputs.dtype) if to_inputs else None,
            (rows.t() @ inputs.flatten(0, -2).float()).to(weights.dtype) if to_weights else None,
            rows.sum(0).to(weights.dtype) if to_bias else None,
        )


def measure_matmul(matmul: Matmul) -> float:
    """Return how fast one thread multiplies bfloat16 so: GFLOP/s, the best of five short products."""
    inputs, weights = torch.ones(256, 512, dtype=torch.bfloat16), torch.ones(512, 512, dtype=torch.bfloat16)
    product = partial(wide if matmul == "float32" else functional.linear, inputs, weights)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = min(timeit.repeat(product, timer=time.thread_time, number=1, repeat=5))
    finally:
        torch.set_num_threads(threads)
    return 2 * inputs.numel() * len(weights) / seconds / 1e9


class WideLinear(nn.Linear):
    """A linear layer that multiplies in float32."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return wide(input, self.weight, self.bias)


def widen(model: nn.Module) -> list[nn.Linear]:
    """Make a model's linear layers multiply in float32, in place; return them. Weights stay as they are."""
    layers = [layer for layer in model.modules() if type(layer) is nn.Linear]
    for layer in layers:
        layer.__class__ = WideLinear
    return layers
