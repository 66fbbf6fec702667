"""The rollout file: it round-trips bit for bit, and every deviation is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.errors import MalformedError
from muster.rollouts.leaves import rollout_tree, row_hash
from muster.rollouts.parquet import Columns, FileLimits, read_columns, read_rollouts, write_rollouts
from muster.rollouts.schema import SCHEMA, Rollout
from testbed.samples.rollouts import make_row, parquet, table_of

LIMITS = FileLimits(rows=16, decoded_bytes=1 << 20)


def assert_same(left: Rollout, right: Rollout) -> None:
    assert row_hash(left) == row_hash(right)
    assert (left.spans.dtype, left.parts.dtype, left.fuel) == (np.int32, np.int64, right.fuel)
    assert left.prompt_tokens.dtype == right.prompt_tokens.dtype == np.int32
    assert left.logprobs.dtype == np.float32
    assert left.finish_reason == right.finish_reason


def test_rollouts_round_trip() -> None:
    rows = [make_row(p, length=p) for p in range(12)]
    data = write_rollouts(rows)
    back = read_rollouts(data, LIMITS)
    assert rollout_tree(back).root == rollout_tree(rows).root
    for left, right in zip(rows, back, strict=True):
        assert_same(left, right)


def test_bits_of_odd_floats_survive() -> None:
    odd = np.array([np.nan, -np.inf, -0.0, np.float32(1e-45)], dtype=np.float32)
    row = replace(make_row(length=4), logprobs=odd)
    assert read_rollouts(write_rollouts([row]), LIMITS)[0].logprobs.tobytes() == odd.tobytes()


@settings(deadline=None)
@given(
    st.lists(
        st.builds(
            Rollout,
            run=st.integers(0, 2**32 - 1),
            step=st.integers(0, 2**32 - 1),
            position=st.integers(0, 2**32 - 1),
            group=st.integers(0, 2**32 - 1),
            sample=st.integers(0, 2**32 - 1),
            task=st.integers(0, 2**64 - 1),
            seed=st.integers(0, 2**64 - 1),
            budget=st.integers(0, 2**16 - 1),
            prompt_tokens=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=9).map(lambda t: np.array(t, np.int32)),
            completion_tokens=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=9).map(
                lambda t: np.array(t, np.int32)
            ),
            spans=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3).map(lambda t: np.array(t, np.int32)),
            logprobs=st.lists(st.floats(width=32), max_size=9).map(lambda t: np.array(t, np.float32)),
            task_reward=st.integers(-(2**63), 2**63 - 1),
            parts=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3).map(lambda t: np.array(t, np.int64)),
            length_reward=st.integers(-(2**63), 2**63 - 1),
            fuel=st.integers(0, 2**64 - 1),
            finish_reason=st.sampled_from(["stop", "length"]),
            proof=st.binary(max_size=40),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_rollouts_survive_file_and_packing(rows: list[Rollout]) -> None:
    hashes = [row_hash(row) for row in rows]
    columns = read_columns(write_rollouts(rows), LIMITS)
    assert [row_hash(row) for row in columns.rollouts()] == hashes
    assert [row_hash(row) for row in Columns.unpack(columns.pack()).rollouts()] == hashes


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_unpacking_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(MalformedError):
        Columns.unpack(noise)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_unpacking_never_escapes_its_bytes(place: int, flip: int) -> None:
    packed = bytearray(read_columns(write_rollouts([make_row(p) for p in range(3)]), FileLimits()).pack())
    packed[place % len(packed)] ^= flip
    try:
        rows = Columns.unpack(bytes(packed)).rollouts()
    except MalformedError:
        return
    assert len(rows) == 3
    assert sum(len(row.proof) for row in rows) == 3 * 5 * 8


def test_a_truncated_file_is_refused() -> None:
    data = write_rollouts([make_row(p) for p in range(4)])
    for end in (0, 3, len(data) // 2, len(data) - 9, len(data) - 1):
        with pytest.raises(MalformedError):
            read_rollouts(data[:end], LIMITS)


def with_field(name: str, field: pa.Field | None) -> pa.Schema:
    fields = [field if f.name == name else f for f in SCHEMA]
    return pa.schema([f for f in fields if f is not None])


@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA.append(pa.field("extra", pa.int32(), nullable=False)),
        with_field("proof", None),
        with_field("budget", pa.field("budget", pa.uint32(), nullable=False)),
        with_field("step", pa.field("step", pa.uint32(), nullable=True)),
        with_field("proof", pa.field("proof", pa.string(), nullable=False)),
        with_field(
            "logprobs", pa.field("logprobs", pa.list_(pa.field("item", pa.float64(), nullable=False)), nullable=False)
        ),
        with_field("logprobs", pa.field("logprobs", pa.list_(pa.float32()), nullable=False)),
        pa.schema(list(SCHEMA)[::-1]),
    ],
    ids=["extra", "missing", "wider", "nullable", "string", "doubles", "nullable items", "order"],
)
def test_another_schema_is_refused(schema: pa.Schema) -> None:
    rows = [replace(make_row(), proof=b"")]
    with pytest.raises(MalformedError, match="columns are not those"):
        read_rollouts(parquet(table_of(rows, schema)), LIMITS)


def test_nulls_are_refused() -> None:
    schema = with_field("task_reward", pa.field("task_reward", pa.int64(), nullable=True))
    table = table_of([make_row()], schema).set_column(11, schema.field("task_reward"), pa.array([None], pa.int64()))
    with pytest.raises(MalformedError, match="columns are not those"):
        read_rollouts(parquet(table), LIMITS)


def test_a_stored_arrow_schema_is_refused() -> None:
    with pytest.raises(MalformedError, match="none of version"):
        read_rollouts(parquet(table_of([make_row()]), store_schema=True), LIMITS)


def test_an_unknown_finish_reason_is_refused() -> None:
    table = table_of([replace(make_row(), finish_reason="because")])
    with pytest.raises(MalformedError, match="'because' is none of stop, length"):
        read_rollouts(parquet(table), LIMITS)


@pytest.mark.parametrize("rows", [0, 17])
def test_the_number_of_rows_is_bounded(rows: int) -> None:
    table = table_of([make_row(p) for p in range(max(rows, 1))]).slice(0, rows)
    with pytest.raises(MalformedError, match="1 to 16 in one group"):
        read_rollouts(parquet(table), LIMITS)


def test_one_row_group_only() -> None:
    table = table_of([make_row(p) for p in range(4)])
    with pytest.raises(MalformedError, match="4 rows in 2 row groups"):
        read_rollouts(parquet(table, row_group_size=2), LIMITS)


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "lz4", {"seed": "snappy"}])
def test_zstd_only(codec: str | dict[str, str]) -> None:
    """Every machine must accept the same files."""
    zstd = dict.fromkeys((field.name for field in SCHEMA), "zstd")
    compression = zstd | codec if isinstance(codec, dict) else codec
    with pytest.raises(MalformedError, match="not by zstd alone"):
        read_rollouts(parquet(table_of([make_row()]), compression=compression), LIMITS)


def test_a_high_compression_ratio_is_refused_by_what_it_declares() -> None:
    data = parquet(table_of([replace(make_row(), proof=bytes(2 << 20))]))
    assert len(data) < 10_000
    with pytest.raises(MalformedError, match=r"declares 2.* decompressed bytes; at most 1048576"):
        read_rollouts(data, LIMITS)


def test_a_dictionary_bomb_is_refused_by_what_it_decodes_to() -> None:
    """Every row refers to one large value: the file looks small until it is decoded."""
    rows = [replace(make_row(p), proof=bytes(900_000)) for p in range(16)]
    data = parquet(table_of(rows), use_dictionary=True, dictionary_pagesize_limit=1 << 22)
    with pytest.raises(MalformedError, match=r"decodes to 14.* bytes; at most 1048576"):
        read_rollouts(data, LIMITS)
