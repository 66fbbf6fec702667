"""Train low-rank adapters: which matrices have one, and what is published of them.

Every linear map inside the model's layers gets a pair (Hu et al., arXiv 2106.09685). QLoRA (arXiv 2305.14314) found
that adapting all of them, rather than attention's alone, matters. The model itself is frozen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from muster.errors import ConfigError
from muster.models.lora import Adapter, Pair
from muster.models.matmul import WideLinear, wide
from trainer.policy import Policy

_DTYPES: Final = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
_BASE, _DOWN, _UP = "base", "down", "up"


class AdaptedLinear(nn.Module):
    """A frozen linear map plus a trained pair of matrices: base(x) + scale · B(A x)."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float, draw: torch.Generator) -> None:
        super().__init__()
        self.base = base
        self.product = wide if isinstance(base, WideLinear) else functional.linear
        self.scale = alpha / rank
        bound = 1 / math.sqrt(base.in_features)
        self.down = nn.Parameter((2 * torch.rand(rank, base.in_features, generator=draw) - 1) * bound)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.base(states) + self.scale * self.product(self.product(states, self.down), self.up)


def adapt(policy: Policy, rank: int, alpha: float) -> None:
    """Freeze a policy and give each linear map of its layers a pair, in place.

    It computes what it did before, and equal arguments give equal pairs. Raises ConfigError when there are none.
    """
    policy.requires_grad_(False)
    draw = torch.Generator().manual_seed(0)
    if not any(isinstance(module, nn.Linear) for module in policy.layers.modules()):
        raise ConfigError(
            f"{type(policy.model).__name__} has no linear maps in its layers to adapt",
            hint="set trainer.lora_rank to 0",
        )
    for layer in policy.layers:
        found = [(parent, name, child) for parent in layer.modules() for name, child in parent.named_children()]
        for parent, name, child in found:
            if isinstance(child, nn.Linear):
                setattr(parent, name, AdaptedLinear(child, rank, alpha, draw))


def adapter_of(weights: dict[str, torch.Tensor], rank: int, alpha: float) -> Adapter:
    """Take the pairs out of an adapted model's weights, and leave the weights of the model it was made from.

    Pairs are float32 [rank, inputs] and [outputs, rank]. `weights`: on the CPU, by the names that they have in the
    adapted model; changed in place.
    """
    downs = [name for name in weights if name.endswith(f".{_DOWN}")]
    pairs = {}
    for name in downs:
        module = name.removesuffix(f".{_DOWN}")
        down, up = weights.pop(name), weights.pop(f"{module}.{_UP}")
        pairs[f"{module}.weight"] = Pair(down.float().numpy(), up.float().numpy())
        for kind in ("weight", "bias"):
            if (base := weights.pop(f"{module}.{_BASE}.{kind}", None)) is not None:
                weights[f"{module}.{kind}"] = base
    return Adapter(rank, alpha, pairs)


def merge(adapter: Adapter, weights: Mapping[str, torch.Tensor]) -> None:
    """Merge an adapter into the weights of the model it was trained on, in place, exactly as every node does.

    weights: contiguous, on the CPU, bfloat16, float16 or float32.
    """
    for name in adapter.pairs:
        tensor = weights[name]
        adapter.merge(name, tensor.view(torch.uint8).numpy().data.cast("B"), _DTYPES[tensor.dtype])
