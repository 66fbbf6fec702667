"""Numbers of a synthetic trainer's reports, and the buckets in which charts read them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from orchestrator.page.series import BASE, LEVELS
from testbed.big_run.shape import Shape, rows_of

Floats = NDArray[np.float64]
EVALUATED_EVERY: Final = 10
"""Steps between two scores on held-out tasks."""


def metrics_of(shape: Shape) -> dict[str, Floats]:
    """Return each metric by the trainer's name: float64 [steps + 1], NaN where a report does not have it."""
    rng = np.random.default_rng(shape.seed + 2)
    steps = shape.steps + 1
    done = np.arange(steps) / max(1, shape.steps)
    learned = 1 - np.exp(-4 * done)

    def around(curve: Floats | float, noise: float) -> Floats:
        return np.broadcast_to(curve, steps) + noise * rng.standard_normal(steps)

    reward = np.clip(around(0.18 + 0.55 * learned, 0.03), 0, 1)
    length = np.clip(around(900 + 2_400 * done, 90), 1, None)
    found = {
        "reward": reward,
        "reward_std": np.sqrt(reward * (1 - reward)),
        "rewards/right/mean": np.clip(reward + 0.05, 0, 1),
        "rewards/brief/mean": np.clip(around(0.3 + 0.2 * learned, 0.02), 0, 1),
        "frac_reward_zero_std": np.clip(around(0.2 + 0.2 * done, 0.04), 0, 1),
        "completions/mean_length": length,
        "completions/mean_budget": around(1_000 + 2_200 * done, 40),
        "completions/max_length": length * 2.5,
        "completions/clipped_ratio": np.clip(around(0.08 * learned, 0.01), 0, 1),
        "completions/length_error": np.clip(around(0.9 - 0.6 * learned, 0.03), 0, None),
        "staleness/mean": np.clip(around(1.1, 0.2), 0, 2),
        "staleness/max": np.full(steps, 2.0),
        "batch/files": np.full(steps, 16.0),
        "batch/completion_tokens": length * 128,
        "loss": around(0.0, 0.02),
        "grad_norm": np.exp(around(-1.5, 0.3)),
        "entropy": np.clip(around(0.9 - 0.5 * learned, 0.03), 0, None),
        "kl": np.clip(around(0.08 * done, 0.003), 0, None),
        "mismatch_kl": np.exp(around(-7.0, 0.4)),
        "clip_ratio/low_mean": np.clip(around(0.004, 0.001), 0, 1),
        "clip_ratio/high_mean": np.clip(around(0.006, 0.002), 0, 1),
    }
    scored = np.arange(steps) % EVALUATED_EVERY == 0
    held_out = {
        "held_out/reward": np.clip(around(0.16 + 0.52 * learned, 0.012), 0, 1),
        "held_out/mean_length": np.clip(around(850 + 2_300 * done, 60), 1, None),
        "held_out/length_error": np.clip(around(0.9 - 0.6 * learned, 0.02), 0, None),
    }
    return found | {name: np.where(scored, values, np.nan) for name, values in held_out.items()}


def buckets_of(values: dict[str, Floats]) -> Iterator[tuple[Any, ...]]:
    """Yield rows of metric_buckets, by metric, level and bucket."""
    for name in sorted(values):
        numbered = np.flatnonzero(np.isfinite(values[name]))
        numbers = values[name][numbered]
        for level in range(LEVELS):
            bucket, begins = np.unique(numbered // BASE**level, return_index=True)
            counts = np.diff(np.append(begins, len(numbers)))
            columns = [bucket, counts, *(add.reduceat(numbers, begins) for add in (np.add, np.minimum, np.maximum))]
            for row in rows_of(*columns):
                yield name, level, *row
