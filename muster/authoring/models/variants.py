"""Other weights than a checkpoint's: cheaper copies, as a cheat would run, and the sharper ones that training leads to.

A calibration measures the first against its limits, and honest work of the second.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
from safetensors.torch import save_file

from muster.errors import ConfigError
from muster.models.weights import FINAL_NORM, read_weights

Change = Callable[[torch.Tensor], torch.Tensor]

_FP8_LARGEST: Final = 448.0
"""Of float8_e4m3."""


def save_changed(source: Path, target: Path, change: Change) -> Path:
    """Write a checkpoint folder like `source`, every tensor changed."""
    return _save(source, target, {name: change(tensor) for name, tensor in read_weights(source)})


def save_sharpened(source: Path, target: Path, times: float) -> Path:
    """Write a checkpoint whose logits are this many times as large. Raises ConfigError without a FINAL_NORM."""
    tensors = dict(read_weights(source))
    if FINAL_NORM not in tensors:
        raise ConfigError(f"{source} has no {FINAL_NORM}: its logits cannot be sharpened", hint="pass --sharpened ''")
    return _save(source, target, tensors | {FINAL_NORM: tensors[FINAL_NORM] * times})


def _save(source: Path, target: Path, tensors: dict[str, torch.Tensor]) -> Path:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors*"), dirs_exist_ok=True)
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, target / "model.safetensors", metadata={"format": "pt"})
    return target


def with_noise(fraction: float) -> Change:
    """Add noise of this fraction of the tensor's standard deviation."""
    generator = torch.Generator().manual_seed(7)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(tensor.shape, generator=generator)
        return (tensor.float() + fraction * tensor.float().std() * noise).to(tensor.dtype)

    return change


def rounded_to(bits: int) -> Change:
    """Round matrices to so many bits with a scale per row, as weight-only quantisation does."""
    largest = 2 ** (bits - 1) - 1

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() < 2:
            return tensor
        scale = tensor.float().abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / largest
        return ((tensor.float() / scale).round() * scale).to(tensor.dtype)

    return change


def to_fp8(tensor: torch.Tensor) -> torch.Tensor:
    """Round a matrix to float8_e4m3 with one scale, as engines do when they load weights in it."""
    if tensor.dim() < 2:
        return tensor
    scale = tensor.float().abs().amax().clamp_min(1e-12) / _FP8_LARGEST
    return ((tensor.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(tensor.dtype)


def with_low_rank(fraction: float, rank: int = 4) -> Change:
    """Add a random matrix of this rank to each matrix, its norm this fraction of the matrix's: an adapter of one's own.

    Embeddings stay as they are.
    """
    generator = torch.Generator().manual_seed(3)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() < 2 or max(tensor.shape) > 8 * min(tensor.shape):
            return tensor
        left = torch.randn(tensor.shape[0], rank, generator=generator)
        added = left @ torch.randn(rank, tensor.shape[1], generator=generator)
        return (tensor.float() + fraction * tensor.float().norm() / added.norm() * added).to(tensor.dtype)

    return change


CHEAPER: Final[MappingProxyType[str, Callable[[], Change]]] = MappingProxyType(
    {
        "int8 weights": partial(rounded_to, 8),
        "fp8 weights": lambda: to_fp8,
        "int4 weights": partial(rounded_to, 4),
        "weights with 1 % of noise": partial(with_noise, 0.01),
        "a low-rank change of 1 %": partial(with_low_rank, 0.01),
    }
)
"""Weights that are known cheats, by name: what makes their change, for one checkpoint each."""
