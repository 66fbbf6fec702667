"""Rollouts made by hand, and Parquet files that `write_rollouts` would never write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike

from muster.constants import MICRO
from muster.environments.rewards import length_reward
from muster.rollouts.schema import METADATA, SCHEMA, Rollout
from muster.rollouts.spans import one_span

if TYPE_CHECKING:
    from muster.protocol.draws import Draw
    from muster.verification.rules import Rules


def rollout(position: int, completion: ArrayLike, *, group_size: int = 4, **columns: Any) -> Rollout:
    """Return a row with this completion, right and of the wanted length, with some columns changed."""
    tokens = np.asarray(completion, np.int32)
    reward = columns.get("task_reward", MICRO)
    usual: dict[str, Any] = {
        "run": 1,
        "step": 3,
        "position": position,
        "group": position // group_size,
        "sample": position % group_size,
        "task": 7,
        "seed": position,
        "budget": 16,
        "prompt_tokens": np.arange(3, dtype=np.int32),
        "completion_tokens": tokens,
        "spans": one_span(len(tokens)),
        "logprobs": np.full(len(tokens), -0.5, np.float32),
        "task_reward": reward,
        "parts": np.array([reward], np.int64),
        "fuel": 0,
        "length_reward": 0,
        "finish_reason": "stop",
        "proof": b"",
    }
    return Rollout(**(usual | columns))


def drawn_row(rules: Rules, draw: Draw, position: int, completion: ArrayLike, **columns: Any) -> Rollout:
    """Return a row with what its draw says, this completion, and some columns changed."""
    drawn = draw.groups[position // rules.terms.group_size]
    columns = {
        "run": rules.run,
        "task": drawn.task,
        "seed": draw.seeds[position],
        "budget": drawn.budget,
        "prompt_tokens": rules.prompt(drawn.task, drawn.budget),
        "length_reward": length_reward(drawn.budget, len(np.asarray(completion))),
        **columns,
    }
    return rollout(position, completion, group_size=rules.terms.group_size, **columns)


def make_row(position: int = 0, length: int = 5) -> Rollout:
    """Return a row with something else in every column."""
    rng = np.random.default_rng(position)
    return rollout(
        position,
        rng.integers(0, 99, length),
        task=1 << 40,
        seed=(1 << 63) - 1 - position,
        prompt_tokens=rng.integers(0, 99, 7).astype(np.int32),
        logprobs=-rng.random(length).astype(np.float32),
        length_reward=-12_345,
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
