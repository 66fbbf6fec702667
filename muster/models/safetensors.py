"""Read the header of an untrusted safetensors file: its tensors and their places. Loads no tensor.

https://huggingface.co/docs/safetensors: a length u64, a head of JSON, and the tensors' bytes.
"""

from __future__ import annotations

import json
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

    Raises ValueError for a file that safetensors does not open: each byte after the head belongs to one tensor. And for
    one whose head is longer than MAX_HEAD_BYTES, or names a tensor twice.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEAD_BYTES:
            raise ValueError(f"a head of {length} bytes; at most {MAX_HEAD_BYTES} are read")
        head = file.read(length)
    try:
        with safe_open(path, framework="np"):
            header: dict[str, Any] = json.loads(head, object_pairs_hook=unique)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    header.pop("__metadata__", None)
    begin = 8 + length
    found = [
        Tensor(name, entry["dtype"], tuple(entry["shape"]), *(begin + at for at in entry["data_offsets"]))
        for name, entry in header.items()
    ]
    return sorted(found, key=lambda tensor: (tensor.start, tensor.stop))
