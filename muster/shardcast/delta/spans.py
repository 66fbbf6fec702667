"""Where the numbers of a file lie, and how wide they are: what the encoder of differences needs to know of a format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from muster.models.safetensors import WIDTHS, Tensor, tensors_of
from muster.shardcast.delta.codec import TypedSpan


def spans_of(path: Path) -> list[TypedSpan]:
    """Return the spans of a whole file: numbers where it is safetensors, bytes otherwise."""
    size = path.stat().st_size
    tensors: list[Tensor] = []
    if path.suffix == ".safetensors":
        try:
            tensors = tensors_of(path)
        except ValueError:  # it is something else, and travels all the same
            tensors = []
    found: list[TypedSpan] = []
    at = 0
    for tensor in sorted(tensors, key=lambda tensor: tensor.start):
        start, stop, width = tensor.start, tensor.stop, WIDTHS.get(tensor.dtype, 1)
        if at <= start <= stop <= size and not (stop - start) % width:
            _add(found, 1, start - at)
            _add(found, width, stop - start)
            at = stop
    _add(found, 1, size - at)
    return found


def cut(spans: Sequence[TypedSpan], start: int, stop: int) -> list[TypedSpan]:
    """Return the spans of bytes `start` to `stop`; a number that is cut through becomes bytes."""
    found: list[TypedSpan] = []
    begin = 0
    for span in spans:
        end = begin + span.size
        low, high = max(start, begin), min(stop, end)
        if low < high:
            first = min(high, low + (begin - low) % span.width)
            last = max(first, high - (high - begin) % span.width)
            _add(found, 1, first - low)
            _add(found, span.width, last - first)
            _add(found, 1, high - last)
        begin = end
    return found


def _add(spans: list[TypedSpan], width: int, size: int) -> None:
    if not size:
        return
    if spans and spans[-1].width == width:
        size += spans.pop().size
    spans.append(TypedSpan(width, size))
