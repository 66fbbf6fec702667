"""Series of charts equal those of a plain list of the reports, in any order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, delete, insert, select

from explorer import series
from explorer.series import BASE, LEVELS, MAX_NAMES, Series, read_series, steps_of_a_point
from muster.ledger.database import Database
from muster.ledger.tables import MAX_METRIC, metric_buckets, scores
from muster.protocol.announcements import BenchmarkScore
from muster.protocol.eip712 import UNSIGNED
from testbed.suite.examples import up_to

NAMES = ("reward", "kl", "held_out/reward")
eighths = st.integers(-80, 80).map(lambda number: number / 8)  # their sums are exact in any order
near = st.integers(0, 40), st.integers(0, 5_000), st.sampled_from([7, 8, 63, 64, 511, 512, 262_143, 262_144])
any_report = st.tuples(
    st.one_of(*near), st.dictionaries(st.sampled_from(NAMES), st.one_of(eighths, st.none()), max_size=3)
)
Report = tuple[int, dict[str, float | None]]


@pytest.fixture(scope="module")
def shared_url(new_database_url: Callable[[], str]) -> str:
    return new_database_url()


def within(url: str, work: Callable[[Connection], Any]) -> Any:
    """Run `work` on a database without numbers."""

    async def run() -> Any:
        database = await Database.open(url, "a test")
        try:
            await database.write(lambda connection: connection.execute(delete(metric_buckets)))
            return await database.write(work)
        finally:
            await database.close()

    return asyncio.run(run())


def numbers_of(reports: list[Report]) -> dict[str, dict[int, float]]:
    """Return the last number of each metric and step."""
    last = dict(reports)
    return {
        name: {step: number for step, metrics in last.items() if (number := metrics.get(name)) is not None}
        for name in NAMES
    }


def all_buckets(connection: Connection) -> list[tuple]:
    return sorted(tuple(row) for row in connection.execute(select(metric_buckets)))


def expected(reports: list[Report], first: int, last: int, width: int) -> list[Series]:
    found = []
    for name, numbers in numbers_of(reports).items():
        points: dict[int, list[float]] = {}
        for step in sorted(numbers):
            if first // width <= step // width <= last // width:
                points.setdefault(step // width * width, []).append(numbers[step])
        means = [sum(values) / len(values) for values in points.values()]
        lows, highs = [min(values) for values in points.values()], [max(values) for values in points.values()]
        found.append(Series(name=name, steps=list(points), mean=means, low=lows, high=highs))
    return found


@example(reports=[(3, {"reward": 1.0, "kl": 2.0}), (3, {"reward": 0.5})], first=0, span=10, points=10)
@example(reports=[(step, {"reward": 1.0}) for step in (0, 7, 8, 15, 16, 17)], first=8, span=7, points=1)
@given(
    reports=st.lists(any_report, max_size=12),
    first=st.one_of(*near),
    span=st.sampled_from([0, 1, 9, 100, 4_000, 600_000]),
    points=st.integers(1, 50),
)
@settings(max_examples=up_to(60))
def test_range_matches_a_plain_list_of_reports(
    shared_url: str, reports: list[Report], first: int, span: int, points: int
) -> None:
    def work(connection: Connection) -> tuple[Any, ...]:
        for step, metrics in reports:
            assert series.record(connection, step, metrics) == []
        page = read_series(connection, 1, NAMES, first, first + span, points)
        lists = series.metric_names(connection), series.newest_numbers(connection), all_buckets(connection)
        return page, *lists

    page, names, newest, found = within(shared_url, work)
    numbers = numbers_of(reports)
    assert page.series == expected(reports, first, first + span, page.steps_per_point)
    assert (page.run, page.first, page.last) == (1, first, first + span)
    assert max(len(one.steps) for one in page.series) <= points
    assert names == sorted(name for name in NAMES if numbers[name])
    assert newest == {name: numbers[name][max(numbers[name])] for name in names}
    level_of = {
        (name, level, step // BASE**level) for name in names for step in numbers[name] for level in range(LEVELS)
    }
    assert {row[:3] for row in found} == level_of, "every bucket has a number"


@given(reports=st.lists(any_report, min_size=1, max_size=10))
@settings(max_examples=30)
def test_replaced_report_leaves_no_trace(shared_url: str, reports: list[Report]) -> None:
    def record(connection: Connection, which: list[Report]) -> list[tuple]:
        for step, metrics in which:
            series.record(connection, step, metrics)
        return all_buckets(connection)

    replaced = within(shared_url, lambda connection: record(connection, reports))
    assert replaced == within(shared_url, lambda connection: record(connection, list(dict(reports).items())))


@given(st.integers(0, 1 << 32), st.integers(0, 1 << 32), st.integers(1, 2_000))
def test_points_are_no_more_than_asked_for_and_few_rows_are_read(one: int, other: int, points: int) -> None:
    first, last = sorted((one, other))
    level, buckets = steps_of_a_point(first, last, points)
    width = buckets * BASE**level
    assert last // width - first // width + 1 <= points
    assert buckets < BASE or level == LEVELS - 1
    if last - first < points:
        assert width == 1


async def test_metrics_are_bounded_in_name_size_and_number(database: Database) -> None:
    """Invalid names, huge numbers and metrics beyond the limit are left out."""
    odd = ["", "x" * (MAX_METRIC + 1), "re\0ward", "line\nfeed", "\u202ereward", "\ud800"]
    many = {f"m{number:03}": 1.0 for number in range(MAX_NAMES + 5)}

    def work(connection: Connection) -> Any:
        left = [
            series.record(connection, 1, dict.fromkeys(odd, 1.0) | {"huge": 1e200, "größe 奖": 2.0, "none": None}),
            series.record(connection, 2, many),
            series.record(connection, 2, many | {"größe 奖": 3.0}),
            series.record(connection, 1, {}),
            series.record(connection, 2, many),
            series.record(connection, 3, {"another": 1.0, "m000": 2.0}),
        ]
        return left, series.metric_names(connection)

    left, names = await database.write(work)
    last = [f"m{number}" for number in range(MAX_NAMES - 1, MAX_NAMES + 5)]
    assert left == [[*odd, "huge"], last, last, [], last[1:], ["another"]]
    assert names == sorted(list(many)[:MAX_NAMES])


async def test_published_scores_have_separate_curves(database: Database) -> None:
    """Each score is a point with its interval, and no report can replace it."""

    def score(step: int, value: float) -> dict[str, Any]:
        fields = {"run": 1, "step": step, "benchmark": "gsm8k", "score": value, "low": value - 0.1, "high": value + 0.1}
        made = BenchmarkScore(**fields, tasks=9, samples=1, measured=step, signature=UNSIGNED)
        kept = {"step": step, "benchmark": "gsm8k", "score": value, "measured": step}
        return kept | {"document": made.model_dump_json()}

    def fill(connection: Connection) -> list[str]:
        connection.execute(insert(scores), [score(0, 0.25), score(400, 0.5), score(100_000, 0.75)])
        return series.record(connection, 4, {"reward": 0.5, "benchmark/gsm8k": 1.0})

    assert await database.write(fill) == ["benchmark/gsm8k"]
    names = (await database.read(lambda connection: series.metric_list(connection, 1))).names
    assert names == ["reward", "benchmark/gsm8k"]

    async def drawn(first: int, last: int, points: int) -> Series:
        page = await database.read(lambda c: read_series(c, 1, ["benchmark/gsm8k"], first, last, points))
        return page.series[0]

    name = "benchmark/gsm8k"
    ends = Series(name=name, steps=[400, 100_000], mean=[0.5, 0.75], low=[0.4, 0.65], high=[0.6, 0.85])
    assert await drawn(1, 100_000, 500) == ends
    assert await drawn(0, 100_000, 2) == ends, "the newest, if there are too many"
    assert await drawn(0, 399, 500) == Series(name=name, steps=[0], mean=[0.25], low=[0.15], high=[0.35])


@pytest.mark.parametrize("name", ["a\0b", "benchmark/\0", "\n", ""])
async def test_impossible_metric_name_is_not_queried(database: Database, name: str) -> None:
    """PostgreSQL refuses a NUL, which would look like a failed database."""
    found = await database.read(lambda connection: read_series(connection, 1, [name, "reward"], 0, 9, 5))
    assert [(one.name, one.steps) for one in found.series] == [(name, []), ("reward", [])]
