"""A day's earnings: quartiles over active workers, from the pay of their unrefuted commitments."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from explorer.earnings import WorkerDay, day_earnings, earnings_of
from muster.constants import TOKEN
from muster.contracts.registry import Retired, Role
from muster.ledger.database import Database
from muster.protocol.announcements import DayEarnings
from testbed.runs.recorded_run import HOUR, RUN, SampleRun, address

NOW = 100 * 3600
DAY = 24 * 3600


def earned(*made: int, joined: int = 0) -> DayEarnings:
    return day_earnings(RUN, [WorkerDay(joined, one) for one in made], NOW)


def test_quartiles_are_those_of_workers() -> None:
    # The hour that begins at NOW and the 23 before it: 23 hours so far.
    expected = [made * 24 // 23 for made in (100, 200, 300, 400, 500)]
    found = earned(300, 100, 500, 200, 400)
    assert (found.low, found.median, found.high) == tuple(expected[i] for i in (1, 2, 3))
    assert found.workers == 5
    alone = earned(23)
    assert (alone.workers, alone.low, alone.median, alone.high) == (1, 24, 24, 24)


def test_pay_of_less_than_a_day_is_extended_to_a_day() -> None:
    assert earned(10, joined=NOW - 6 * 3600).median == 40
    assert earned(10, joined=NOW - 3600).median == 240


def test_before_an_hour_has_passed_the_present_pace_is_an_estimate() -> None:
    """A worker earns 45 in 25 minutes; the estimate extends this to the 1,440 minutes of a day."""
    assert earned(45, joined=NOW - 25 * 60) == DayEarnings(
        run=RUN, workers=1, low=2592, median=2592, high=2592, estimated=True
    )
    soon = [WorkerDay(NOW - 299, 50), WorkerDay(NOW - 300, 10)]
    assert day_earnings(RUN, soon, NOW).median == 10 * DAY // 300, "the other worker joined less than five minutes ago"
    late = [*soon, WorkerDay(NOW - 3600, 3)]
    assert day_earnings(RUN, late, NOW) == DayEarnings(run=RUN, workers=1, low=72, median=72, high=72)


@pytest.mark.parametrize("days", [[], [WorkerDay(NOW - 299, 10)], [WorkerDay(0, 0)]])
def test_earnings_are_zero_without_enough_work(days: list[WorkerDay]) -> None:
    assert day_earnings(RUN, days, NOW) == DayEarnings(run=RUN, workers=0, low=0, median=0, high=0)


@pytest.fixture
async def run(database_url: str, tmp_path: Path) -> AsyncIterator[SampleRun]:
    sample = SampleRun(await Database.open(database_url, "a test"), tmp_path)
    for worker in ("wanda", "willi", "gone"):
        await sample.join(worker)
    for validator in ("vera", "viktor"):
        await sample.join(validator, Role.VALIDATOR)
    await sample.publish(0)
    yield sample
    await sample.database.close()


async def test_earnings_count_recent_work_of_active_workers(run: SampleRun) -> None:
    now = (HOUR + 40) * 3600
    run.at(now)
    for hour in (HOUR + 16, HOUR + 17, HOUR + 40):  # the first is a day old
        await run.commit("wanda", hour=hour)
    await run.commit("willi", hour=HOUR + 30)
    await run.judge("vera", "willi", 0, "wrong_reward")
    await run.commit("gone", hour=HOUR + 30)
    await run.happen(Retired, address("gone"), RUN, 0)

    async def found() -> DayEarnings:
        return await run.database.read(lambda connection: earnings_of(connection, run.source))

    two, three = (made * 2 * TOKEN * DAY // (23 * 3600) for made in (2, 3))
    assert await found() == DayEarnings(run=RUN, workers=1, low=two, median=two, high=two)
    for _ in range(3):
        await run.commit("willi", hour=HOUR + 40)
    assert await found() == DayEarnings(run=RUN, workers=2, low=two, median=two, high=two)
    await run.judge("vera", "wanda", 1, "wrong_reward")
    await run.judge("vera", "wanda", 2, "wrong_reward")
    assert await found() == DayEarnings(run=RUN, workers=1, low=three, median=three, high=three)
