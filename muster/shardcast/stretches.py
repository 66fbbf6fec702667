"""Where the numbers of a file lie, and how wide they are: what the encoder of differences needs to know of a format."""

from __future__ import annotations

import json
from collections.abc import Sequence
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


def stretches_of(path: Path) -> list[Stretch]:
    """The stretches of a whole file: numbers where it is safetensors, bytes otherwise."""
    size = path.stat().st_size
    tensors: list[tuple[int, int, int]] = []
    if path.suffix == ".safetensors":
        try:
            tensors = _tensors(path)
        except (ValueError, KeyError, TypeError, AttributeError):  # it is something else, and travels all the same
            tensors = []
    found: list[Stretch] = []
    at = 0
    for start, stop, width in sorted(tensors):
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


def _tensors(path: Path) -> list[tuple[int, int, int]]:
    """(start, stop, width) of each tensor in a safetensors file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MAX_HEADER_BYTES:
            raise ValueError("no safetensors header is so long")
        header: dict[str, Any] = json.loads(file.read(length))
    begin = 8 + length
    described = [entry for name, entry in header.items() if name != "__metadata__"]
    offsets = [(entry["dtype"], *map(int, entry["data_offsets"])) for entry in described]
    return [(begin + start, begin + stop, _WIDTHS.get(dtype, 1)) for dtype, start, stop in offsets]
