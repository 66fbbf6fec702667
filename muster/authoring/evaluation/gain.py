"""How much better a checkpoint answers than another: the mean over tasks of the difference, and its interval. Pure.

Both checkpoints answer the same tasks, each as often, so the differences are taken task by task: how hard a task is
cancels out. The interval is Student's over these differences. It says how far the mean may be off with other tasks of
the kind and other answers to them; it says nothing about another run of the training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Final

CONFIDENCE: Final = 0.95
_Z: Final = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)

FEWEST_TASKS: Final = 10
"""With fewer differences their own spread is too uncertain, and the quantile's series too coarse."""


@dataclass(frozen=True)
class Gain:
    """Shares of right answers before and after, and the 95 % interval of their mean difference."""

    before: float
    after: float
    low: float
    high: float
    tasks: int
    samples: int
    """Answers to each task, by each checkpoint."""

    @property
    def value(self) -> float:
        return self.after - self.before


def paired_gain(before: Sequence[int], after: Sequence[int], samples: int) -> Gain:
    """Return the gain from `before[i]` to `after[i]` right answers, of `samples`, to task i.

    Raises ValueError for counts that cannot be, for lists of different lengths and for fewer than FEWEST_TASKS tasks.
    """
    if len(before) != len(after) or len(before) < FEWEST_TASKS:
        raise ValueError(f"{len(before)} tasks before and {len(after)} after; at least {FEWEST_TASKS} in both")
    if not all(0 <= right <= samples for right in (*before, *after)):
        raise ValueError(f"right answers outside 0 to {samples}")
    differences = [(new - old) / samples for old, new in zip(before, after, strict=True)]
    middle = fmean(differences)
    half = student_quantile(len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))
    return Gain(
        before=sum(before) / (samples * len(before)),
        after=sum(after) / (samples * len(after)),
        low=middle - half,
        high=middle + half,
        tasks=len(differences),
        samples=samples,
    )


def student_quantile(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t with so many degrees of freedom, 9 or more, to 0.0005.

    The Cornish-Fisher series around the normal quantile: Abramowitz and Stegun 1964, 26.7.5.
    """
    z, n = _Z, freedom
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / n**power for power, term in enumerate(terms, 1))
