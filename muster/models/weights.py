"""Read a checkpoint's weights, for those who put them into a model that is already there."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

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
