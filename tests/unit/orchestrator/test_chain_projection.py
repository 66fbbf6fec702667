"""The database and the chain's events in it: migrations, nonces, at-least-once delivery, reorgs. Real SQLite files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Table, create_engine, inspect, select

from muster.chain.codec import Event, Place
from muster.chain.contracts.court import CaseOpened, CaseResolved, Kind, Outcome, VoteRevealed
from muster.chain.contracts.registry import Convicted, Registered, Retired, Role, Withdrawn
from muster.chain.contracts.runs import CheckpointPublished, Claimed, HourSealed, RunClosed, Voided, WorkCommitted
from muster.errors import ConfigError
from muster.terms import Terms, WorkClass
from orchestrator import happenings, nonces, tables
from orchestrator.chainbook import ChainBook
from orchestrator.database import Database, insert_once, migrate, upsert
from orchestrator.happenings import tell
from orchestrator.ledger import Ledger, member_of

ABOUT = "run 1 of 0xab on chain 31337"
WORKER, VALIDATOR, OPERATOR = ("0x" + digit * 40 for digit in "abc")
ROOT = "0x" + "0d" * 32
TERMS = Terms(
    *("0x" + "00" * 20,) * 3,
    *(1,) * 6,
    slash_bps=1,
    bounty_bps=1,
    group_size=2,
    groups_per_commitment=4,
    commitments_per_hour=9,
    async_level=2,
    accepts_required=1,
    seal_quorum=2,
    min_step_interval=1,
    commit_phase=1,
    reveal_phase=1,
    jury_seniority=1,
    temperature_micro=1,
    max_prompt_tokens=1,
    max_completion_tokens=1,
    task_count=1,
    task_root=b"",
    model_hash=b"",
    tokenizer_hash=b"",
    profile=b"",
    classes=(WorkClass(10_000, (8,)),),
)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = await Database.open(f"sqlite:///{tmp_path}/orchestrator.db", ABOUT)
    yield opened
    await opened.close()


@pytest.fixture
def ledger(database: Database) -> Ledger:
    return Ledger(database, 1, TERMS, batch_groups=8, demand_batches=2)


def place(number: int) -> Place:
    return Place(block=number, block_hash=bytes(32), transaction=bytes([number]) * 32, log_index=0)


def history() -> list[Event]:
    """One of everything, one event a block."""
    makers = [
        lambda at: Registered(at, WORKER, OPERATOR, 1, Role.WORKER, 0, 100, bytes(32)),
        lambda at: Registered(at, VALIDATOR, OPERATOR, 1, Role.VALIDATOR, 0, 100, b"\x07" * 32),
        lambda at: CheckpointPublished(at, 1, 0, b"\x01" * 32, b"\x02" * 32, b"\x03" * 32, b"\x04" * 32),
        lambda at: WorkCommitted(at, 1, WORKER, 0, 0, 5, bytes.fromhex(ROOT[2:])),
        lambda at: WorkCommitted(at, 1, WORKER, 0, 1, 5, b"\x0e" * 32),
        lambda at: Claimed(at, 1, WORKER, OPERATOR, 0, 0, 10**20),
        lambda at: HourSealed(at, 1, 5, VALIDATOR, bytes(32), 3),
        lambda at: CaseOpened(
            at, 9, WORKER, VALIDATOR, 1, 1, 0, b"\x0e" * 32, Kind.WRONG_REWARD, 2, b"\x05" * 32, 3, 0, 0
        ),
        lambda at: VoteRevealed(at, 9, OPERATOR, True),
        lambda at: Convicted(at, WORKER, 1, 50, 10, OPERATOR),
        lambda at: Voided(at, 1, WORKER, 1, 1, 7),
        lambda at: CaseResolved(at, 9, WORKER, Outcome.GUILTY, 2, 2, 3),
        lambda at: Retired(at, VALIDATOR, 1, 0),
        lambda at: Withdrawn(at, VALIDATOR, OPERATOR, 1),
        lambda at: RunClosed(at, 1, 0),
    ]
    return [make(place(number)) for number, make in enumerate(makers, 1)]


async def apply(database: Database, ledger: Ledger, *events: Event) -> None:
    book = ChainBook(ledger)
    await database.write(lambda connection: [book.apply(connection, event) for event in events])


async def content(database: Database) -> dict[str, list[tuple]]:
    """Every row of every table, but for when we learned of it."""
    found = {}
    for table in (*tables.FROM_CHAIN, tables.events, tables.meta):
        columns = [column for column in table.columns if column.name not in ("time", "id")]
        found[table.name] = [tuple(row) for row in await rows_of(database, select(*columns).order_by(*columns))]
    return found


async def rows_of(database: Database, query: Any) -> list[Any]:
    return list(await database.read(lambda connection: connection.execute(query).all()))


async def count(database: Database, table: Table) -> int:
    return len(await rows_of(database, select(table)))


async def put_verdict(database: Database, **changes: Any) -> None:
    await database.write(lambda connection: insert_once(connection, tables.verdicts, a_verdict(**changes)))


def a_verdict(**changes: Any) -> dict[str, Any]:
    row = {"validator": VALIDATOR, "node": WORKER, "index": 0, "root": ROOT, "accepted": True, "reason": None}
    return row | {"draw_index": 0, "preimage": ROOT, "document": "{}", "received": 0.0} | changes


async def standing_of(database: Database, index: int) -> tuple[str, str | None]:
    query = select(tables.commitments.c.standing, tables.commitments.c.reason)
    ((standing, reason),) = await rows_of(database, query.where(tables.commitments.c.index == index))
    return standing, reason


# The database


def test_the_migrations_make_the_tables(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/fresh.db")
    with engine.begin() as connection:
        migrate(connection)
        migrate(connection)
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, tables.metadata) == []
        assert set(inspect(connection).get_table_names()) == {*tables.metadata.tables, "alembic_version"}
    engine.dispose()


async def test_a_database_knows_what_it_is_about(tmp_path):
    url = f"sqlite:///{tmp_path}/deep/folder/orchestrator.db"
    first = await Database.open(url, ABOUT)
    await first.close()
    again = await Database.open(url, ABOUT)
    await again.close()
    assert first.identity == again.identity
    with pytest.raises(ConfigError, match="belongs to run 1 of 0xab"):
        await Database.open(url, "run 2 of 0xab on chain 31337")
    for path in (tmp_path / "deep" / "folder").iterdir():
        path.unlink()
    new = await Database.open(url, ABOUT)
    await new.close()
    assert new.identity != first.identity


async def remember(database: Database, signer: str, nonce: int, expiry: float, now: float) -> str:
    return await database.write(lambda c: nonces.remember(c, signer, f"0x{nonce:064x}", int(expiry), now))


async def test_nonces_are_new_once_until_they_expire(database):
    now = time.time()
    expiry = int(now) + 30
    assert await remember(database, WORKER, 1, expiry, now) == "new"
    assert await remember(database, WORKER, 1, expiry, now) == "replayed"
    assert await remember(database, VALIDATOR, 1, expiry, now) == "new"
    assert await remember(database, WORKER, 1, expiry, expiry - 0.1) == "replayed"
    # After its expiry the request is refused for that; the table need not remember it.
    assert await remember(database, WORKER, 2, expiry + 90, expiry + 60) == "new"
    assert await count(database, tables.nonces) == 1


async def test_live_nonces_of_one_signer_are_bounded(database, monkeypatch):
    monkeypatch.setattr(nonces, "MAX_PER_SIGNER", 3)
    now = time.time()
    for i in range(3):
        assert await remember(database, WORKER, i, now + 30, now) == "new"
    assert await remember(database, WORKER, 9, now + 30, now) == "flooded"
    assert await remember(database, VALIDATOR, 9, now + 30, now) == "new"
    assert await remember(database, WORKER, 9, now + 99, now + 31) == "new"


async def test_many_writers_take_turns(database):
    def write(number: int) -> Callable[[Connection], None]:
        return lambda connection: upsert(connection, tables.meta, {"key": f"k{number}", "value": "x"})

    version = database.version
    await asyncio.gather(*(database.write(write(i)) for i in range(40)))
    assert database.version == version + 40
    assert await count(database, tables.meta) == 42


async def test_two_processes_take_turns(database, tmp_path):
    """Another connection writes between the reading and the writing of a transaction: it waits, nothing is lost."""
    other = await Database.open(f"sqlite:///{tmp_path}/orchestrator.db", ABOUT)
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

    version = database.version
    with pytest.raises(RuntimeError, match="half way"):
        await database.write(half_way)
    assert database.version == version
    assert ("half",) not in await rows_of(database, select(tables.meta.c.key))


async def test_the_story_is_bounded(database, monkeypatch):
    monkeypatch.setattr(happenings, "MAX_EVENTS", 300)

    def write(connection: Connection) -> None:
        for i in range(1100):
            tell(connection, "tick", {"i": i}, f"tick:{i}")
        tell(connection, "tick", {"i": 0}, "tick:1099")

    await database.write(write)
    ids = [row.id for row in await rows_of(database, select(tables.events.c.id))]
    assert max(ids) == 1100
    assert 300 <= len(ids) <= 556


# The chain's events


async def test_everything_is_written_down(database, ledger):
    await apply(database, ledger, *history())
    found = await content(database)
    assert [(row[0], row[2], row[4]) for row in found["nodes"]] == [
        (WORKER, "worker", "jailed"),
        (VALIDATOR, "validator", "withdrawn"),
    ]
    assert found["checkpoints"][0][:4] == (0, "0x" + "01" * 32, "0x" + "02" * 32, "0x" + "04" * 32)
    assert [(row[0], row[1], row[4], row[6]) for row in found["commitments"]] == [
        (WORKER, 0, ROOT, "void"),
        (WORKER, 1, "0x" + "0e" * 32, "void"),
    ]
    assert [row[3:5] for row in found["cases"]] == [("wrong_reward", "guilty")]
    assert sorted(row[2:] for row in found["payments"]) == sorted(
        [(WORKER, "claim", str(10**20)), (VALIDATOR, "seal", "3"), (WORKER, "slash", "50"), (WORKER, "void", "7")]
    )
    kinds = {row[0] for row in found["events"]}
    assert kinds == {"joined", "checkpoint", "committed", "claimed", "sealed", "voted", "convicted", "voided"} | {
        "case opened",
        "case ended",
        "retired",
        "withdrawn",
        "closed",
    }
    assert (await ledger.demand()).wanted is False  # the run is closed


async def test_delivered_twice_is_delivered_once(database, ledger):
    await apply(database, ledger, *history())
    once = await content(database)
    await apply(database, ledger, *history())
    await apply(database, ledger, *history()[3:9])
    assert await content(database) == once


async def test_a_reorg_forgets_and_reads_anew(database, ledger):
    await apply(database, ledger, *history())
    once = await content(database)
    await put_verdict(database)
    await database.write(ChainBook(ledger).forget)
    found = await content(database)
    assert all(found[table.name] == [] for table in (*tables.FROM_CHAIN, tables.events))
    assert [row[0] for row in found["meta"]] == ["about", "identity"]
    assert await count(database, tables.verdicts) == 1
    await apply(database, ledger, *history())
    assert await content(database) == once


async def test_other_runs_are_passed_over(database, ledger):
    other = [
        Registered(place(1), WORKER, OPERATOR, 2, Role.WORKER, 0, 100, bytes(32)),
        CheckpointPublished(place(2), 2, 0, b"\x01" * 32, bytes(32), bytes(32), bytes(32)),
        CaseOpened(place(3), 9, WORKER, VALIDATOR, 2, 1, 0, bytes(32), Kind.WRONG_REWARD, 2, bytes(32), 3, 0, 0),
        VoteRevealed(place(4), 9, OPERATOR, True),
        CaseResolved(place(5), 9, WORKER, Outcome.GUILTY, 2, 2, 3),
        Withdrawn(place(6), WORKER, OPERATOR, 1),
        Convicted(place(7), WORKER, 2, 50, 10, OPERATOR),
    ]
    empty = await content(database)
    await apply(database, ledger, *other)
    assert await content(database) == empty


async def test_a_verdict_that_was_here_before_the_commitment_counts(database, ledger):
    """As after a rebuild from storage: verdicts first, chain later."""
    await put_verdict(database)
    await apply(database, ledger, *history()[:4])
    assert await standing_of(database, 0) == ("accepted", None)


async def test_a_verdict_for_another_root_does_not_count(database, ledger):
    """A reorg replaced the commitment: what was said of the old one says nothing of the new one."""
    await put_verdict(database, root="0x" + "0f" * 32)
    await apply(database, ledger, *history()[:4])
    assert await standing_of(database, 0) == ("pending", None)


async def test_a_workers_verdict_does_not_count(database, ledger):
    await put_verdict(database, validator=WORKER)
    await apply(database, ledger, *history()[:4])
    assert await standing_of(database, 0) == ("pending", None)


async def test_convicting_a_validator_takes_its_word_back(database, ledger):
    await put_verdict(database, accepted=False, reason="wrong_reward")
    await apply(database, ledger, *history()[:5])
    assert await standing_of(database, 0) == ("rejected", "wrong_reward")
    await apply(database, ledger, Convicted(place(50), VALIDATOR, 1, 50, 10, OPERATOR))
    assert await standing_of(database, 0) == ("pending", None)


async def test_a_registration_seen_again_brings_nobody_back(database, ledger):
    await apply(database, ledger, *history())
    await apply(database, ledger, history()[0])
    member = await database.read(lambda connection: member_of(connection, WORKER))
    assert member is not None
    assert member.status == "jailed"


async def test_cursors_of_another_database_begin_anew(database, ledger):
    for after in (None, "", "nonsense", "other.7", f"{database.identity}.", f"{database.identity}.-1", "a.b.c"):
        page = await ledger.verdict_page(after)
        assert (page.verdicts, page.cursor) == ([], f"{database.identity}.0")
    assert (await ledger.verdict_page(f"{database.identity}.7")).cursor == f"{database.identity}.7"
