"""Advantages of a group of rollouts, computed by the trainer from validated rewards and never by a worker.

By default the task part and the length part are kept apart: a group is dropped when its *task* rewards are all equal,
however much its lengths differ, and each part is divided by its own standard deviation or not at all, so that noise in
lengths is never blown up to the size of the task. INTELLECT-2 added the parts first, which did both;
`add_rewards_first` does it their way, with the one difference that groups are still dropped by their task rewards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from muster.constants import MICRO
from muster.recipes import LengthUnit
from muster.rollouts.schema import Rollout


@dataclass(frozen=True)
class AdvantageTerms:
    length_weight: float = 0.5
    """What missing the budget costs, in full task rewards: per budget missed, or per token, as `length_unit` says."""
    length_unit: LengthUnit = "budget"
    scale_by_std: bool = True
    """Divide the task part by the group's standard deviation, as GRPO does."""
    scale_length_by_std: bool = False
    """The same for the length part."""
    add_rewards_first: bool = False
    """Add the parts first, and scale the sum: INTELLECT-2's way."""
    std_floor: float = 1e-6
    sample_std: bool = False
    """Divide by n − 1 rather than n in the variance, as torch and TRL do."""


def task_rewards(group: Sequence[Rollout]) -> np.ndarray:
    """int64 micro [samples]"""
    return np.asarray([rollout.task_reward for rollout in group], dtype=np.int64)


def length_parts(group: Sequence[Rollout], unit: LengthUnit) -> np.ndarray:
    """float64 [samples]: −|length − budget|, in budgets or in tokens; lengths count the end of sequence."""
    lengths = np.asarray([len(rollout.completion_tokens) for rollout in group], dtype=np.float64)
    budgets = np.asarray([rollout.budget for rollout in group], dtype=np.float64)
    return -np.abs(lengths - budgets) / (budgets if unit == "budget" else 1.0)


def teaches(task_rewards: np.ndarray) -> bool:
    """Whether a group's task rewards (int64 micro [samples]) differ: one that all or none solved teaches nothing."""
    return bool(task_rewards.min() != task_rewards.max())


def group_advantages(task_rewards: np.ndarray, lengths: np.ndarray, terms: AdvantageTerms) -> np.ndarray:
    """float32 [samples] from a group's task rewards, int64 micro [samples], and length parts, float64 [samples].

    apart:    scaled(r − mean r) + scaled(w · (l − mean l)), each with its own standard deviation, if any
    together: scaled(r + w · l − mean), with that of the sum
    where scaled(x) is x / (std(x) + floor), or x where the terms do not scale; r in units of a full task reward.
    """
    task = task_rewards.astype(np.float64) / MICRO
    length = terms.length_weight * lengths.astype(np.float64)
    if terms.add_rewards_first:
        return _centred(task + length, terms, scale=terms.scale_by_std).astype(np.float32)
    parts = _centred(task, terms, scale=terms.scale_by_std) + _centred(length, terms, scale=terms.scale_length_by_std)
    return parts.astype(np.float32)


def _centred(values: np.ndarray, terms: AdvantageTerms, *, scale: bool) -> np.ndarray:
    centred = values - values.mean()
    if scale:
        centred /= values.std(ddof=1 if terms.sample_std else 0) + terms.std_floor
    return centred
