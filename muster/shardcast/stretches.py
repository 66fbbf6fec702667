"""Where the numbers of a file lie, and how wide they are: what the encoder of differences needs to know of a format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from muster.shardcast.delta import Stretch

_WIDTHS: Final = {
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 2),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F64", "I64", "U64"), 8),
}
"""By safetensors' names of dtypes; what is not here is compared byte by byte."""

_MAX_HEADER_BYTES: Final = 100_000_000
"""safetensors' own bound."""


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies in its file: bytes `start` to `stop`."""

    name: str
    dtype: str
    """As safetensors calls it."""
    start: int
    stop: int


def stretches_of(path: Path) -> list[Stretch]:
    """The stretches of a whole file: numbers where it is safetensors, bytes otherwise."""
    size = path.stat().st_size
    tensors: list[Tensor] = []
    if path.suffix == ".safetensors":
        try:
            tensors = tensors_of(path)
        except ValueError:  # it is something else, and travels all the same
            tensors = []
    found: list[Stretch] = []
    at = 0
    for tensor in sorted(tensors, key=lambda tensor: tensor.start):
        start, stop, width = tensor.start, tensor.stop, _WIDTHS.get(tensor.dtype, 1)
        if at <= start <= stop <= size and not (stop - start) % width:
            _add(found, 1, start - at)
            _add(found, width, stop - start)
            at = stop
    _add(found, 1, size - at)
    return found


def cut(stretches: Sequence[Stretch], start: int, stop: int) -> list[Stretch]:
    """The stretches of bytes `start` to `stop`; a number that is cut through becomes bytes."""
    found: list[Stretch] = []
    begin = 0
    for stretch in stretches:
        end = begin + stretch.size
        low, high = max(start, begin), min(stop, end)
        if low < high:
            first = min(high, low + (begin - low) % stretch.width)
            last = max(first, high - (high - begin) % stretch.width)
            _add(found, 1, first - low)
            _add(found, stretch.width, last - first)
            _add(found, 1, high - last)
        begin = end
    return found


def _add(stretches: list[Stretch], width: int, size: int) -> None:
    if not size:
        return
    if stretches and stretches[-1].width == width:
        size += stretches.pop().size
    stretches.append(Stretch(width, size))


def tensors_of(path: Path) -> list[Tensor]:
    """The tensors of a safetensors file, as its head names them; what that says need not be true. Raises ValueError for
    another file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MAX_HEADER_BYTES:
            raise ValueError("no safetensors header is so long")
        head = file.read(length)
    begin = 8 + length
    found = []
    try:
        header: dict[str, Any] = json.loads(head)
        for name, entry in header.items():
            if name != "__metadata__":
                start, stop = map(int, entry["data_offsets"])
                found.append(Tensor(name, str(entry["dtype"]), begin + start, begin + stop))
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} has no safetensors header") from error
    return found
