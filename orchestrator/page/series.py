"""Keep the numbers of the trainer's reports for charts, so that a range of any length is read in few rows."""

from __future__ import annotations

from typing import Final

from muster.protocol.messages import Message

BASE: Final = 8
"""Steps of a bucket of level 1; one of level L has BASE to the power of L."""
LEVELS: Final = 7
"""Levels that are kept, 0 included: the last has a bucket for 262,144 steps."""
MAX_POINTS: Final = 2_000
MAX_SERIES: Final = 16
"""Metrics in one answer."""


class Series(Message):
    """One metric over steps, in buckets of equally many steps; those without a number are left out."""

    name: str
    steps: list[int]
    """The first step of each bucket, rising."""
    mean: list[float]
    low: list[float]
    high: list[float]


class SeriesPage(Message):
    run: int
    first: int
    last: int
    """Steps that were asked for, both included."""
    steps_per_point: int
    series: list[Series]
    """In the order in which they were asked for; a metric that nobody has reported has no points."""


class MetricList(Message):
    """The metrics that there are, by name."""

    run: int
    newest: int | None
    """Newest step that was reported."""
    names: list[str]
