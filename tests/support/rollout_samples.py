"""Rollouts made by hand, and Parquet files that `write_rollouts` would never write."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from muster.rollouts.schema import SCHEMA, Rollout


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
        logprobs=-rng.random(length).astype(np.float32),
        task_reward=1_000_000,
        length_reward=-12_345,
        finish_reason="stop",
        proof=rng.bytes(8 * length),
    )


def table_of(rows: list[Rollout], schema: pa.Schema = SCHEMA) -> pa.Table:
    columns = {name: [getattr(row, name) for row in rows] for name in schema.names if hasattr(rows[0], name)}
    return pa.table({name: columns.get(name, [0] * len(rows)) for name in schema.names}, schema=schema)


def parquet(table: pa.Table, **options) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **({"compression": "zstd", "store_schema": False} | options))
    return sink.getvalue().to_pybytes()
