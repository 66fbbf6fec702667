"""Weights that are not the published ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from muster.models.files import load_tokenizer
from muster.models.init import WarmUp, load_model, save_model, warm_up
from muster.models.weights import read_weights
from muster.tasks import TaskSet

Change = Callable[[torch.Tensor], torch.Tensor]


def save_changed(source: Path, target: Path, change: Change) -> Path:
    """Write a checkpoint folder like `source`, every tensor changed."""
    shutil.copytree(source, target)
    tensors = {name: change(tensor).contiguous() for name, tensor in read_weights(source)}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
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


def save_smaller(source: Path, target: Path, task_set: TaskSet, *, steps: int = 20) -> Path:
    """Train the model without its last layer on the tasks until it has recovered from that.

    Saved in the shape of the whole model, with a last layer that adds nothing, so that the same engine runs it.
    """
    model, tokenizer = load_model(source), load_tokenizer(source)
    layers: Any = model.base_model.layers
    whole, last = layers[-1], len(layers) - 1
    del layers[-1]
    warm_up(model, tokenizer, task_set, WarmUp(target=0.0, check_tasks=8, min_steps=steps), seed=4)
    layers.append(whole)
    with torch.no_grad():
        layers[last].self_attn.o_proj.weight.zero_()
        layers[last].mlp.down_proj.weight.zero_()
    save_model(model, tokenizer, target)
    return target
