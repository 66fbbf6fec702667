"""When the detail of work goes, what keeps it, and which summaries count."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, insert, select

from muster.clients.storage import ContentStore
from muster.constants import HOUR_SECONDS
from muster.contracts.court import Outcome
from muster.contracts.masters import MasterRevealed
from muster.contracts.registry import Role
from muster.contracts.run_terms import Series
from muster.errors import CheckError, MalformedError, MismatchError
from muster.protocol.windows import RESOLVING_SECONDS, end_of, needed_until
from orchestrator.database import Database
from orchestrator.queries import OF_NODE
from orchestrator.retention import Retention
from orchestrator.summaries import DayOfWork, SignedDay, date_of, read_day, restore, settle, sign_day, summarise
from orchestrator.tables import commitments, evidence, outcomes, summaries, uploads, verdicts
from orchestrator.tables import tallies as tally
from testbed.runs.recorded_run import SampleRun, address, hash_of
from testbed.samples.messages import HERE, KEY, OTHER
from testbed.samples.terms import keys_of

DAY = 20_834
HOUR = DAY * 24
"""The first of a day."""
WEEK = 7 * 24 * HOUR_SECONDS
WINDOW = 72 * HOUR_SECONDS

seconds = st.integers(0, 72 * HOUR_SECONDS)


@given(st.integers(0, 1 << 22), seconds, st.integers(0, 30 * 24 * HOUR_SECONDS), st.integers(0, 1 << 35))
def test_nothing_goes_before_the_last_of_its_deadlines(hour: int, phases: int, unbonding: int, shown: int) -> None:
    """The challenge, both phases of a case and ending it, unbonding, and three days with the master."""
    end = needed_until(hour, phases, unbonding, shown)
    deadlines = {end_of(hour) + WINDOW + phases + RESOLVING_SECONDS, end_of(hour) + unbonding, shown + WINDOW}
    assert end == max(deadlines)
    assert needed_until(hour + 1, phases, unbonding, shown) >= end
    assert needed_until(hour, phases, unbonding, 0) <= end


@pytest.fixture
async def run(database_url: str, tmp_path: Path) -> AsyncIterator[SampleRun]:
    """A run with a day of work: w0 accepted, w1 rejected, and one the day after."""
    database = await Database.open(database_url, "a test")
    run = SampleRun(database, tmp_path, accepts_required=1)
    await run.join("vera", Role.VALIDATOR)
    await run.join("wanda")
    await run.publish(0)
    for hour in (HOUR, HOUR + 23, HOUR + 24):
        index = await run.commit("wanda", hour=hour)
        await run.upload("wanda", index)
        await run.judge("vera", "wanda", index, "wrong_reward" if index == 1 else None)
    yield run
    await database.close()


def sweeper(run: SampleRun, tmp_path: Path) -> Retention:
    follower: Any = SimpleNamespace(queries=run.queries)
    return Retention(HERE, KEY, follower, run.database, unbonding=WEEK, storage_url=f"file:{tmp_path}")


async def rows(run: SampleRun, *columns: Any) -> list[tuple[Any, ...]]:
    found = await run.database.read(lambda connection: connection.execute(select(*columns)).all())
    return sorted(tuple(row) for row in found)


async def test_a_day_goes_a_second_after_its_last_hours_deadline(run: SampleRun, tmp_path: Path) -> None:
    retention = sweeper(run, tmp_path)
    deadline = end_of(HOUR + 23) + WEEK
    run.at(deadline)
    await retention.sweep()
    assert await rows(run, uploads.c.index) == [(0,), (1,), (2,)]
    run.at(deadline + 1)
    await retention.sweep()
    assert await rows(run, uploads.c.index) == [(2,)]
    assert await rows(run, verdicts.c.index) == [(2,)]
    assert await rows(run, outcomes.c["first", "last", "day", "status", "reason", "swept"]) == [
        (0, 0, DAY, "accepted", None, True),
        (1, 1, DAY, "rejected", "wrong_reward", True),
    ]


async def test_an_open_case_keeps_its_day(run: SampleRun, tmp_path: Path) -> None:
    retention = sweeper(run, tmp_path)
    run.at(end_of(HOUR + 23) + 100)
    await run.open_case(1, address("vera"), "wanda", 1)
    run.at(end_of(HOUR + 23) + 2 * WEEK)
    await retention.sweep()
    assert await rows(run, uploads.c.index) == [(0,), (1,)]
    await run.resolve(1, "wanda", Outcome.NOT_GUILTY)
    await retention.sweep()
    assert await rows(run, uploads.c.index) == []


async def test_private_tests_keep_work_until_three_days_after_their_master(database_url: str, tmp_path: Path) -> None:
    database = await Database.open(database_url, "a test")
    sealed = {"grade_tip": b"\x01" * 32, "grade_epochs": 2, "grade_epoch_steps": 1}
    run = SampleRun(database, tmp_path, **sealed)
    await run.join("wanda")
    await run.publish(0, 1)
    for step in (0, 1):
        await run.upload("wanda", await run.commit("wanda", step, HOUR + 24 * step))
    retention = sweeper(run, tmp_path)
    later = end_of(HOUR) + 4 * WEEK
    run.at(later)
    await retention.sweep()
    assert await rows(run, uploads.c.index) == [(0,), (1,)]
    await run.happen(MasterRevealed, 1, Series.TRAPS, 1, bytes(32))
    await run.happen(MasterRevealed, 1, Series.GRADES, 1, bytes(32))
    shown = run.first_second + run.blocks * run.block_seconds
    run.at(max(later, shown + WINDOW + 1))
    await retention.sweep()
    assert await rows(run, uploads.c.index) == [(1,)]
    await database.close()


async def test_statuses_of_a_day_that_went_stay_but_for_a_conviction(run: SampleRun, tmp_path: Path) -> None:
    run.at(end_of(HOUR + 23) + WEEK + 1)
    before = await rows(run, *tally.c)
    await sweeper(run, tmp_path).sweep()
    await run.database.write(lambda c: run.queries.update_statuses(c, OF_NODE, node=address("wanda")))
    assert await rows(run, *tally.c) == before
    await run.convict("wanda")
    assert await rows(run, *commitments.c["index", "status"]) == [(0, "void"), (1, "rejected"), (2, "void")]


async def test_evidence_goes_by_when_the_sweep_saw_it_first(run: SampleRun, tmp_path: Path) -> None:
    retention, stored = sweeper(run, tmp_path), ContentStore(f"file:{tmp_path}", "evidence")
    names = [await stored.put(text) for text in (b"one", b"of an open case")]
    posted = [{"validator": address("vera"), "hash": name, "expiry": 0, "size": 3} for name in names]
    await run.database.write(lambda c: c.execute(insert(evidence), posted))
    run.at((HOUR + 1) * HOUR_SECONDS)
    await retention.sweep()
    asked = ContentStore(f"file:{tmp_path}", "evidence")
    await run.open_case(1, address("vera"), "wanda", 2)
    run.at(end_of(HOUR + 1) + WEEK)
    await retention.sweep()
    assert len([name async for name in asked.names()]) == 2
    run.at(end_of(HOUR + 1) + WEEK + 1)
    await retention.sweep()
    assert [name async for name in asked.names()] == []
    assert await rows(run, func.count(evidence.c.hash)) == [(0,)]


# Summaries


WORK = DayOfWork(
    run=1,
    day=DAY,
    roots=hash_of("roots"),
    nodes={OTHER.address: [(0, 4, "accepted", None, True), (5, 5, "rejected", "wrong_reward", False)]},
    counts={KEY.address: {"accepts": 5, "rejections": 1}},
)


def test_a_summary_is_read_as_it_was_signed() -> None:
    data = sign_day(KEY, HERE, WORK)
    assert read_day(HERE, keys_of(KEY.address), data) == WORK
    assert SignedDay.parse(data).to_bytes() == data
    assert date_of(DAY) == "2027-01-16"


@pytest.mark.parametrize(
    ("data", "error", "why"),
    [
        (sign_day(OTHER, HERE, WORK), MismatchError, "never the run's storage key"),
        (sign_day(KEY, HERE, WORK).replace(b'"accepts":5', b'"accepts":6'), MismatchError, "for another summary"),
        (sign_day(KEY, HERE, WORK).replace(b'"accepts":5', b'"accepts": 5'), MalformedError, "canonical"),
        (sign_day(KEY, HERE, WORK).replace(b'"accepted"', b'"splendid"'), MalformedError, "not a signed summary"),
        (b"{", MalformedError, "not a signed summary"),
    ],
    ids=["of another key", "changed", "not canonical", "no status", "cut short"],
)
def test_a_forged_summary_is_refused(data: bytes, error: type[CheckError], why: str) -> None:
    with pytest.raises(error, match=why):
        read_day(HERE, keys_of(KEY.address), data)


async def test_one_summary_of_a_day_counts(run: SampleRun) -> None:
    other = DayOfWork(1, DAY, hash_of("others"), {OTHER.address: [(0, 9, "pending", None, False)]}, {})
    assert await run.database.write(lambda c: restore(c, WORK, hash_of("first")))
    assert not await run.database.write(lambda c: restore(c, other, hash_of("second")))
    assert not await run.database.write(lambda c: settle(c, other, hash_of("second")))
    assert await rows(run, *summaries.c) == [(DAY, hash_of("first"))]
    assert await rows(run, outcomes.c["first", "last", "swept"]) == [(0, 4, True), (5, 5, True)]


async def test_a_summary_counts_what_the_rows_of_its_day_count(run: SampleRun) -> None:
    await run.report(1, {}, batch=[hash_of("file 0 of wanda")])
    work = await run.database.read(lambda connection: summarise(connection, 1, DAY))
    assert work.nodes == {address("wanda"): [(0, 0, "accepted", None, True), (1, 1, "rejected", "wrong_reward", False)]}
    assert work.counts == {address("vera"): {"accepts": 1, "rejections": 1}, address("wanda"): {"files": 1}}
