"""The difference between two states of one shard: what changed, in a few bits per changed value.

A shard is a row of *spans*, bytes that are numbers of one width. A number changes by an integer, the difference of
the two bit patterns modulo 2^(8 * width), so every bit is kept, the sign of a zero included. At the small learning
rates of large models one optimiser step moves few bf16 values, nearly all of them to a neighbour, so positions are most
of the cost; they are written as gaps.

    frame    = segments that tile the shard: kind u8, width u8, size in bytes u32, then by kind
    COPY     nothing: the bytes are the base's
    SPARSE   count u32, 4 planes of the gaps before each changed number, `width` planes of the changes
    DENSE    `width` planes of the changes of all numbers
    LITERAL  `width` planes of the numbers themselves, which may have no base
    plane    = length u32, bytes: one byte of every number. No bytes stand for zeros, as many as numbers for themselves,
               everything else is a zstd frame of exactly that many

All integers are little-endian; changes are zigzag-coded. Frames come from strangers: `apply` allocates what its own
arguments allow, whatever a frame says, and refuses everything that is not exactly right. What it makes is still no more
than a claim until its hash is the anchored one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from muster.errors import MalformedError

if TYPE_CHECKING:
    import pyarrow

    Numbers = np.ndarray[Any, Any]
    """Unsigned integers of one width, in a row."""

WIDTHS: Final = (1, 2, 4, 8)
MAX_SEGMENTS: Final = 256
"""In one frame; a shard with more spans is treated as bytes."""

SPARSE_ONE_IN: Final = 8
"""At most one number in so many may be in a SPARSE segment, which bounds what its positions take in memory."""

_SEGMENT: Final = struct.Struct("<BBI")
_LENGTH: Final = struct.Struct("<I")
_GAP_PLANES: Final = 4
_SPARSE_LEVEL: Final = 3
_DENSE_LEVEL: Final = 1
"""zstd's levels: few bytes are worth an effort, many are worth speed."""


class FrameKind(IntEnum):
    """How a segment is written."""

    COPY = 0
    SPARSE = 1
    DENSE = 2
    LITERAL = 3


@dataclass(frozen=True)
class TypedSpan:
    """`size` bytes of a shard that hold numbers of `width` bytes."""

    width: int
    size: int


def max_frame_bytes(size: int) -> int:
    """Return the longest frame that a shard of `size` bytes can have."""
    return size + MAX_SEGMENTS * (_SEGMENT.size + _LENGTH.size * (1 + _GAP_PLANES + WIDTHS[-1]))


def encode(base: memoryview | None, new: memoryview, spans: Sequence[TypedSpan]) -> bytes:
    """Return the frame that makes `new` out of `base`, which has as many bytes; without a base, out of nothing.

    spans: tile `new`; each of a size that its width divides.
    """
    if len(spans) > MAX_SEGMENTS:
        spans = [TypedSpan(1, len(new))]
    frame, start = [], 0
    for span in spans:
        after = _numbers(new, start, span)
        before = _numbers(base, start, span) if base is not None else None
        kind, parts = _segment(before, after)
        frame += [_SEGMENT.pack(kind, span.width, span.size), *parts]
        start += span.size
    assert start == len(new), "the spans tile the shard"
    return b"".join(frame)


def apply(frame: bytes, shard: bytearray) -> None:
    """Turn the base's bytes of a shard, in place, into what they became. A shard without a base is all zeros.

    Raises MalformedError; `shard` is spoilt then.
    """
    reader = _Reader(frame)
    start = segments = 0
    while start < len(shard):
        kind, width, size = reader.unpack(_SEGMENT)
        segments += 1
        if width not in WIDTHS or not size or size % width or size > len(shard) - start or segments > MAX_SEGMENTS:
            raise MalformedError(f"a segment of {size} bytes and width {width} at byte {start} of a shard")
        numbers = _numbers(memoryview(shard), start, TypedSpan(width, size))
        if kind == FrameKind.SPARSE:
            _apply_sparse(reader, numbers)
        elif kind == FrameKind.DENSE:
            numbers += _from_zigzag(reader.planes(width, len(numbers)))
        elif kind == FrameKind.LITERAL:
            numbers[:] = reader.planes(width, len(numbers))
        elif kind != FrameKind.COPY:
            raise MalformedError(f"a segment of kind {kind}")
        start += size
    reader.end()


def _segment(before: Numbers | None, after: Numbers) -> tuple[FrameKind, list[bytes]]:
    """Return the shortest way to write a segment, of those that come into question."""
    if before is None:
        return FrameKind.LITERAL, _planes(after, _DENSE_LEVEL)
    places = np.flatnonzero(before != after)
    if not len(places):
        return FrameKind.COPY, []
    if len(places) * SPARSE_ONE_IN <= len(after):
        gaps = np.diff(places, prepend=-1) - 1
        changes = _to_zigzag(after[places] - before[places])
        positions = _planes(gaps.astype("<u4"), _SPARSE_LEVEL)
        return FrameKind.SPARSE, [_LENGTH.pack(len(places)), *positions, *_planes(changes, _SPARSE_LEVEL)]
    dense, literal = _planes(_to_zigzag(after - before), _DENSE_LEVEL), _planes(after, _DENSE_LEVEL)
    return (FrameKind.DENSE, dense) if _total(dense) < _total(literal) else (FrameKind.LITERAL, literal)


def _apply_sparse(reader: _Reader, numbers: Numbers) -> None:
    (count,) = reader.unpack(_LENGTH)
    if not 0 < count * SPARSE_ONE_IN <= len(numbers):
        raise MalformedError(f"{count} changes among {len(numbers)} numbers")
    gaps = reader.planes(_GAP_PLANES, count)
    changes = reader.planes(numbers.itemsize, count)
    if int(gaps.sum(dtype=np.uint64)) + count > len(numbers):
        raise MalformedError("a change beyond the segment")
    gaps += 1
    places = np.cumsum(gaps, dtype=np.uint32)
    places -= 1
    numbers[places] += _from_zigzag(changes)


def _numbers(data: memoryview, start: int, span: TypedSpan) -> Numbers:
    """Part of a buffer as unsigned integers, wherever they begin."""
    return np.frombuffer(data, f"<u{span.width}", span.size // span.width, start)


def _to_zigzag(changes: Numbers) -> Numbers:
    """0, -1, 1, -2, … as 0, 1, 2, 3, …: small changes are small numbers."""
    signs = changes >> (8 * changes.itemsize - 1)
    return (changes << 1) ^ np.negative(signs)


def _from_zigzag(coded: Numbers) -> Numbers:
    return (coded >> 1) ^ np.negative(coded & 1)


def _planes(numbers: Numbers, level: int) -> list[bytes]:
    """Compress each byte of the numbers apart: the lowest ones are noise, the highest ones are nearly always zero."""
    by_byte = numbers.view(np.uint8).reshape(-1, numbers.itemsize)
    parts = []
    for column in by_byte.T:
        packed = _pack(np.ascontiguousarray(column), level)
        parts += [_LENGTH.pack(len(packed)), packed]
    return parts


def _pack(plane: Numbers, level: int) -> bytes:
    if not plane.any():
        return b""
    packed = _codec(level).compress(plane, asbytes=True)
    return packed if len(packed) < len(plane) else plane.tobytes()


def _total(parts: Sequence[bytes]) -> int:
    return sum(map(len, parts))


class _Reader:
    """A frame, from front to back."""

    def __init__(self, frame: bytes) -> None:
        self._frame = memoryview(frame)
        self._at = 0

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self._take(form.size))

    def planes(self, width: int, count: int) -> Numbers:
        """`count` numbers of `width` bytes."""
        numbers = np.zeros(count, f"<u{width}")
        by_byte = numbers.view(np.uint8).reshape(-1, width)
        for column in by_byte.T:
            if (plane := self._plane(count)) is not None:
                column[:] = plane
        return numbers

    def _plane(self, count: int) -> Numbers | None:
        (length,) = self.unpack(_LENGTH)
        if not length:
            return None
        if length > count:
            raise MalformedError(f"a plane of {length} bytes for {count}")
        packed = self._take(length)
        if length == count:
            return np.frombuffer(packed, np.uint8)
        try:
            plain = _codec(_DENSE_LEVEL).decompress(packed, decompressed_size=count)
        except (OSError, ValueError) as error:  # pyarrow's errors are of these two kinds
            raise MalformedError(f"a plane that is no zstd of {count} bytes") from error
        return np.frombuffer(plain, np.uint8)

    def _take(self, size: int) -> memoryview:
        part = self._frame[self._at : self._at + size]
        if len(part) < size:
            raise MalformedError(f"the frame ends at byte {len(self._frame)}")
        self._at += size
        return part

    def end(self) -> None:
        if self._at < len(self._frame):
            raise MalformedError(f"{len(self._frame) - self._at} bytes after the frame")


@cache
def _codec(level: int) -> pyarrow.Codec:
    """zstd; imported when it is needed, since most processes that fetch weights never need it."""
    import pyarrow

    return pyarrow.Codec("zstd", compression_level=level)
