"""Read the header of an untrusted safetensors file: its tensors and their places. Loads no tensor.

A file that safetensors itself would not open is refused here too.

https://huggingface.co/docs/safetensors: a length u64, a head of JSON, and the tensors' bytes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from muster.runtime.documents import unique

WIDTHS: Final = {
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 2),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F64", "I64", "U64"), 8),
}
"""Bytes of a number, by safetensors' names of dtypes; those of one byte are not here."""

MAX_HEAD_BYTES: Final = 8 << 20
"""Of a stranger's file: room for some fifty thousand tensors."""


SCAN_BYTES: Final = 1 << 24
"""Bytes of weights that are looked at in one go."""


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies in its file: bytes `start` to `stop`."""

    name: str
    dtype: str
    """As safetensors calls it."""
    shape: tuple[int, ...]
    start: int
    stop: int


def pieces_of(path: Path, tensor: Tensor) -> Iterator[bytes]:
    """Yield a tensor's bytes, by SCAN_BYTES at a time. Raises OSError."""
    with path.open("rb") as file:
        file.seek(tensor.start)
        for start in range(tensor.start, tensor.stop, SCAN_BYTES):
            yield file.read(min(SCAN_BYTES, tensor.stop - start))


def tensors_of(path: Path) -> list[Tensor]:
    """Return the tensors of a safetensors file, in the order in which their bytes lie there.

    Raises ValueError for another file: one whose head is longer than MAX_HEAD_BYTES, names a tensor twice, or does not
    give each byte after it to one tensor.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEAD_BYTES:
            raise ValueError(f"a head of {length} bytes; at most {MAX_HEAD_BYTES} are read")
        head = file.read(length)
        size = file.seek(0, os.SEEK_END)
    begin = 8 + length
    found = []
    try:
        header: dict[str, Any] = json.loads(head, object_pairs_hook=unique)
        for name, entry in header.items():
            if name != "__metadata__":
                start, stop = map(int, entry["data_offsets"])
                shape = tuple(map(int, entry["shape"]))
                found.append(Tensor(name, str(entry["dtype"]), shape, begin + start, begin + stop))
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} has no safetensors header") from error
    found.sort(key=lambda tensor: (tensor.start, tensor.stop))
    at = begin
    for tensor in found:
        width = WIDTHS.get(tensor.dtype, 1)
        if tensor.start != at or tensor.stop - at != width * math.prod(tensor.shape) or tensor.stop > size:
            raise ValueError(f"{tensor.name[:200]} does not lie in the file, after the tensor before it")
        at = tensor.stop
    if at < size:
        raise ValueError(f"{size - at} bytes that belong to no tensor")
    try:
        with safe_open(path, framework="np"):
            return found
    except SafetensorError as error:
        raise ValueError(str(error)) from error
