"""A smaller model in the shape of the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from muster.models.files import load_tokenizer
from muster.models.init import WarmUp, load_model, save_model, warm_up
from muster.tasksets.taskset import TaskSet


def save_smaller(source: Path, target: Path, task_set: TaskSet, *, steps: int = 20) -> Path:
    """Train the model without its last layer on the tasks until it has recovered from that.

    Saved in the shape of the whole model, with a last layer that adds nothing, so that the same engine runs it.
    """
    model, tokenizer = load_model(source), load_tokenizer(source)
    layers: Any = model.base_model.layers
    whole, last = layers[-1], len(layers) - 1
    del layers[-1]
    warm = WarmUp(target=0.0, check_tasks=8, batch=64, learning_rate=1e-3, min_steps=steps)
    warm_up(model, tokenizer, task_set, warm, seed=4)
    layers.append(whole)
    with torch.no_grad():
        layers[last].self_attn.o_proj.weight.zero_()
        layers[last].mlp.down_proj.weight.zero_()
    save_model(model, tokenizer, target)
    return target
