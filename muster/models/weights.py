"""Read a checkpoint's weights, for those who put them into a model that is already there, and those who judge by it."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from muster.errors import MalformedError

if TYPE_CHECKING:
    import torch


def read_weights(model_dir: Path, only: Container[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor of everything in the folder's safetensors files, or of the names in `only`, one at a time.

    Raises MalformedError when there is none, or one that is not safetensors.
    """
    from safetensors import SafetensorError, safe_open

    files = sorted(model_dir.glob("*.safetensors"))
    if not files:
        raise MalformedError(f"no safetensors in {model_dir}")
    for path in files:
        try:
            with safe_open(path, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a dict)
                    if only is None or name in only:
                        yield name, tensors.get_tensor(name)
        except SafetensorError as error:
            raise MalformedError(f"{path} is not a safetensors file: {error}") from error


FINAL_NORM: Final = "model.norm.weight"
"""The gain behind a model's last layer: logits are in proportion to it."""
_ADDS_ONE: Final = ("gemma",)
"""How the types of models begin whose norms multiply by 1 plus their weights."""
SCALE_PER_NAT: Final = 8.0
"""Largest `logit_scale` of a step over the temperature, per nat by which sampled tokens are ahead of random ones. On
average that is at least the logarithm of the vocabulary's size, whatever the weights. With a larger scale, what two
honest machines may differ by comes to as much, and limits no longer tell random tokens from sampled ones."""


def check_scale(model_dir: Path, temperature: float) -> None:
    """Raise MalformedError for a step under whose weights limits say nothing (SCALE_PER_NAT), or are no numbers."""
    scale, most = logit_scale(model_dir) / temperature, SCALE_PER_NAT * math.log(len(read_head(model_dir)))
    if not scale <= most:
        raise MalformedError(
            f"the last norm times the head of {model_dir} comes to {scale:.3g}; at most {most:.3g} is taken",
            hint="nobody's work of such a step can be judged: do not work for it",
        )


def logit_scale(model_dir: Path) -> float:
    """Return what a relative error of 1 of the last state makes of a logit, at most: from weights alone.

    That is the largest gain of the last norm times the longest row of the head: no state behind the norm is longer than
    sqrt(H) times that gain, whatever its context is.
    """
    import torch

    config = json.loads((model_dir / "config.json").read_text())
    bias = FINAL_NORM.replace("weight", "bias")
    norm = {name: tensor.float() for name, tensor in read_weights(model_dir, (FINAL_NORM, bias))}
    gain = norm.get(FINAL_NORM, torch.ones(1)) + str(config.get("model_type")).startswith(_ADDS_ONE)
    largest = gain.abs().max() + norm.get(bias, torch.zeros(1)).abs().max()
    return float(largest * torch.linalg.vector_norm(read_head(model_dir), dim=1, dtype=torch.float32).max())


def read_head(model_dir: Path) -> torch.Tensor:
    """Return the rows that make logits of states, [V, H] as they are stored: mapped, so that few are read for a few.

    Raises MalformedError when the folder has none.
    """
    config = json.loads((model_dir / "config.json").read_text())
    found = dict(read_weights(model_dir, _HEADS))
    for name in _HEADS[::-1] if config.get("tie_word_embeddings") else _HEADS:
        if name in found:
            return found[name]
    raise MalformedError(f"no weights in {model_dir} are called {' or '.join(_HEADS)}")


_HEADS: Final = ("lm_head.weight", "model.embed_tokens.weight")
"""Where a model has none of the first name, or ties it to the second, it computes logits with the second."""
