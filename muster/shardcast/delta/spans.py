"""Where the numbers of a file lie, and how wide they are: what the encoder of differences needs to know of a format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from muster.shardcast.delta import Stretch
from muster.tensor_files import WIDTHS, Tensor, tensors_of


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
        start, stop, width = tensor.start, tensor.stop, WIDTHS.get(tensor.dtype, 1)
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
