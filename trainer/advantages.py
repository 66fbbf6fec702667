"""Advantages of a group of rollouts, computed by the trainer from validated rewards and never by a worker.

The task part and the length part are kept apart: a group is dropped when its *task* rewards are all equal, however
much its lengths differ, and only the task part is divided by its own standard deviation, so that noise in lengths is
never blown up to the size of the task.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.constants import MICRO
from muster.tasks import LENGTH_ALPHA


@dataclass(frozen=True)
class AdvantageTerms:
    length_weight: float = 0.5
    """Advantage per relative distance from the budget: with 0.5, missing the budget by all of it costs 0.5."""
    scale_by_std: bool = True
    """Divide the task part by the group's standard deviation, as GRPO does."""
    std_floor: float = 1e-6


def teaches(task_rewards: np.ndarray) -> bool:
    """Whether a group's task rewards (int64 micro [samples]) differ: one that all or none solved teaches nothing."""
    return bool(task_rewards.min() != task_rewards.max())


def group_advantages(task_rewards: np.ndarray, length_rewards: np.ndarray, terms: AdvantageTerms) -> np.ndarray:
    """float32 [samples] from a group's rewards, int64 micro [samples] each.

    task part: (r − mean) / (std + floor), population standard deviation, r in units of a full task reward;
    length part: length_weight · (l − mean), l = −|length − budget| / budget.
    """
    task = task_rewards.astype(np.float64) / MICRO
    task -= task.mean()
    if terms.scale_by_std:
        task /= task.std() + terms.std_floor
    length = length_rewards.astype(np.float64) / LENGTH_ALPHA
    length = terms.length_weight * (length - length.mean())
    return (task + length).astype(np.float32)
