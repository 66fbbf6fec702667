"""Differences of one shard: every bit comes back, few are written, and a frame from a stranger can do no harm."""

from __future__ import annotations

import random
import struct
import tracemalloc
from contextlib import suppress

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.errors import MalformedError
from muster.shardcast.delta.codec import MAX_SEGMENTS, FrameKind, TypedSpan, apply, encode, max_frame_bytes
from testbed.suite.examples import up_to

WIDTHS = (1, 2, 4, 8)


def made(frame: bytes, base: bytes) -> bytes:
    shard = bytearray(base)
    apply(frame, shard)
    return bytes(shard)


def encoded(base: bytes | None, new: bytes, *spans: TypedSpan) -> bytes:
    return encode(memoryview(base) if base is not None else None, memoryview(new), spans)


def segment(kind: int, width: int, size: int, *planes: bytes, count: int | None = None) -> bytes:
    head = struct.pack("<BBI", kind, width, size) + (struct.pack("<I", count) if count is not None else b"")
    return head + b"".join(struct.pack("<I", len(plane)) + plane for plane in planes)


def numbers(values: list[int], width: int) -> bytes:
    return np.array(values, f"<u{width}").tobytes()


# What frames look like


def test_the_frames_of_small_shards_are_these() -> None:
    base = numbers([0x3F80, 0x0000, 0x8000, 0xFFFF, *[7] * 28], 2)
    one = numbers([0x3F80, 0x0000, 0x8000, 0xFFFF, *[7] * 12, 6, *[7] * 14, 9], 2)
    assert encoded(base, base, TypedSpan(2, 64)).hex() == "000240000000"
    sparse = encoded(base, one, TypedSpan(2, 64))
    # Kind 1, width 2, 64 bytes, 2 changes: gaps 16 and 14; minus one is 1 and plus two is 4.
    assert sparse.hex() == ("0102400000000200000002000000100e00000000000000000000000002000000010400000000")
    assert made(sparse, base) == one
    dense = encoded(numbers([1000, 2000, 3000, 4000], 4), numbers([999, 1999, 2999, 3999], 4), TypedSpan(4, 16))
    assert dense.hex() == "0204100000000400000001010101000000000000000000000000"
    literal = encoded(None, b"\x00\x01\x02", TypedSpan(1, 3))
    assert literal.hex() == "03010300000003000000000102"
    assert made(literal, bytes(3)) == b"\x00\x01\x02"


def test_the_sign_of_a_zero_counts() -> None:
    for width, sign in ((2, 0x8000), (4, 1 << 31), (8, 1 << 63)):
        plus, minus = numbers([0] * 64, width), numbers([0] * 40 + [sign] + [0] * 23, width)
        for base, new in ((plus, minus), (minus, plus)):
            frame = encoded(base, new, TypedSpan(width, 64 * width))
            assert frame[0] == FrameKind.SPARSE
            assert made(frame, base) == new


def test_special_floats_round_trip_bitwise() -> None:
    odd = [0x7F80, 0xFF80, 0x7FC0, 0x7FC1, 0xFFFF, 0x7FFF, 0x0001, 0x8001]
    base, new = numbers(odd * 8, 2), numbers(odd[::-1] * 8, 2)
    assert made(encoded(base, new, TypedSpan(2, 128)), base) == new


def test_one_per_cent_of_steps_to_a_neighbour_takes_less_than_twelve_bits_each() -> None:
    rng = np.random.default_rng(7)
    base = rng.integers(0, 1 << 16, 1 << 20, np.uint16)
    new = base.copy()
    places = rng.choice(len(base), len(base) // 100, replace=False)
    new[places] += rng.choice(np.array([1, 0xFFFF], np.uint16), len(places))
    frame = encoded(base.tobytes(), new.tobytes(), TypedSpan(2, base.nbytes))
    assert made(frame, base.tobytes()) == new.tobytes()
    assert len(frame) * 8 < 12 * len(places)


def test_spans_of_several_widths_lie_side_by_side() -> None:
    rng = random.Random(3)
    base = rng.randbytes(7 + 2 * 100 + 4 * 50 + 8 * 10)
    new = bytearray(base)
    new[3] ^= 1
    new[7 + 2 * 60] ^= 0x80
    new[7 + 200 + 4 * 20 + 3] ^= 0x80
    spans = (TypedSpan(1, 7), TypedSpan(2, 200), TypedSpan(4, 200), TypedSpan(8, 80))
    frame = encoded(base, bytes(new), *spans)
    assert made(frame, base) == new
    assert len(frame) < 150


def test_more_spans_than_a_frame_may_have_are_taken_as_bytes() -> None:
    count = MAX_SEGMENTS + 1
    base, new = bytes(2 * count), bytes([1, 0] * count)
    frame = encoded(base, new, *[TypedSpan(2, 2)] * count)
    assert struct.unpack_from("<BBI", frame)[1:] == (1, 2 * count)
    assert made(frame, base) == new


def test_an_empty_shard_has_an_empty_frame() -> None:
    assert encoded(b"", b"") == b""
    assert made(b"", b"") == b""


# Properties


@st.composite
def shards(draw: st.DrawFn) -> tuple[bytes | None, bytes, list[TypedSpan]]:
    """Draw a base, or none, what became of it, and how both are laid out."""
    layout = draw(st.lists(st.tuples(st.sampled_from(WIDTHS), st.integers(1, 40)), max_size=5))
    spans = [TypedSpan(width, width * count) for width, count in layout]
    size = sum(span.size for span in spans)
    base = draw(st.none() | st.binary(min_size=size, max_size=size))
    if base is None or draw(st.booleans()):
        return base, draw(st.binary(min_size=size, max_size=size)), spans
    new = bytearray(base)
    for place in draw(st.lists(st.integers(0, max(0, size - 1)), max_size=4)) if size else []:
        new[place] = draw(st.integers(0, 255))
    return base, bytes(new), spans


@given(shards())
@settings(max_examples=up_to(150), deadline=None)
def test_every_shard_comes_back(case: tuple[bytes | None, bytes, list[TypedSpan]]) -> None:
    base, new, spans = case
    frame = encoded(base, new, *spans)
    assert len(frame) <= max_frame_bytes(len(new))
    assert made(frame, base if base is not None else bytes(len(new))) == new


@given(shards(), st.data())
@settings(max_examples=up_to(150), deadline=None)
def test_a_damaged_frame_is_refused_or_gives_a_shard_of_the_same_size(case: tuple, data: st.DataObject) -> None:
    base, new, spans = case
    frame = bytearray(encoded(base, new, *spans))
    if frame:
        frame[data.draw(st.integers(0, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    shard = bytearray(len(new))
    with suppress(MalformedError):
        apply(bytes(frame), shard)
    assert len(shard) == len(new)


@given(shards())
@settings(max_examples=50, deadline=None)
def test_no_part_of_a_frame_is_a_frame(case: tuple) -> None:
    base, new, spans = case
    frame = encoded(base, new, *spans)
    for cut in range(len(frame)):
        with pytest.raises(MalformedError, match="the frame ends"):
            apply(frame[:cut], bytearray(len(new)))


# Hostile frames


def zstd(data: bytes) -> bytes:
    return pyarrow.Codec("zstd").compress(data, asbytes=True)


NOTHING = b""
HOSTILE = {
    "an unknown kind": segment(4, 1, 64),
    "an unknown width": segment(0, 3, 63),
    "no width": segment(0, 0, 64),
    "no bytes": segment(0, 1, 0) * 300,
    "half a number": segment(0, 2, 63),
    "more than the shard": segment(0, 1, 65),
    "very much more": segment(3, 8, 0xFFFFFFF8, *[NOTHING] * 8),
    "something behind": segment(0, 1, 64) + b"x",
    "less than the shard": segment(0, 1, 63),
    "no change": segment(1, 1, 64, *[NOTHING] * 5, count=0),
    "more changes than allowed": segment(1, 1, 64, *[NOTHING] * 5, count=9),
    "four thousand million changes": segment(1, 1, 64, *[NOTHING] * 5, count=0xFFFFFFFF),
    "a place behind the end": segment(1, 1, 64, b"\x40", *[NOTHING] * 3, b"\x01", count=1),
    "places whose sum is too large": segment(1, 1, 64, b"\x3f\x00", *[NOTHING] * 3, b"\x01\x01", count=2),
    "places that wrap around": segment(1, 1, 64, *[b"\xff\xff"] * 4, b"\x01\x01", count=2),
    "a plane that is longer than plain": segment(2, 1, 64, bytes(65)),
    "a plane that is no zstd": segment(2, 1, 64, b"\x01" * 20),
    "a plane of too few bytes": segment(2, 1, 64, zstd(b"\x01" * 63)),
    "a plane of too many bytes": segment(2, 1, 64, zstd(b"\x01" * 65)),
    "two planes in one": segment(2, 1, 64, zstd(b"\x01" * 32) * 2 + b"x"),
    "an endless length": struct.pack("<BBII", 2, 1, 64, 0xFFFFFFFF),
}


@pytest.mark.parametrize("frame", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_frame_is_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedError):
        apply(frame, bytearray(64))


def test_many_tiny_segments_are_refused() -> None:
    assert made(segment(0, 1, 1) * MAX_SEGMENTS, bytes(MAX_SEGMENTS)) == bytes(MAX_SEGMENTS)
    with pytest.raises(MalformedError):
        apply(segment(0, 1, 1) * (MAX_SEGMENTS + 1), bytearray(MAX_SEGMENTS + 1))


def test_a_bomb_takes_no_more_memory_than_its_shard() -> None:
    size = 1 << 20
    bomb = zstd(bytes(1 << 28))
    assert len(bomb) < 1 << 16
    shard = bytearray(size)
    held = pyarrow.total_allocated_bytes()
    tracemalloc.start()
    try:
        with pytest.raises(MalformedError):
            apply(segment(2, 1, size, bomb), shard)
        assert tracemalloc.get_traced_memory()[1] < 4 * size
    finally:
        tracemalloc.stop()
    assert pyarrow.total_allocated_bytes() - held < 2 * size
