"""Rollouts made by hand, and Parquet files that `write_rollouts` would never write."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from muster.rollouts.schema import METADATA, SCHEMA, Rollout, one_span


def make_row(position: int = 0, length: int = 5) -> Rollout:
    rng = np.random.default_rng(position)
    return Rollout(
        run=1,
        step=3,
        position=position,
        group=position // 4,
        sample=position % 4,
        task=1 << 40,
        seed=(1 << 63) - 1 - position,
        budget=16,
        prompt_tokens=rng.integers(0, 99, 7).astype(np.int32),
        completion_tokens=rng.integers(0, 99, length).astype(np.int32),
        spans=one_span(length),
        logprobs=-rng.random(length).astype(np.float32),
        task_reward=1_000_000,
        parts=np.array([1_000_000], np.int64),
        fuel=0,
        length_reward=-12_345,
        finish_reason="stop",
        proof=rng.bytes(8 * length),
    )


def table_of(rows: list[Rollout], schema: pa.Schema = SCHEMA) -> pa.Table:
    columns = {name: [getattr(row, name) for row in rows] for name in schema.names if hasattr(rows[0], name)}
    return pa.table({name: columns.get(name, [0] * len(rows)) for name in schema.names}, schema=schema)


def parquet(table: pa.Table, **options) -> bytes:
    sink = pa.BufferOutputStream()
    rows, metadata = options.pop("row_group_size", None), options.pop("metadata", METADATA)
    with pq.ParquetWriter(sink, table.schema, **({"compression": "zstd", "store_schema": False} | options)) as writer:
        writer.write_table(table, row_group_size=rows)
        writer.add_key_value_metadata(metadata)
    return sink.getvalue().to_pybytes()
