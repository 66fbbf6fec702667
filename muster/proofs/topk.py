"""The largest entries of each chunk of states: what the published form of activation proofs keeps.

A chunk is the flattened bfloat16 states of up to 32 consecutive tokens, float32 ones being rounded first. Kept are the
128 entries of largest magnitude, of equal ones those of lowest index; a chunk of fewer than 128 entries (the end of a
completion of a tiny model) counts as followed by zeros. The kernel is muster/proofs/native/toploc.c; where there is
none, and for states on a GPU, the same choice is made by torch on the states' own device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch.nn.functional import pad

from muster.proofs.kernel import address, addresses
from muster.proofs.native import load

CHUNK_TOKENS: Final = 32
POINTS: Final = 128
INFINITE: Final = 0x7F80
"""Magnitudes from here on are infinities and NaNs."""
_BLOCK: Final = 64
"""Of the kernel."""
_KEYS_AT_ONCE: Final = 1 << 24
"""Sort keys held at a time without the kernel: 128 MiB."""


@dataclass(frozen=True)
class Largest:
    """The kept entries of C chunks, in no particular order."""

    indices: np.ndarray
    """int32 [C, 128]: place in the flattened chunk."""
    bits: np.ndarray
    """uint16 [C, 128]: the entry as bfloat16, sign included."""


def chunk_count(tokens: int) -> int:
    return -(-tokens // CHUNK_TOKENS)


def largest(states: Sequence[torch.Tensor]) -> Largest:
    """Return the kept entries of all chunks of completions [T, H], one completion after the other."""
    rows = [part.to(torch.bfloat16).contiguous() for part in states]
    if not any(len(part) for part in rows):
        return Largest(np.empty((0, POINTS), np.int32), np.empty((0, POINTS), np.uint16))
    kernel = load("toploc") if all(part.device.type == "cpu" for part in rows) else None
    if kernel is None:
        return largest_by_torch(rows)

    hidden = rows[0].shape[1]
    starts = np.concatenate([np.arange(0, len(part), CHUNK_TOKENS) for part in rows])
    owners = np.repeat(np.arange(len(rows)), [chunk_count(len(part)) for part in rows])
    left = np.array([len(part) for part in rows])[owners] - starts
    sizes = np.minimum(left, CHUNK_TOKENS) * hidden
    chunks = addresses(rows)[owners] + (starts * hidden * 2).astype(np.uint64)
    found = Largest(np.empty((len(sizes), POINTS), np.int32), np.empty((len(sizes), POINTS), np.uint16))
    most = int(sizes.max())
    scratch = np.empty(-(-most // _BLOCK), np.uint16), np.empty(most, np.int32), np.empty(most, np.uint16)
    count = ctypes.c_int64(len(sizes))
    kernel.select_largest(
        address(chunks), address(sizes), count, address(found.indices), address(found.bits), *map(address, scratch)
    )
    return found


def largest_by_torch(rows: Sequence[torch.Tensor]) -> Largest:
    """`largest` for bfloat16 states on any device. Only what is kept leaves the device."""
    entries = CHUNK_TOKENS * rows[0].shape[1]
    width = max(entries, POINTS)
    # Zeros at the end of a chunk change no choice, as they lose every tie.
    flat = [part.view(torch.int16).flatten() for part in rows]
    chunks = torch.cat([pad(part, (0, -len(part) % entries)).view(-1, entries) for part in flat])
    chunks = pad(chunks, (0, width - entries))
    # Unique keys, so that no tie is left to torch: the magnitude, then how near to the beginning.
    nearness = torch.arange(width, 0, -1, device=chunks.device)
    indices = []
    for some in chunks.split(max(1, _KEYS_AT_ONCE // width)):
        keys = (some & 0x7FFF).to(torch.int64).bitwise_left_shift_(32).bitwise_or_(nearness)
        indices.append(width - (keys.topk(POINTS, dim=1, sorted=False).values & 0xFFFFFFFF))
    kept = torch.cat(indices)
    bits = chunks.gather(1, kept).cpu().numpy().view(np.uint16)
    return Largest(kept.to(torch.int32).cpu().numpy(), bits)
