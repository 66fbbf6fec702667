"""Estimate how often a model is right from counts of right answers: pass@k, its interval, bands, gains. Pure.

The *interval* says how far a mean over tasks may be off: with other tasks of the kind, and other answers to them. It is
Wilson's for proportions, with the effective number of tasks in place of their number, as surveys use it where people
come in households and here answers come in tasks. With one answer to a task it is Wilson's own.

Sources: Wilson 1927; Franco, Little, Louis and Slud 2019, "Comparative Study of Confidence Intervals for Proportions in
Complex Sample Surveys", which recommends it. Why no bootstrap over tasks: where nearly all tasks pass, or nearly none,
it resamples little but these, and its interval shrinks to a point that the truth is not at. Trials of both are in
tests/unit/authoring/evaluation/test_pass_at_k.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Final

from muster.errors import UsageError

CONFIDENCE: Final = 0.95
_Z: Final = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


@dataclass(frozen=True)
class Estimate:
    """A mean over tasks and its 95 % confidence interval, 0 ≤ low ≤ value ≤ high ≤ 1."""

    value: float
    low: float
    high: float


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Return the chance that k answers to one task, of which `right` of `samples` were right, hold a right one.

    The unbiased estimator 1 − C(n−c, k) / C(n, k), 1 ≤ k ≤ n, 0 ≤ c ≤ n, in exact integers. Source: Chen et al. 2021,
    "Evaluating Large Language Models Trained on Code", equation 1.
    """
    if not 0 <= right <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {right} right answers among {samples}")
    ways = math.comb(samples, k)
    return (ways - math.comb(samples - right, k)) / ways


def mean_pass_at_k(right: Sequence[int], samples: int, k: int) -> Estimate:
    """Return pass@k over tasks, each with `right[i]` of `samples` right."""
    return mean_of([pass_at_k(samples, count, k) for count in right], samples)


def mean_of(values: Sequence[float], samples: int) -> Estimate:
    """Return the mean of one value from 0 to 1 per task, each from `samples` answers, with its interval.

    Wilson's at n tasks, n replaced by n·p(1−p)/s²: s² is the values' variance, and p(1−p) what it would be if each were
    0 or 1. It counts no more than all the answers do. Where nothing varies the tasks count; a single one cannot say how
    tasks differ, and counts as one answer.
    """
    if not values:
        raise ValueError("no tasks")
    count = len(values)
    mean = math.fsum(values) / count
    spread = mean * (1 - mean)
    variance = math.fsum((value - mean) ** 2 for value in values) / count
    effective = float(count)
    if count > 1 and spread > 0:
        most = float(count * samples)
        effective = min(most, count * spread / variance) if variance > 0 else most
    scale = 1 + _Z**2 / effective
    middle = (mean + _Z**2 / (2 * effective)) / scale
    half = _Z * math.sqrt(max(spread, 0) / effective + _Z**2 / (4 * effective**2)) / scale
    # At 0 and 1 one end is the mean itself, up to rounding.
    return Estimate(mean, low=max(0.0, min(mean, middle - half)), high=min(1.0, max(mean, middle + half)))


def ratio_of(counts: Sequence[int], totals: Sequence[int], samples: int) -> Estimate:
    """Return the share of all units, `counts[i]` of `totals[i]` in each task, with its interval over tasks.

    The interval is that of the mean of each task's deviation from the share, added to it (the ratio estimator's
    linearization), so that tasks with more units weigh more.
    """
    if not totals or min(totals) < 1:
        raise ValueError("no units in a task")
    share, mean = sum(counts) / sum(totals), sum(totals) / len(totals)
    values = [share + (count - share * total) / mean for count, total in zip(counts, totals, strict=True)]
    return mean_of(values, max(samples, round(mean)))


@dataclass(frozen=True)
class Band:
    """Pass rates that are worth training on; both ends belong to it."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1:
            raise UsageError(
                f"a band of pass rates from {self.low:g} to {self.high:g}", hint="give 0 <= --low <= --high <= 1"
            )

    def __contains__(self, rate: float) -> bool:
        return self.low <= rate <= self.high

    def check_reachable(self, samples: int) -> None:
        """Raise UsageError where no number of right answers among `samples` is a rate of the band."""
        if not any(right / samples in self for right in range(samples + 1)):
            raise UsageError(
                f"{samples} samples give no pass rate from {self.low:g} to {self.high:g}",
                hint="raise --samples, or widen the band",
            )


@dataclass(frozen=True)
class FilteredTasks:
    """What a band leaves of tasks."""

    kept: tuple[int, ...]
    """Indices, ascending."""
    too_hard: int
    """Tasks below the band."""
    too_easy: int
    """Tasks above it."""
    histogram: tuple[int, ...]
    """Tasks by number of right answers, 0 to `samples`."""


def sift(right: Sequence[int], samples: int, band: Band) -> FilteredTasks:
    """Sort tasks by their pass rate right[i] / samples."""
    rates = [count / samples for count in right]
    counts = Counter(right)
    return FilteredTasks(
        kept=tuple(i for i, rate in enumerate(rates) if rate in band),
        too_hard=sum(rate < band.low for rate in rates),
        too_easy=sum(rate > band.high for rate in rates),
        histogram=tuple(counts[number] for number in range(samples + 1)),
    )


FEWEST_TASKS: Final = 10
"""With fewer differences their own spread is too uncertain, and the quantile's series too coarse."""


@dataclass(frozen=True)
class Gain:
    """Shares of right answers before and after, and the 95 % interval of their mean difference.

    Differences are taken task by task, so how hard a task is cancels out. The interval is Student's over them: it says
    how far the mean may be off with other tasks of the kind, and nothing about another run of the training.
    """

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
