"""What is left of a day of work: signed, read as it was signed, and counted once."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from muster.errors import CheckError, MalformedError, MismatchError
from muster.ledger.database import Database
from muster.ledger.summaries import DayOfWork, SignedDay, read_day, restore, settle, sign_day
from muster.ledger.tables import outcomes, summaries
from muster.protocol.acceptance import date_of
from testbed.runs.recorded_run import hash_of
from testbed.samples.messages import HERE, KEY, OTHER
from testbed.samples.terms import keys_of

DAY = 20_834


async def rows(database: Database, *columns: Any) -> list[tuple[Any, ...]]:
    found = await database.read(lambda connection: connection.execute(select(*columns)).all())
    return sorted(tuple(row) for row in found)


WORK = DayOfWork(
    run=1,
    day=DAY,
    roots=hash_of("roots"),
    nodes={OTHER.address: [(0, 4, "accepted", None, True), (5, 5, "rejected", "wrong_reward", False)]},
    counts={KEY.address: {"accepts": 5, "rejections": 1}},
    places=[(0, 7)],
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


async def test_one_summary_of_a_day_counts(database: Database) -> None:
    other = DayOfWork(1, DAY, hash_of("others"), {OTHER.address: [(0, 9, "pending", None, False)]}, {}, [])
    assert await database.write(lambda c: restore(c, WORK, hash_of("first")))
    assert await database.write(lambda c: restore(c, WORK, hash_of("first")))
    assert not await database.write(lambda c: restore(c, other, hash_of("second")))
    assert not await database.write(lambda c: settle(c, other, hash_of("second")))
    assert await rows(database, *summaries.c) == [(DAY, hash_of("first"))]
    assert await rows(database, *outcomes.c["first", "last", "day", "status", "swept"]) == [
        (0, 4, DAY, "accepted", False), (5, 5, DAY, "rejected", False),
    ]  # fmt: skip
