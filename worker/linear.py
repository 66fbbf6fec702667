"""vLLM's linear layers where no instructions multiply bfloat16: they multiply in float32 and round once."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers import utils

from muster.models.matmul import wide
from muster.settings.schema import Matmul

_native = utils.dispatch_cpu_unquantized_gemm


def use_linear_layers(matmul: Matmul) -> None:
    """Let linear layers that are loaded from now on in this process, or loaded again, multiply bfloat16 so.

    vLLM looks this function up by its name whenever it has loaded a layer: new weights and a tied head come here too.
    """
    utils.dispatch_cpu_unquantized_gemm = _wide if matmul == "float32" else _native


def _wide(layer: Any, remove_weight: bool) -> None:
    """Give a layer its product. Weights are held in float32: to widen them for a few tokens would take longer."""
    weight = layer.weight
    if weight.dtype != torch.bfloat16 or weight.ndim != 2 or weight.is_meta:
        return _native(layer, remove_weight)
    held = weight.detach().float()
    layer.cpu_linear = lambda inputs, _, bias: wide(inputs, held, bias)
    if remove_weight:
        layer.weight = torch.nn.Parameter(weight.new_empty(0), requires_grad=False)
    return None
