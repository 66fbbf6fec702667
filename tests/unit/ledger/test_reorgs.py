"""A database that was rolled back and read on is the one that would have been read from the chain that is there now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, delete, select

from muster.contracts.court import AbsenceReported, Outcome, VoteCommitted, VoteRevealed
from muster.contracts.refutations import Flaw, Refuted
from muster.contracts.registry import Fined, Registered, Retired, Role, Withdrawn
from muster.contracts.runs import Claimed, HourSealed, RunClosed, Voided
from muster.ledger import tables
from muster.ledger.database import Database
from testbed.runs.recorded_run import OPERATOR, VALIDATORS, WORKERS, Operation, ServedStory, ToldRun
from testbed.suite.examples import up_to

LATE = "0x" + "5" * 40
few = st.integers(0, 30)
PROOF = st.just(1), st.just(Flaw.WRONG_TASK)
workers, validators = st.sampled_from(WORKERS), st.sampled_from([*VALIDATORS, LATE])
ON_CHAIN = st.one_of(
    st.tuples(st.just("commit"), workers, st.integers(0, 3), st.integers(100, 103)),
    st.tuples(st.just("commit"), workers, st.integers(0, 3), st.integers(100, 103)),
    st.tuples(st.just("accuse"), validators, few),
    st.tuples(st.just("resolve"), few, st.sampled_from(list(Outcome)[1:])),
    st.tuples(st.just("convict"), st.sampled_from([*WORKERS, *VALIDATORS, LATE])),
    st.tuples(st.just("pay"), st.sampled_from([Claimed, Voided, Fined]), workers, few),
    st.tuples(st.just("happen"), st.just(VoteCommitted), st.integers(0, 2), validators, st.just(bytes(32))),
    st.tuples(st.just("happen"), st.just(VoteRevealed), st.integers(0, 2), validators, st.booleans()),
    st.tuples(st.just("happen"), st.just(AbsenceReported), st.integers(0, 2), validators, workers, st.booleans()),
    st.tuples(st.just("happen"), st.just(HourSealed), st.just(1), few, validators, *[st.just(bytes(32))] * 2),
    st.tuples(st.just("happen"), st.just(Retired), st.sampled_from(WORKERS + VALIDATORS), st.just(1), st.just(0)),
    st.tuples(st.just("happen"), st.just(Withdrawn), st.sampled_from(WORKERS), st.just(OPERATOR), st.just(1)),
    st.tuples(st.just("happen"), st.just(Refuted), workers, few, validators, *PROOF),
    st.just(("happen", RunClosed, 1, 0)),
    st.just(("happen", Registered, LATE, OPERATOR, 1, Role.VALIDATOR, 0, 100, bytes(32))),
)  # fmt: skip
BY_MEMBERS = st.one_of(
    st.tuples(st.just("judge"), validators, few, st.sampled_from([None, None, "data_missing", "wrong_root"])),
    st.tuples(st.just("upload"), few, st.integers(0, 5)),
    st.tuples(st.just("report"), st.integers(0, 3), st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5))),
)
OPERATIONS = st.lists(
    st.one_of(ON_CHAIN, ON_CHAIN, BY_MEMBERS, st.tuples(st.just("reorganise"), few)), min_size=15, max_size=50
)


@pytest.fixture(scope="module")
def shared_url(new_database_url: Callable[[], str]) -> str:
    return new_database_url()


def content(connection: Connection) -> dict[str, Any]:
    """Return every row but those of the database itself, without the ids of what comes again."""
    left_out = {"events": {"id"}, "undo": {"id"}, "verdicts": {"id"}}
    found = {}
    for table in tables.metadata.sorted_tables:
        columns = [column for column in table.columns if column.name not in left_out.get(table.name, ())]
        order = {"undo": table.c.get("id")}.get(table.name)
        rows = [
            tuple(row)
            for row in connection.execute(select(*columns).order_by(*[order] if order is not None else columns))
        ]
        found[table.name] = [row for row in rows if table is not tables.meta or row[0] == "closed"]
    return found


def emptied(connection: Connection, *kept: str) -> None:
    for table in tables.metadata.sorted_tables:
        if table is tables.meta:
            connection.execute(delete(table).where(table.c.key == "closed"))
        elif table.name not in kept:
            connection.execute(delete(table))
    connection.execute(delete(tables.counts).where(tables.counts.c.kind != tables.DEED))


FROM_MEMBERS = ("log", "uploads", "verdicts", "calls", "steps", "metric_buckets", "spent", "counts")
VERA = VALIDATORS[0]


@pytest.mark.parametrize("kind", [ToldRun, ServedStory])
@example([("judge", VERA, 0, "wrong_root"), ("convict", VERA), ("reorganise", 1)])
@example([("accuse", VERA, 0), ("judge", VERA, 0, "wrong_root"), ("resolve", 0, Outcome.NOT_GUILTY), ("reorganise", 1)])
@example([("accuse", VERA, 0), ("resolve", 0, Outcome.CURED), ("reorganise", 2), ("commit", WORKERS[0], 1, 102)])
@example(
    [
        ("happen", Registered, LATE, OPERATOR, 1, Role.VALIDATOR, 0, 100, bytes(32)),
        ("judge", LATE, 0, None),
        ("reorganise", 1),
    ]
)
@example(
    [("pay", Claimed, WORKERS[0], 5), ("happen", RunClosed, 1, 0), ("reorganise", 2), ("pay", Voided, WORKERS[0], 7)]
)
@example(
    [
        ("commit", WORKERS[1], 2, 103),
        ("upload", 6, 1),
        ("judge", VERA, 6, None),
        ("report", 1, {1}, {2}),
        ("reorganise", 1),
    ]
)
@given(operations=OPERATIONS)
@settings(max_examples=up_to(20, few=7))
def test_rolled_back_database_equals_one_read_from_scratch(
    kind: type[ToldRun], shared_url: str, tmp_path_factory: pytest.TempPathFactory, operations: list[Operation]
) -> None:
    async def run() -> None:
        database = await Database.open(shared_url, "a test")
        try:
            await database.write(emptied)
            told = kind(database, tmp_path_factory.getbasetemp() / "reorgs")
            await told.begin()
            for operation in operations:
                await told.do(operation)
            found = await database.read(content)
            assert bool(found["events"]) == kind.tells
            of_documents = {row for row in found["events"] if not row[-1].startswith("chain:")}
            await database.write(lambda connection: emptied(connection, *FROM_MEMBERS))
            await told.deliver(*told.happened)
            expected = await database.read(content)
            expected["events"] = sorted({*expected["events"], *of_documents})
            assert found == expected
        finally:
            await database.close()

    asyncio.run(run())
