"""The rollout: one completion with everything needed to check, train on and pay for it.

A commitment's rollouts travel as one Parquet file (`muster.rollouts.parquet`), are committed to by one Merkle root
over their leaves (`muster.rollouts.leaves`), and are never trusted before `validator` has inspected them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

FINISH_REASONS = ("stop", "length")
"""`stop`: the last completion token is EOS. `length`: the completion, or its last turn, has as many tokens as a limit
allows."""

VERSION: Final = 2
"""Of the file and of a row's hash; a file says it in its metadata. Changing this refuses all older files."""

METADATA: Final = {b"muster.rollouts": str(VERSION).encode()}
"""The file's key-value metadata: exactly this."""

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
        pa.field("spans", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        pa.field("logprobs", pa.list_(pa.field("item", pa.float32(), nullable=False)), nullable=False),
        pa.field("task_reward", pa.int64(), nullable=False),
        pa.field("parts", pa.list_(pa.field("item", pa.int64(), nullable=False)), nullable=False),
        pa.field("length_reward", pa.int64(), nullable=False),
        pa.field("fuel", pa.uint64(), nullable=False),
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("proof", pa.binary(), nullable=False),
    ]
)
"""Exactly these columns, in this order. Changing this breaks every leaf's row hash."""

TURNS_SCHEMA = SCHEMA.append(
    pa.field("call_fuel", pa.list_(pa.field("item", pa.uint64(), nullable=False)), nullable=False)
)
"""The columns of a file in which a row has given tokens."""


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
    spans: np.ndarray
    """int32 [spans]: the completion's stretches by the token index after each one's last. The policy sampled the first,
    the third and so on; those between were given to it, by tools. The last one ends the completion."""
    logprobs: np.ndarray
    """float32 [sampled tokens]: log-probability of each under softmax(logits / temperature)"""
    task_reward: int
    """The environment's score: the weighted sum of `parts`."""
    parts: np.ndarray
    """int64 [parts]: the score's parts in millionths, in the order of the environment's manifest."""
    length_reward: int
    fuel: int
    """What scoring used of the sandbox's fuel; 0 where it needed none."""
    finish_reason: str
    proof: bytes
    """Activation proof over the states that the sampled tokens came from, see `muster.proofs`."""
    call_fuel: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    """uint64 [calls]: what each call of a tool used of its fuel, in order. Empty where nothing was given."""

    @property
    def nbytes(self) -> int:
        """Return the bytes of the columns whose length varies."""
        return sum(
            column.nbytes
            for column in (
                self.prompt_tokens,
                self.completion_tokens,
                self.spans,
                self.logprobs,
                self.parts,
                self.call_fuel,
            )
        ) + len(self.proof)


def bare_row(prompt_tokens: np.ndarray, completion_tokens: np.ndarray, logprobs: np.ndarray, **columns: Any) -> Rollout:
    """Return a row that is no commitment's: it has no task and no reward, and one span unless `columns` say more."""
    plain: dict[str, Any] = dict.fromkeys(
        ("step", "position", "group", "sample", "task", "seed", "task_reward", "fuel", "length_reward"), 0
    )
    plain |= {"run": 1, "budget": 8, "finish_reason": "stop", "proof": b"", "parts": np.array([0], np.int64)}
    plain["spans"] = np.array([len(completion_tokens)], np.int32)
    plain |= {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "logprobs": logprobs}
    return Rollout(**plain | columns)
