"""Read a checkpoint's weights, for those who put them into a model that is already there."""

from __future__ import annotations

import json
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
