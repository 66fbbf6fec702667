"""Files of accepted work with the rewards that a test wants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from muster.rollouts.schema import Rollout, one_span
from trainer.batches import FileRef, WorkFile

NODE = "0x00000000000000000000000000000000000000A1"


def rollout(position: int, reward: int, *, step: int, length: int = 4, group_size: int = 2) -> Rollout:
    group, sample = divmod(position, group_size)
    return Rollout(
        run=1,
        step=step,
        position=position,
        group=group,
        sample=sample,
        task=7,
        seed=position,
        budget=4,
        prompt_tokens=np.arange(3, dtype=np.int32),
        completion_tokens=np.arange(length, dtype=np.int32),
        spans=one_span(length),
        logprobs=np.full(length, -0.5, dtype=np.float32),
        task_reward=reward * 1_000_000,
        parts=np.array([reward * 1_000_000], np.int64),
        fuel=0,
        length_reward=-abs(length - 4) * 250_000,
        finish_reason="stop",
        proof=b"",
    )


def work_file(rewards: Sequence[int], *, step: int = 5, index: int = 0) -> WorkFile:
    name = f"0x{index:064x}"
    rows = tuple(rollout(position, reward, step=step) for position, reward in enumerate(rewards))
    return WorkFile(FileRef(step, NODE, index, name, name), rows)
