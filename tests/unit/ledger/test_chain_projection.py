"""The projection of chain events into the database: its version, repeated delivery and reorgs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest
from sqlalchemy import Connection, Table, create_engine, delete, inspect, select

from explorer.summary import node_lines
from muster.contracts.court import AbsenceReported, CaseOpened, CaseResolved, Outcome, VoteCommitted, VoteRevealed
from muster.contracts.refutations import Flaw, Refuted
from muster.contracts.registry import Convicted, Fined, Registered, Role, Withdrawn
from muster.contracts.runs import CheckpointPublished, Voided, WorkCommitted
from muster.errors import ConfigError
from muster.ledger import events as event_log
from muster.ledger import tables
from muster.ledger.chain_projection import ChainProjection
from muster.ledger.database import Database
from muster.ledger.events import EventPage, events_after, record_event
from muster.ledger.queries import Queries, member_of
from muster.ledger.run_facts import ChainState
from muster.ledger.statements import insert_once, upsert
from muster.protocol.kinds import kind_of
from testbed.samples.projection import (
    OPERATOR,
    ROOT,
    TERMS,
    VALIDATOR,
    WORKER,
    apply,
    history,
    place,
    put_verdict,
    rows_of,
    status_of,
)

ABOUT = "run 1 of 0xab on chain 31337"


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url, ABOUT)
    yield opened
    await opened.close()


@pytest.fixture
def queries(database: Database) -> Queries:
    return Queries(database, 1, TERMS, groups_wanted=16)


def hash_of(number: int) -> str:
    """The transaction of a block."""
    return "0x" + f"{number:02x}" * 32


async def content(database: Database) -> dict[str, list[tuple]]:
    """Return every row of every table but `undo`, without ids of events, counts of writes, and what documents say."""
    found = {}
    for table in ({*tables.FROM_CHAIN} - {tables.undo}) | {tables.counts, tables.events, tables.meta}:
        columns = [column for column in table.columns if column is not tables.events.c.id]
        rows = await rows_of(database, select(*columns).order_by(*columns))
        found[table.name] = [tuple(row) for row in rows if row[0] not in ("writes", tables.DEED)]
    return found


async def count(database: Database, table: Table) -> int:
    return len(await rows_of(database, select(table)))


# The database


async def test_a_new_database_has_the_tables_and_no_others(database: Database, database_url: str) -> None:
    engine = create_engine(database_url)
    with engine.begin() as connection:
        found = inspect(connection)
        assert set(found.get_table_names()) == set(tables.metadata.tables)
        for table in tables.metadata.tables.values():
            assert [column["name"] for column in found.get_columns(table.name)] == table.columns.keys()
    engine.dispose()


async def test_database_belongs_to_one_run(new_database_url: Callable[[], str]) -> None:
    url = new_database_url()
    first = await Database.open(url, ABOUT)
    await first.close()
    again = await Database.open(url, ABOUT)
    await again.close()
    assert first.identity == again.identity
    with pytest.raises(ConfigError, match="belongs to run 1 of 0xab"):
        await Database.open(url, "run 2 of 0xab on chain 31337")
    new = await Database.open(new_database_url(), ABOUT)
    await new.close()
    assert new.identity != first.identity


async def test_many_writers_take_turns(database):
    def write(number: int) -> Callable[[Connection], None]:
        return lambda connection: upsert(connection, tables.meta, {"key": f"k{number}", "value": "x"})

    version = await database.current_version()
    await asyncio.gather(*(database.write(write(i)) for i in range(40)))
    assert await database.current_version() > version
    assert await count(database, tables.meta) == 44


async def test_two_processes_take_turns(database: Database, database_url: str) -> None:
    """A write of another connection waits until the current transaction ends, so no update is lost."""
    other = await Database.open(database_url, ABOUT)
    await database.write(lambda c: upsert(c, tables.meta, {"key": "n", "value": "0"}))

    def increase(connection: Connection) -> None:
        number = int(connection.execute(select(tables.meta.c.value).where(tables.meta.c.key == "n")).scalar_one())
        upsert(connection, tables.meta, {"key": "n", "value": str(number + 1)})

    await asyncio.gather(*(one.write(increase) for one in (database, other) * 20))
    await other.close()
    query = select(tables.meta.c.value).where(tables.meta.c.key == "n")
    assert await rows_of(database, query) == [("40",)]


async def test_a_failed_write_changes_nothing(database):
    def half_way(connection: Connection) -> None:
        upsert(connection, tables.meta, {"key": "half", "value": "x"})
        raise RuntimeError("half way")

    version = await database.current_version()
    with pytest.raises(RuntimeError, match="half way"):
        await database.write(half_way)
    assert await database.current_version() == version
    assert ("half",) not in await rows_of(database, select(tables.meta.c.key))


async def test_event_log_is_bounded(database, monkeypatch):
    monkeypatch.setattr(event_log, "MAX_EVENTS", 300)

    def write(connection: Connection) -> None:
        for i in range(1100):
            record_event(connection, "tick", {"i": i}, f"tick:{i}", 1.0)
            record_event(connection, "tick", {"i": 0}, f"tick:{i}", 1.0)  # PostgreSQL skips an id here

    await database.write(write)
    kept = [json.loads(row.data)["i"] for row in await rows_of(database, select(tables.events.c.data))]
    assert kept == list(range(1100))[-len(kept) :]
    assert 150 <= len(kept) <= 556


async def test_sources_longer_than_their_column_stay_distinct(database: Database) -> None:
    """PostgreSQL refuses a text that is too long for its column, and the document would be read again for ever."""
    long = "verdict:" + "a" * 100

    def write(connection: Connection) -> None:
        for source in (long + "1", long + "2", long + "1", "short"):
            record_event(connection, "rejected", {}, source, 1.0)

    await database.write(write)
    kept = [source for (source,) in await rows_of(database, select(tables.events.c.source))]
    assert len(kept) == 3
    assert "short" in kept
    assert {len(source) for source in kept} == {5, 60}


# The chain's events


async def test_every_event_reaches_its_tables(database, queries):
    await apply(database, queries, *history())
    found = await content(database)
    assert [(row[0], row[2], row[4], row[7]) for row in found["nodes"]] == [
        (WORKER, "worker", "jailed", 2),
        (VALIDATOR, "validator", "withdrawn", 0),
    ]
    assert found["checkpoints"][0][:4] == (0, "0x" + "01" * 32, "0x" + "02" * 32, "0x" + "04" * 32)
    assert [(row[0], row[1], row[4], row[6]) for row in found["commitments"]] == [
        (WORKER, 0, ROOT, "void"),
        (WORKER, 1, "0x" + "0e" * 32, "void"),
    ]
    assert [row[4:6] for row in found["cases"]] == [("wrong_reward", "guilty")]
    assert [row[2:] for row in found["payments"]] == [
        (WORKER, "claim", str(10**20), 1_006, hash_of(6)),
        (WORKER, "slash", "50", 1_012, hash_of(12)),
        (WORKER, "void", "7", 1_013, hash_of(13)),
    ]
    assert [(row[0], row[8:]) for row in found["nodes"]] == [
        (WORKER, (1_001, hash_of(1), 1, False, str(10**20), "7", "50", "0")),
        (VALIDATOR, (1_002, hash_of(2), 0, True, "0", "0", "0", "0")),
    ]
    assert [row[1:] for row in found["counts"] if row[0] == "seal"] == [(5, VALIDATOR, "", "", 1)]
    assert [row[12:] for row in found["cases"]] == [(0, "0x" + "0e" * 32, 2, 60, 90)]
    assert found["votes"] == [(9, OPERATOR, True, False, hash_of(9), hash_of(10))]
    largest = (1 << 63) - 1  # a leaf's position has 256 bits, a column 64
    assert found["proofs"] == [(11, 0, WORKER, 1, VALIDATOR, "malformed", "position_beyond", largest, hash_of(11))]
    kinds = {row[0] for row in found["events"]}
    assert kinds == {"joined", "checkpoint", "committed", "claimed", "sealed", "voted", "convicted", "voided"} | {
        "case opened",
        "case ended",
        "refuted",
        "retired",
        "withdrawn",
        "closed",
    }
    assert (await queries.demand()).wanted is False  # the run is closed


async def test_late_file_costs_the_fee_the_unsettled_pay_and_the_place(database, queries):
    opened = CaseOpened(
        place(5), 9, WORKER, VALIDATOR, 1, 1, 0, b"\x0e" * 32, kind_of("data_missing"), 0, b"\x05" * 32, 3, 0, 0
    )
    await apply(
        database,
        queries,
        *history()[:5],
        opened,
        Voided(place(6), 1, WORKER, 0, 1, 7),
        Fined(place(7), WORKER, 1, 10),
        CaseResolved(place(8), 9, WORKER, Outcome.CURED, 0, 2, 3),
        AbsenceReported(place(9), 9, VALIDATOR, OPERATOR, False),
        Fined(place(9), VALIDATOR, 1, 2),
    )
    found = await content(database)
    assert [(row[0], row[2], row[4]) for row in found["nodes"]] == [
        (WORKER, "worker", "retired"),
        (VALIDATOR, "validator", "active"),
    ]
    assert (await rows_of(database, select(tables.nodes.c.settled).where(tables.nodes.c.address == WORKER)))[0][0] == 2
    facts = await queries.facts()
    found_lines = await database.read(lambda connection: node_lines(connection, queries.terms, facts))
    lines = {line.address: line for line in found_lines}
    assert (lines[WORKER].fined, lines[WORKER].voided, lines[WORKER].slashed) == (10, 7, 0)
    assert lines[VALIDATOR].fined == 2
    penalties = [(row[0], json.loads(row[2])) for row in found["events"] if row[0] in ("fined", "absent")]
    assert ("absent", {"case": 9, "judge": VALIDATOR, "expelled": False}) in penalties
    assert ("fined", {"node": WORKER, "amount": 10}) in penalties


async def test_votes_of_a_judge_are_one_row_in_any_order(database, queries):
    """The order and the number of deliveries do not matter."""
    votes = [
        VoteCommitted(place(20), 9, OPERATOR, bytes(32)),
        VoteRevealed(place(21), 9, OPERATOR, False),
        VoteCommitted(place(22), 9, VALIDATOR, bytes(32)),
        AbsenceReported(place(23), 9, VALIDATOR, OPERATOR, True),
    ]
    await apply(database, queries, *history()[:8], *votes, *reversed(votes))
    assert (await content(database))["votes"] == [
        (9, VALIDATOR, None, True, hash_of(22), None),
        (9, OPERATOR, False, False, hash_of(20), hash_of(21)),
    ]


async def test_demand_counts_newcomers_and_able_workers(database, queries):
    """A node that joins after step 0 begins at step 2; a worker without commitments left waits for the next hour."""

    def joined(number: int, name: str) -> Registered:
        return Registered(place(number), name, OPERATOR, 1, Role.WORKER, 0, 100, bytes(32))

    def published(number: int, step: int) -> CheckpointPublished:
        return CheckpointPublished(place(number), 1, step, *(bytes([number]) * 32 for _ in range(4)))

    async def counts() -> tuple[int, int]:
        demand = await queries.demand()
        return demand.newcomers, demand.able_workers

    queries.chain = ChainState(now=5 * 3_600 + 60)
    await apply(database, queries, joined(1, WORKER), published(2, 0), joined(3, VALIDATOR))
    assert await counts() == (1, 1)
    report = await queries.node_report(VALIDATOR)
    assert report.blocked == "begins at step 2, the second after joining; the newest is step 0"
    await apply(database, queries, published(4, 1))
    assert await counts() == (1, 1)
    await apply(database, queries, published(5, 2))
    assert await counts() == (0, 2)
    assert (await queries.node_report(VALIDATOR)).blocked == ""
    roots = [bytes([index + 1]) * 32 for index in range(9)]
    await apply(database, queries, *(WorkCommitted(place(6), 1, WORKER, 2, i, 5, root) for i, root in enumerate(roots)))
    assert await counts() == (0, 1)
    report = await queries.node_report(WORKER)
    assert report.blocked == "all 9 commitments of this hour are made; the next hour begins 1970-01-01 06:00 UTC"
    queries.chain = ChainState(now=6 * 3_600)
    assert await counts() == (0, 2), "only the hour is new"


async def test_node_report_names_a_short_escrow(database, queries):
    await apply(database, queries, *history()[:3])
    queries.chain = ChainState(free_escrow=1, min_validators=1)
    assert (await queries.node_report(WORKER)).blocked == ""
    queries.chain = ChainState(free_escrow=0, min_validators=1)
    escrow = "the run's escrow cannot pay for another commitment: its owner must fund it"
    assert (await queries.node_report(WORKER)).blocked == escrow
    queries.chain = ChainState(min_validators=2)
    assert (await queries.node_report(WORKER)).blocked == "the run has 1 validators and takes no work before 2"


@pytest.mark.parametrize(("kept", "named"), [("6", "6"), (None, "older than 4")])
async def test_a_database_of_another_version_is_refused(
    new_database_url: Callable[[], str], kept: str | None, named: str
) -> None:
    database_url = new_database_url()
    await (await Database.open(database_url, ABOUT)).close()
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(delete(tables.meta).where(tables.meta.c.key == "version"))
        if kept is not None:
            insert_once(connection, tables.meta, {"key": "version", "value": kept})
    engine.dispose()
    with pytest.raises(ConfigError, match=f"^the database was made by another version of Muster: {named}$") as refused:
        await Database.open(database_url, ABOUT)
    assert "it is rebuilt from chain and storage" in refused.value.hint


async def test_repeated_delivery_changes_nothing(database, queries):
    await apply(database, queries, *history())
    once = await content(database)
    await apply(database, queries, *history())
    await apply(database, queries, *history()[3:9])
    assert await content(database) == once


async def test_reorg_clears_chain_tables_and_reads_again(database, queries):
    await apply(database, queries, *history())
    once = await content(database)
    await put_verdict(database)
    await database.write(ChainProjection(queries, tells=True).forget)
    found = await content(database)
    assert all(rows == [] for name, rows in found.items() if name != "meta")
    assert [row[0] for row in found["meta"]] == ["about", "identity", "version"]
    assert await count(database, tables.verdicts) == 1
    await apply(database, queries, *history())
    assert await content(database) == once


async def test_events_of_other_runs_are_ignored(database, queries):
    other = [
        Registered(place(1), WORKER, OPERATOR, 2, Role.WORKER, 0, 100, bytes(32)),
        CheckpointPublished(place(2), 2, 0, b"\x01" * 32, bytes(32), bytes(32), bytes(32)),
        CaseOpened(place(3), 9, WORKER, VALIDATOR, 2, 1, 0, bytes(32), kind_of("wrong_reward"), 2, bytes(32), 3, 0, 0),
        VoteCommitted(place(4), 9, OPERATOR, bytes(32)),
        VoteRevealed(place(4), 9, OPERATOR, True),
        AbsenceReported(place(4), 9, OPERATOR, OPERATOR, True),
        CaseResolved(place(5), 9, WORKER, Outcome.GUILTY, 2, 2, 3),
        Refuted(place(5), WORKER, 1, VALIDATOR, 1, Flaw.WRONG_TASK),
        Withdrawn(place(6), WORKER, OPERATOR, 1),
        Convicted(place(7), WORKER, 2, 50, 10, OPERATOR),
    ]
    empty = await content(database)
    await apply(database, queries, *other)
    assert await content(database) == empty


async def test_a_verdict_that_was_here_before_the_commitment_counts(database, queries):
    """A rebuild from storage reads verdicts before the chain."""
    await put_verdict(database)
    await apply(database, queries, *history()[:4])
    assert await status_of(database, 0) == ("accepted", None)


async def test_a_verdict_for_another_root_does_not_count(database, queries):
    """A reorg replaced the commitment, so verdicts on the old root do not apply."""
    await put_verdict(database, root="0x" + "0f" * 32)
    await apply(database, queries, *history()[:4])
    assert await status_of(database, 0) == ("pending", None)


async def test_a_workers_verdict_does_not_count(database, queries):
    await put_verdict(database, validator=WORKER)
    await apply(database, queries, *history()[:4])
    assert await status_of(database, 0) == ("pending", None)


async def test_conviction_cancels_a_validators_verdicts(database, queries):
    await put_verdict(database, accepted=False, reason="wrong_reward")
    await apply(database, queries, *history()[:5])
    assert await status_of(database, 0) == ("rejected", "wrong_reward")
    await apply(database, queries, Convicted(place(50), VALIDATOR, 1, 50, 10, OPERATOR))
    assert await status_of(database, 0) == ("pending", None)


async def test_repeated_registration_leaves_a_node_jailed(database, queries):
    await apply(database, queries, *history())
    await apply(database, queries, history()[0])
    member = await database.read(lambda connection: member_of(connection, WORKER))
    assert member is not None
    assert member.status == "jailed"


async def test_a_cursor_may_be_larger_than_any_id(database: Database, queries: Queries) -> None:
    await apply(database, queries, *history()[:1])
    last = (1 << 53) - 1
    assert (await database.read(lambda connection: events_after(connection, 0))).cursor == 1
    assert await database.read(lambda connection: events_after(connection, last)) == EventPage(events=[], cursor=last)
