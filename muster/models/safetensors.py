"""Read the header of an untrusted safetensors file: its tensors and their places. Loads no tensor.

https://huggingface.co/docs/safetensors: a length u64, a head of JSON, and the tensors' bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

WIDTHS: Final = {
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 2),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F64", "I64", "U64"), 8),
}
"""Bytes of a number, by safetensors' names of dtypes; those of one byte are not here."""

MAX_HEAD_BYTES: Final = 100_000_000
"""safetensors' own bound."""


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies in its file: bytes `start` to `stop`. None of it need be true."""

    name: str
    dtype: str
    """As safetensors calls it."""
    shape: tuple[int, ...]
    start: int
    stop: int


def tensors_of(path: Path, max_head: int = MAX_HEAD_BYTES) -> list[Tensor]:
    """Return the tensors of a safetensors file, as its head names them.

    Raises ValueError for another file, or one whose head is longer than `max_head` bytes.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > max_head:
            raise ValueError(f"a head of {length} bytes; at most {max_head} are read")
        head = file.read(length)
    begin = 8 + length
    found = []
    try:
        header: dict[str, Any] = json.loads(head)
        for name, entry in header.items():
            if name != "__metadata__":
                start, stop = map(int, entry["data_offsets"])
                shape = tuple(map(int, entry["shape"]))
                found.append(Tensor(name, str(entry["dtype"]), shape, begin + start, begin + stop))
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} has no safetensors header") from error
    return found
