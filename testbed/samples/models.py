"""Untrained models, and changes to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from muster.models.init import ModelShape, make_model, make_tokenizer, save_model

TINY: Final = ModelShape(hidden=32, layers=1, heads=1, intermediate=32)
SMALL: Final = ModelShape(hidden=64, layers=1, heads=2, intermediate=64)
DEMO: Final = ModelShape()


def write_model(folder: Path, shape: ModelShape = TINY, *, seed: int = 1, **changes: Any) -> Path:
    """Write a checkpoint with random weights; `changes` are of its shape. Returns the folder."""
    tokenizer = make_tokenizer()
    save_model(make_model(tokenizer, replace(shape, **changes), seed=seed), tokenizer, folder)
    return folder


def nudge(folder: Path, step: int, *, tensors: int | None = None) -> None:
    """Move the weights as a large update would; only so many tensors of them, the smallest, where that is said."""
    from safetensors.torch import load_file, save_file

    torch.manual_seed(step)
    weights = load_file(folder / "model.safetensors")
    chosen = sorted(weights, key=lambda name: weights[name].numel())[:tensors]
    for name in chosen:
        weights[name] += 0.02 * weights[name].std() * torch.randn_like(weights[name])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def unpin_numerics() -> None:
    """Undo `muster.models.numerics.pin_numerics`, as a library might. The caller pins again."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
