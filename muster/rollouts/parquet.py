"""The rollout file: Parquet, zstd, exactly `schema.SCHEMA`, one row group, one row per position.

A file with a row of more than one span has exactly `schema.TURNS_SCHEMA` instead.

`write_rollouts` and `read_rollouts` are the format. `read_rollouts` is strict, but Parquet is a large C++ parser:
bytes from a stranger go through `muster.rollouts.reader`, which runs it in a process with limits.

`Columns` is the form between the two: numpy arrays, and a packed form that is safe to read even from an attacker: fixed
widths, lengths that must add up, nothing to parse. In that form rows leave the process with limits.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from muster.constants import MAX_FILE_BYTES
from muster.errors import MalformedError
from muster.protocol.terms import Terms
from muster.rollouts.schema import FINISH_REASONS, METADATA, SCHEMA, TURNS_SCHEMA, VERSION, Rollout

FIXED: Final = np.dtype(
    [(field.name, field.type.to_pandas_dtype()) for field in SCHEMA if pa.types.is_integer(field.type)]
    + [("finish_reason", np.uint8)]
).newbyteorder("<")
"""Columns of one width; `finish_reason` is an index into FINISH_REASONS."""

RAGGED: Final = {
    "prompt_tokens": "<i4",
    "completion_tokens": "<i4",
    "spans": "<i4",
    "logprobs": "<f4",
    "parts": "<i8",
    "proof": "u1",
    "call_fuel": "<u8",
}
"""Columns of a varying length per row, with the type of one element."""

PROOF_BYTES_PER_TOKEN: Final = 16
"""Most bytes of activation proof per completion token that a reader makes room for; ours take 8."""

ROW_OVERHEAD: Final = 4096
_MAGIC: Final = b"MRO2"
_HEADER: Final = struct.Struct(f"<4sI{len(RAGGED)}Q")
_THRIFT_STRINGS: Final = 1 << 20
_THRIFT_ITEMS: Final = 1 << 16


@dataclass(frozen=True)
class FileLimits:
    """What a reader makes room for. A file beyond it is malformed, however well it compresses."""

    rows: int = 1 << 16
    decoded_bytes: int = 1 << 30
    """Bytes of all columns together, decompressed and decoded."""

    @classmethod
    def from_terms(cls, terms: Terms, rows: int | None = None) -> FileLimits:
        """Make room for twice what a run's terms allow: a row somewhat beyond them is read, and named by a check.

        rows: how many; those of a commitment where nothing else is said.
        """
        rows = terms.positions if rows is None else rows
        row = 4 * terms.max_prompt_tokens + (8 + PROOF_BYTES_PER_TOKEN) * terms.max_completion_tokens
        return cls(rows=rows, decoded_bytes=2 * rows * (row + ROW_OVERHEAD))


@dataclass(frozen=True, eq=False)
class Columns:
    """Rollouts by column: `fixed` is FIXED [rows]; per ragged column the row lengths (int64 [rows]) and all values."""

    fixed: np.ndarray
    lengths: dict[str, np.ndarray]
    values: dict[str, np.ndarray]

    def pack(self) -> bytes:
        """Return bytes that `unpack` reads."""
        header = _HEADER.pack(_MAGIC, len(self.fixed), *(len(self.values[name]) for name in RAGGED))
        lengths = [self.lengths[name].astype("<u4").tobytes() for name in RAGGED]
        return b"".join([header, self.fixed.tobytes(), *lengths, *(self.values[name].tobytes() for name in RAGGED)])

    @classmethod
    def unpack(cls, data: bytes) -> Columns:
        """Unpack what `pack` packs. Total on hostile bytes: it costs no more than their length.

        Raises MalformedError when the lengths do not add up.
        """
        if len(data) < _HEADER.size:
            raise MalformedError("packed rollouts: no header")
        magic, rows, *counts = _HEADER.unpack_from(data)
        sizes = [rows * FIXED.itemsize, *[4 * rows] * len(RAGGED)]
        sizes += [count * np.dtype(kind).itemsize for count, kind in zip(counts, RAGGED.values(), strict=True)]
        if magic != _MAGIC or _HEADER.size + sum(sizes) != len(data):
            raise MalformedError("packed rollouts: the header does not fit the length")
        ends = _HEADER.size + np.cumsum([0, *sizes])
        places = [memoryview(data)[a:b] for a, b in itertools.pairwise(ends)]
        fixed = np.frombuffer(places[0], FIXED)
        lengths = {
            name: np.frombuffer(part, "<u4").astype(np.int64)
            for name, part in zip(RAGGED, places[1 : 1 + len(RAGGED)], strict=True)
        }
        values = {
            name: np.frombuffer(part, RAGGED[name])
            for name, part in zip(RAGGED, places[1 + len(RAGGED) :], strict=True)
        }
        if any(int(lengths[name].sum()) != len(values[name]) for name in RAGGED):
            raise MalformedError("packed rollouts: row lengths do not add up")
        if rows and fixed["finish_reason"].max() >= len(FINISH_REASONS):
            raise MalformedError("packed rollouts: unknown finish reason")
        return cls(fixed, lengths, values)

    def rollouts(self) -> list[Rollout]:
        """Return one Rollout per row; their arrays are views."""
        ends = {name: np.concatenate([[0], np.cumsum(self.lengths[name])]).tolist() for name in RAGGED}

        def cell(name: str, i: int) -> np.ndarray:
            return self.values[name][ends[name][i] : ends[name][i + 1]]

        names = FIXED.names or ()
        return [
            Rollout(
                **dict(zip(names[:-1], row[:-1], strict=True)),
                finish_reason=FINISH_REASONS[row[-1]],
                prompt_tokens=cell("prompt_tokens", i),
                completion_tokens=cell("completion_tokens", i),
                spans=cell("spans", i),
                logprobs=cell("logprobs", i),
                parts=cell("parts", i),
                proof=cell("proof", i).tobytes(),
                call_fuel=cell("call_fuel", i),
            )
            for i, row in enumerate(self.fixed.tolist())
        ]


def write_rollouts(rollouts: Sequence[Rollout]) -> bytes:
    """Write the file of a commitment's rollouts, in the order given.

    Raises OverflowError or pyarrow's ArrowException for values that the schema cannot hold.
    """
    schema = TURNS_SCHEMA if any(len(rollout.spans) > 1 for rollout in rollouts) else SCHEMA
    arrays = [pa.array([getattr(rollout, field.name) for rollout in rollouts], field.type) for field in schema]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, schema, compression="zstd", use_dictionary=False, write_statistics=False, store_schema=False
    ) as writer:
        table = pa.Table.from_arrays(arrays, schema=schema)
        writer.write_table(table, row_group_size=max(1, len(rollouts)))
        writer.add_key_value_metadata(METADATA)
    return sink.getvalue().to_pybytes()


def read_columns(data: bytes, limits: FileLimits) -> Columns:
    """Parse a file strictly: schema, zstd, one row group, 1 to `limits.rows` rows, no nulls, decoded size.

    Raises MalformedError. Memory and time are bounded only as far as Arrow is well-behaved, see the module's docstring.
    """
    if len(data) > MAX_FILE_BYTES:
        raise MalformedError(f"the file has {len(data)} bytes; at most {MAX_FILE_BYTES}")
    try:
        with pq.ParquetFile(
            pa.BufferReader(data),
            pre_buffer=False,
            thrift_string_size_limit=_THRIFT_STRINGS,
            thrift_container_size_limit=_THRIFT_ITEMS,
            arrow_extensions_enabled=False,
        ) as file:
            _check_metadata(file, limits)
            table = file.read(use_threads=False).combine_chunks()
        table.validate(full=True)
        return _columns_of_table(table, limits)
    except (pa.ArrowException, OSError, ValueError, OverflowError, UnicodeDecodeError) as error:
        raise MalformedError(f"not a rollout file: {str(error)[:300]}") from error


def read_rollouts(data: bytes, limits: FileLimits | None = None) -> list[Rollout]:
    """Read a file that has been inspected, or that this machine wrote. Raises MalformedError."""
    return read_columns(data, limits or FileLimits()).rollouts()


def _check_metadata(file: pq.ParquetFile, limits: FileLimits) -> None:
    metadata = file.metadata
    if metadata.metadata != METADATA:
        raise MalformedError(f"the file is none of version {VERSION}: its metadata is {str(metadata.metadata)[:80]}")
    if not (file.schema_arrow.equals(SCHEMA) or file.schema_arrow.equals(TURNS_SCHEMA)):
        raise MalformedError("the file's columns are not those of muster.rollouts.schema")
    if metadata.num_row_groups != 1 or not 1 <= metadata.num_rows <= limits.rows:
        raise MalformedError(
            f"the file has {metadata.num_rows} rows in {metadata.num_row_groups} row groups; "
            f"1 to {limits.rows} in one group are read"
        )
    group = metadata.row_group(0)
    codecs = {group.column(i).compression for i in range(group.num_columns)}
    if codecs != {"ZSTD"}:  # what else a machine's Arrow can decompress depends on how it was built
        raise MalformedError(f"the file is compressed by {', '.join(sorted(codecs))}, not by zstd alone")
    values = max(group.column(i).num_values for i in range(group.num_columns))
    if values > limits.decoded_bytes:
        raise MalformedError(f"the file declares {values} values in a column; at most {limits.decoded_bytes}")
    declared = group.total_byte_size
    if not 0 <= declared <= limits.decoded_bytes:
        raise MalformedError(f"the file declares {declared} decompressed bytes; at most {limits.decoded_bytes}")


def _columns_of_table(table: pa.Table, limits: FileLimits) -> Columns:
    if table.nbytes > limits.decoded_bytes:
        raise MalformedError(f"the file decodes to {table.nbytes} bytes; at most {limits.decoded_bytes}")
    rows = table.num_rows
    fixed = np.zeros(rows, FIXED)
    lengths: dict[str, np.ndarray] = {}
    values: dict[str, np.ndarray] = {}
    for field in table.schema:
        column = table.column(field.name).combine_chunks()
        if column.null_count:
            raise MalformedError(f"column {field.name} has nulls")
        if field.name == "finish_reason":
            fixed[field.name] = _finish_codes(column.to_pylist())
        elif field.name == "proof":
            _, offsets, data = column.buffers()
            bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + rows + 1].astype(np.int64)
            lengths["proof"] = np.diff(bounds)
            values["proof"] = np.frombuffer(data or b"", np.uint8)[bounds[0] : bounds[-1]]
        elif field.name in RAGGED:
            flat = column.flatten()
            if flat.null_count:
                raise MalformedError(f"column {field.name} has nulls in its lists")
            lengths[field.name] = np.diff(column.offsets.to_numpy()).astype(np.int64)
            values[field.name] = flat.to_numpy(zero_copy_only=False).astype(RAGGED[field.name], copy=False)
        else:
            fixed[field.name] = column.to_numpy(zero_copy_only=False)
    _add_calls(lengths, values)
    return Columns(fixed, lengths, values)


def _add_calls(lengths: dict[str, np.ndarray], values: dict[str, np.ndarray]) -> None:
    """Add the column of calls where the file has none. Raises MalformedError for fuel that no row hash binds."""
    has_given = lengths["spans"] > 1
    if "call_fuel" not in lengths:
        lengths["call_fuel"] = np.zeros(len(has_given), np.int64)
        values["call_fuel"] = np.zeros(0, np.uint64)
        if has_given.any():
            raise MalformedError("a row has several spans, and the file no column for the fuel of calls")
    elif not has_given.any() or lengths["call_fuel"][~has_given].any():
        raise MalformedError("the file has fuel of calls for rows in which nothing was given")


def _finish_codes(reasons: list[str]) -> list[int]:
    codes = {reason: i for i, reason in enumerate(FINISH_REASONS)}
    unknown = next((reason for reason in reasons if reason not in codes), None)
    if unknown is not None:
        raise MalformedError(f"finish reason {unknown[:40]!r} is none of {', '.join(FINISH_REASONS)}")
    return [codes[reason] for reason in reasons]
