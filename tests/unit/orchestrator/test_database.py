"""The database contract of the orchestrator, and how it notices a database that breaks it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from threading import Event

import pytest
from sqlalchemy import Connection, create_engine, delete, func, select, text

from muster.errors import ConfigError, StorageError
from orchestrator import database as module
from orchestrator import tables
from orchestrator.database import Database, insert_once, upsert
from testbed.waiting import BOUND

ABOUT = "a test"
SWALLOW = {
    "sqlite": ["CREATE TRIGGER swallow BEFORE INSERT ON meta BEGIN SELECT RAISE(IGNORE); END"],
    "postgresql": [
        "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER swallow BEFORE INSERT ON meta FOR EACH ROW EXECUTE FUNCTION swallow()",
    ],
}
"""Statements that make a database accept an insert and discard its row."""


@pytest.fixture
async def database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    monkeypatch.setattr(module, "CHECK_SECONDS", 0)
    opened = await Database.open(database_url, ABOUT)
    yield opened
    await opened.close()


def row(key: str) -> dict[str, str]:
    return {"key": key, "value": "x"}


def rows(connection: Connection) -> int:
    return connection.execute(select(func.count()).select_from(tables.meta)).scalar_one()


async def test_an_insert_knows_whether_it_was_the_first(database: Database) -> None:
    async def insert(key: str) -> bool:
        return await database.write(lambda connection: insert_once(connection, tables.meta, row(key)))

    assert [await insert("a"), await insert("a"), await insert("b")] == [True, False, True]


async def test_one_of_several_concurrent_inserts_is_the_first(database: Database, database_url: str) -> None:
    other = await Database.open(database_url, ABOUT)
    try:
        inserted = await asyncio.gather(
            *(one.write(lambda c: insert_once(c, tables.meta, row("once"))) for one in (database, other) * 10)
        )
    finally:
        await other.close()
    assert sorted(inserted) == [False] * 19 + [True]


async def test_the_queries_of_a_read_see_one_state(database: Database, database_url: str) -> None:
    other = await Database.open(database_url, ABOUT)
    loop = asyncio.get_running_loop()

    def twice(connection: Connection) -> tuple[int, int]:
        first = rows(connection)
        write = other.write(lambda inner: upsert(inner, tables.meta, row("meanwhile")))
        asyncio.run_coroutine_threadsafe(write, loop).result(BOUND)
        return first, rows(connection)

    try:
        before, meanwhile = await database.read(twice)
    finally:
        await other.close()
    assert (before, meanwhile, await database.read(rows)) == (3, 3, 4)


async def test_write_fails_when_its_turn_does_not_come(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_SECONDS", 0.2)
    begun, may_end = Event(), Event()

    def long(connection: Connection) -> bool:
        begun.set()
        return may_end.wait(BOUND)

    first = asyncio.create_task(database.write(long))
    assert await asyncio.to_thread(begun.wait, BOUND)
    with pytest.raises(StorageError, match=r"^database: busy for 0\.2 s$"):
        await database.write(rows)
    assert await database.read(rows) == 3
    may_end.set()
    assert await first is True
    assert await database.write(rows) == 3


async def test_a_check_passes_and_leaves_one_row(database: Database) -> None:
    for _ in range(3):
        await database.check()
    assert await database.read(rows) == 4


async def test_concurrent_callers_share_one_check(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_SECONDS", 60)
    await asyncio.gather(*(database.check() for _ in range(10)))
    query = select(tables.meta.c.value).where(tables.meta.c.key == "probe")
    first = await database.read(lambda connection: connection.execute(query).scalar_one())
    await database.check()
    assert await database.read(lambda connection: connection.execute(query).scalar_one()) == first


async def test_a_database_that_keeps_nothing_is_noticed(database: Database, database_kind: str) -> None:
    def swallow(connection: Connection) -> None:
        for statement in SWALLOW[database_kind]:
            connection.execute(text(statement))

    await database.check()
    await database.write(swallow)
    with pytest.raises(StorageError, match=r"a row written once was kept as \[\], reported as \(False, False\)"):
        await database.check()


async def test_replaced_database_is_noticed(database: Database) -> None:
    await database.write(lambda c: upsert(c, tables.meta, {"key": "identity", "value": "another"}))
    with pytest.raises(StorageError, match="not the one that was opened at the start"):
        await database.check()
    await database.write(lambda c: c.execute(delete(tables.meta).where(tables.meta.c.key == "identity")))
    with pytest.raises(StorageError, match="not the one that was opened at the start"):
        await database.check()


async def test_tables_that_are_gone_are_noticed(database: Database, database_url: str) -> None:
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE meta"))
    engine.dispose()
    with pytest.raises(StorageError, match="meta"):
        await database.check()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql+asyncpg://me:sec/ret@127.0.0.1/db", "postgresql+asyncpg://me:***@127.0.0.1/db"),
        ("postgresql+psycopg2://127.0.0.1/db?password=secret", "postgresql+psycopg2://127.0.0.1/db"),
        ("mysql://me:secret@127.0.0.1/db", "mysql://me:***@127.0.0.1/db"),
        ("postgresql//me:secret@127.0.0.1/db", "postgresql//me:…"),
        ("postgresql://me:secret@127.0.0.1:port/db", "postgresql:…"),
    ],
)
async def test_invalid_url_is_refused_without_its_password(url: str, shown: str) -> None:
    with pytest.raises(ConfigError) as refused:
        await Database.open(url, ABOUT)
    assert str(refused.value).startswith(f"database url {shown!r}")
    assert "sec" not in str(refused.value) + refused.value.hint
    assert refused.value.hint == "sqlite:///FILE, or postgresql://USER:PASSWORD@HOST/DATABASE"
