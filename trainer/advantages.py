"""Compute the advantages of a group of rollouts, in the trainer, from validated rewards.

By default the task part and the length part are kept apart. A group is dropped when its *task* rewards are all equal,
however much its lengths differ. Each part is divided by its own standard deviation or not at all, so that noise in
lengths is never scaled up to the size of the task. INTELLECT-2 added the parts first, which has neither
protection; `add_rewards_first` does so too, but still drops groups by their task rewards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from muster.constants import MICRO
from muster.environments.rewards import LENGTH_ALPHA
from muster.rollouts.schema import Rollout
from muster.settings.recipes import LengthUnit


@dataclass(frozen=True)
class AdvantageTerms:
    length_weight: float = 0.5
    """Cost of missing the budget, in full task rewards: per budget missed, or per token, as `length_unit` says."""
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
    """Return the task rewards of a group: int64 micro [samples]."""
    return np.asarray([rollout.task_reward for rollout in group], dtype=np.int64)


def length_parts(group: Sequence[Rollout], unit: LengthUnit) -> np.ndarray:
    """Return −|length − budget| in budgets or in tokens: float64 [samples].

    It is read from the length reward, since only an environment's manifest says which tokens count. ⌊α·d / b⌋ has one
    whole d for budgets b below α.
    """
    rewards = np.asarray([rollout.length_reward for rollout in group], dtype=np.int64)
    budgets = np.asarray([rollout.budget for rollout in group], dtype=np.int64)
    return (rewards * budgets // LENGTH_ALPHA) / (budgets if unit == "budget" else 1.0)


def has_signal(task_rewards: np.ndarray) -> bool:
    """Return whether a group's task rewards (int64 micro [samples]) differ: equal rewards give no advantage."""
    return bool(task_rewards.min() != task_rewards.max())


def group_advantages(task_rewards: np.ndarray, lengths: np.ndarray, terms: AdvantageTerms) -> np.ndarray:
    """Return the advantages of a group: float32 [samples].

    task_rewards: int64 micro [samples]; lengths: `length_parts`, float64 [samples].

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
