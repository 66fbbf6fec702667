"""Keep the numbers of the trainer's reports for charts, so that a range of any length is read in few rows.

`record` writes a step's numbers and rebuilds the buckets above it from the buckets below them. So a report that
replaces an earlier one of its step leaves what would be there if only the later one had come.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, and_, cast, delete, func, insert, literal, select

from muster.ledger.tables import MAX_METRIC, metric_buckets, scores, steps
from muster.protocol.announcements import BENCHMARK_PATTERN, BenchmarkScore
from muster.protocol.messages import Message

BASE: Final = 8
"""Steps of a bucket of level 1; one of level L has BASE to the power of L."""
LEVELS: Final = 7
"""Levels that are kept, 0 included: the last has a bucket for 262,144 steps."""
MAX_POINTS: Final = 2_000
MAX_SERIES: Final = 16
"""Metrics in one answer."""
MAX_ALL_POINTS: Final = 8_000
"""Points of all metrics in one answer: many of them have fewer each."""
BENCHMARK: Final = "benchmark/"
"""What the names of published scores begin with; they are no reports' numbers, and each is a separate point."""
MAX_NAMES: Final = 256
"""Metrics of a run; further ones are not kept."""
MAX_NUMBER: Final = 1e100
"""Larger numbers are not kept: sums of them may have no end."""


class Series(Message):
    """One metric over steps, in buckets of equally many steps; those without a number are left out."""

    name: str
    steps: list[int]
    """The first step of each bucket, rising: multiples of `steps_per_point`."""
    mean: list[float]
    low: list[float]
    high: list[float]


class SeriesPage(Message):
    run: int
    first: int
    last: int
    """Steps that were asked for, both included; the buckets at the ends may begin before and end after them."""
    steps_per_point: int
    series: list[Series]
    """In the order in which they were asked for; a metric that was never reported has no points."""


class MetricList(Message):
    """The metrics that there are, by name."""

    run: int
    newest: int | None
    """Newest step that was reported."""
    names: list[str]


# Writing


def record(connection: Connection, step: int, metrics: Mapping[str, float | None]) -> list[str]:
    """Put a step's numbers in the place of those that it had; return the metrics that cannot be kept."""
    # 1. Take out what an earlier report said.
    here = metric_buckets.c.level == 0, metric_buckets.c.bucket == step
    known = metric_names(connection)
    earlier = select(metric_buckets.c.name).where(metric_buckets.c.name.in_(known), *here)
    replaced = list(connection.execute(earlier).scalars())
    if replaced:
        connection.execute(delete(metric_buckets).where(metric_buckets.c.name.in_(replaced), *here))
        _renew(connection, step, replaced)
        known = metric_names(connection)
    # 2. Choose what can be kept.
    numbers = {name: number for name, number in metrics.items() if number is not None}
    kept = dict.fromkeys(known)
    for name, number in numbers.items():
        if _is_name(name) and abs(number) <= MAX_NUMBER and (name in kept or len(kept) < MAX_NAMES):
            kept[name] = None
    good = {name: number for name, number in numbers.items() if name in kept and abs(number) <= MAX_NUMBER}
    # 3. Write it.
    if good:
        rows = [
            {"name": name, "level": 0, "bucket": step, "count": 1, "total": number, "low": number, "high": number}
            for name, number in good.items()
        ]
        connection.execute(insert(metric_buckets), rows)
        _renew(connection, step, list(good))
    return [name for name in numbers if name not in good]


def _is_name(name: str) -> bool:
    return 0 < len(name) <= MAX_METRIC and name.isprintable() and not name.startswith(BENCHMARK)


def _renew(connection: Connection, step: int, names: Sequence[str]) -> None:
    """Rebuild the buckets above a step, for these metrics."""
    buckets = metric_buckets.c
    for level in range(1, LEVELS):
        bucket = step // BASE**level
        named = buckets.name.in_(names)
        connection.execute(delete(metric_buckets).where(named, buckets.level == level, buckets.bucket == bucket))
        first = bucket * BASE
        below = (
            select(
                buckets.name,
                literal(level),
                literal(bucket, buckets.bucket.type),
                cast(func.sum(buckets["count"]), buckets["count"].type),
                func.sum(buckets.total),
                func.min(buckets.low),
                func.max(buckets.high),
            )
            .where(named, buckets.level == level - 1, buckets.bucket.between(first, first + BASE - 1))
            .group_by(buckets.name)
        )
        columns = ["name", "level", "bucket", "count", "total", "low", "high"]
        connection.execute(insert(metric_buckets).from_select(columns, below))


# Reading


def names_in(column: Any) -> Any:
    """Return the query for the values of a column that begins an index: a look-up for each, however many rows."""
    found = select(func.min(column).label("name")).cte("found", recursive=True)
    following = select(func.min(column)).where(column > found.c.name).correlate(found).scalar_subquery()
    found = found.union_all(select(following).where(found.c.name.is_not(None)))
    return select(found.c.name).where(found.c.name.is_not(None))


def metric_names(connection: Connection) -> list[str]:
    return sorted(connection.execute(names_in(metric_buckets.c.name)).scalars())


def newest_numbers(connection: Connection) -> dict[str, float]:
    found = {name: newest_number(connection, name) for name in metric_names(connection)}
    return {name: number for name, number in found.items() if number is not None}


def newest_number(connection: Connection, name: str) -> float | None:
    """Return the newest number of a metric; None for one that was never reported."""
    buckets = metric_buckets.c
    newest = select(buckets.total).where(buckets.name == name, buckets.level == 0)
    return connection.execute(newest.order_by(buckets.bucket.desc()).limit(1)).scalar()


def numbers_at(connection: Connection, step: int) -> dict[str, float]:
    buckets = metric_buckets.c
    named = buckets.name.in_(metric_names(connection))
    query = select(buckets.name, buckets.total).where(named, buckets.level == 0, buckets.bucket == step)
    return {row.name: row.total for row in connection.execute(query)}


def newest_step(connection: Connection) -> int | None:
    return connection.execute(select(func.max(steps.c.step))).scalar()


def metric_list(connection: Connection, run: int) -> MetricList:
    published = sorted(connection.execute(names_in(scores.c.benchmark)).scalars())
    names = [*metric_names(connection), *(BENCHMARK + name for name in published)]
    return MetricList(run=run, newest=newest_step(connection), names=names)


def steps_of_a_point(first: int, last: int, points: int) -> tuple[int, int]:
    """Return the level, and how many of its buckets make a point, so that at most `points` cover the steps. Pure."""
    for level in range(LEVELS):
        most = BASE - 1 if level < LEVELS - 1 else last // BASE**level + 1
        least = max(1, (last - first) // (points * BASE**level))
        for buckets in range(least, most + 1):
            width = buckets * BASE**level
            if last // width - first // width < points:
                return level, buckets
    raise AssertionError("one point holds any steps")


def read_series(
    connection: Connection, run: int, names: Sequence[str], first: int, last: int, points: int
) -> SeriesPage:
    """Return metrics over steps `first` to `last`, at most `points` of each and MAX_ALL_POINTS together."""
    points = min(points, MAX_ALL_POINTS // max(1, len(names)))
    level, buckets_per_point = steps_of_a_point(first, last, points)
    width = buckets_per_point * BASE**level
    buckets = metric_buckets.c
    point = (buckets.bucket // buckets_per_point).label("point")
    wanted = and_(
        buckets.name.in_([name for name in names if _is_name(name)]),  # PostgreSQL refuses a NUL, and not as an answer
        buckets.level == level,
        buckets.bucket >= first // width * buckets_per_point,
        buckets.bucket < (last // width + 1) * buckets_per_point,
    )
    mean = func.sum(buckets.total) / func.sum(buckets["count"])
    query = select(buckets.name, point, mean, func.min(buckets.low), func.max(buckets.high)).where(wanted)
    found: dict[str, list[Any]] = {name: [] for name in names}
    for name, *values in connection.execute(query.group_by(buckets.name, point).order_by(buckets.name, point)):
        found[name].append(values)
    series = []
    for name in names:
        if name.startswith(BENCHMARK):
            series.append(_published(connection, name, first, last, points))
            continue
        starts, means, lows, highs = zip(*found[name], strict=True) if found[name] else ((), (), (), ())
        at = [start * width for start in starts]
        series.append(Series(name=name, steps=at, mean=list(means), low=list(lows), high=list(highs)))
    return SeriesPage(run=run, first=first, last=last, steps_per_point=width, series=series)


def _published(connection: Connection, name: str, first: int, last: int, points: int) -> Series:
    """Return the published scores on a benchmark, the newest `points` of them, with the ends of their intervals."""
    benchmark = name.removeprefix(BENCHMARK)
    if re.fullmatch(BENCHMARK_PATTERN, benchmark) is None:
        return Series(name=name, steps=[], mean=[], low=[], high=[])
    query = select(scores.c.document).where(scores.c.benchmark == benchmark)
    query = query.where(scores.c.step.between(first, last)).order_by(scores.c.step.desc()).limit(points)
    found = [BenchmarkScore.model_validate_json(text) for text in connection.execute(query).scalars()][::-1]
    return Series(
        name=name,
        steps=[one.step for one in found],
        mean=[one.score for one in found],
        low=[one.low for one in found],
        high=[one.high for one in found],
    )
