"""A difference that says what changed, shard by shard: a `muster.shardcast.delta.difference` to the step before.

step.delta   "MUSTERD1", the number of frames u32, the length of each u32, and one frame
(`muster.shardcast.delta.codec`)
             for each shard of the step's manifest
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from blake3 import blake3

from muster.errors import MalformedError, StorageError
from muster.models.safetensors import WIDTHS
from muster.shardcast.delta.codec import TypedSpan, apply, encode, max_frame_bytes
from muster.shardcast.delta.difference import TIMES_SMALLER, TargetStep, read_target, same_tiling, tensors_in
from muster.shardcast.format.manifest import FRAMES_NAME, TARGET_NAME, Shard
from muster.shardcast.format.store import disk_errors

_MAGIC: Final = b"MUSTERD1"
_COUNT: Final = struct.Struct("<I")


def write_frames(base: TargetStep, target: TargetStep, folder: Path) -> bool:
    """Write the two files of the difference between two steps that are on disk; False when it is not worth it.

    It is not where the steps are cut differently or most of the bytes changed. What is written has been tried: applied
    to the base, or to nothing where the base is damaged here, it gives what the target's manifest says. Raises
    StorageError when the target is damaged, OSError when the disk refuses. Blocking.
    """
    if not same_tiling(base.manifest, target.manifest):
        return False
    allowed = target.manifest.total_bytes // TIMES_SMALLER - len(target.manifest.canonical)
    layouts = [spans_of(target.path / file.name) for file in target.manifest.files]
    lengths: list[int] = []
    with (folder / FRAMES_NAME).open("wb") as file:
        file.write(_head([0] * len(target.manifest.shards)))
        for old, new in zip(base.manifest.shards, target.manifest.shards, strict=True):
            before, after = base.read(old), target.read(new)
            good = blake3(before).digest() == old.digest
            layout = cut(layouts[new.file], new.offset, new.end)
            frame = encode(memoryview(before) if good else None, memoryview(after), layout)
            made = before if good else bytearray(new.size)
            apply(frame, made)
            if blake3(made).digest() != new.digest:
                raise StorageError(f"shard {new.index} of {target.path} is damaged", hint="publish the step again")
            file.write(frame)
            lengths.append(len(frame))
            if file.tell() > allowed:
                return False
        file.seek(0)
        file.write(_head(lengths))
    (folder / TARGET_NAME).write_bytes(target.manifest.canonical)
    return True


class FrameDifference:
    """What changed, shard by shard, as a `Difference`.

    Raises StorageError when a file cannot be read, MalformedError when one is not as it should be.
    """

    def __init__(self, version: Path, root: bytes | None = None) -> None:
        """Read the head. root: of the step that it must make; MismatchError when it makes another."""
        self.target = read_target(version, root)
        self._path = version / FRAMES_NAME
        self._places = self._read_head()

    def apply(self, shard: Shard, data: bytearray, layout: TargetStep) -> None:
        """See `Difference`."""
        start, stop = self._places[shard.index]
        apply(self._read(stop - start, start), data)

    def _read_head(self) -> list[tuple[int, int]]:
        """Return first and last byte of each frame, which follow each other to the end of the file."""
        shards = self.target.shards
        head = self._read(len(_MAGIC) + _COUNT.size * (1 + len(shards)), 0)
        if head[: len(_MAGIC)] != _MAGIC or _COUNT.unpack_from(head, len(_MAGIC))[0] != len(shards):
            raise MalformedError(f"no frames of {len(shards)} shards")
        places, at = [], len(head)
        lengths = struct.iter_unpack(_COUNT.format, head[len(_MAGIC) + _COUNT.size :])
        for shard, (length,) in zip(shards, lengths, strict=True):
            if length > max_frame_bytes(shard.size):
                raise MalformedError(f"a frame of {length} bytes for a shard of {shard.size}")
            places.append((at, at + length))
            at += length
        if at != (size := self._path.stat().st_size):
            raise MalformedError(f"frames of {at} bytes in a file of {size}")
        return places

    def _read(self, size: int, start: int) -> bytes:
        with disk_errors("cannot read", self._path), self._path.open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), size, start)
        if len(data) < size:
            raise MalformedError(f"the frames end at byte {start + len(data)}")
        return data


def _head(lengths: Sequence[int]) -> bytes:
    return _MAGIC + _COUNT.pack(len(lengths)) + b"".join(map(_COUNT.pack, lengths))


def spans_of(path: Path) -> list[TypedSpan]:
    """Return the spans of a whole file: numbers where it is safetensors, bytes otherwise."""
    size = path.stat().st_size
    found: list[TypedSpan] = []
    at = 0
    for tensor in sorted(tensors_in(path), key=lambda tensor: tensor.start):
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
