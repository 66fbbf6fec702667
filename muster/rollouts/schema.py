"""The rollout: one completion with everything needed to check, train on and pay for it.

A commitment's rollouts travel as one Parquet file (`muster.rollouts.parquet`), are committed to by one Merkle root
over their leaves (`muster.rollouts.leaves`), and are never trusted before `validator` has inspected them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

FINISH_REASONS = ("stop", "length")
"""`stop`: the last completion token is EOS. `length`: the completion has as many tokens as the limit allows."""

SCHEMA = pa.schema(
    [
        pa.field("run", pa.uint32(), nullable=False),
        pa.field("step", pa.uint32(), nullable=False),
        pa.field("position", pa.uint32(), nullable=False),
        pa.field("group", pa.uint32(), nullable=False),
        pa.field("sample", pa.uint32(), nullable=False),
        pa.field("task", pa.uint64(), nullable=False),
        pa.field("seed", pa.uint64(), nullable=False),
        pa.field("budget", pa.uint16(), nullable=False),
        pa.field("prompt_tokens", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        pa.field("completion_tokens", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        pa.field("logprobs", pa.list_(pa.field("item", pa.float32(), nullable=False)), nullable=False),
        pa.field("task_reward", pa.int64(), nullable=False),
        pa.field("length_reward", pa.int64(), nullable=False),
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("proof", pa.binary(), nullable=False),
    ]
)
"""Exactly these columns, in this order. Changing this breaks every leaf's row hash."""


@dataclass(frozen=True, eq=False)
class Rollout:
    """One row. Rewards are signed integers in millionths (constants.MICRO)."""

    run: int
    step: int
    """Policy step: the checkpoint that generated this."""
    position: int
    group: int
    sample: int
    task: int
    seed: int
    budget: int
    prompt_tokens: np.ndarray
    """int32 [prompt length]"""
    completion_tokens: np.ndarray
    """int32 [completion length], EOS included when the finish reason is `stop`"""
    logprobs: np.ndarray
    """float32 [completion length]: log-probability of each token under softmax(logits / temperature)"""
    task_reward: int
    length_reward: int
    finish_reason: str
    proof: bytes
    """Activation proof over the states that the completion tokens came from, see `muster.proofs`."""

    @property
    def nbytes(self) -> int:
        """Return the bytes of the columns whose length varies."""
        return self.prompt_tokens.nbytes + self.completion_tokens.nbytes + self.logprobs.nbytes + len(self.proof)
