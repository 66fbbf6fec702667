"""The database contract of the orchestrator, and how it notices a database that breaks it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import islice
from threading import Event

import pytest
from sqlalchemy import Connection, Engine, create_engine, delete, event, func, select, text
from sqlalchemy.exc import DBAPIError

from muster.errors import ConfigError, StorageError
from muster.ledger import database as module
from muster.ledger import tables
from muster.ledger.database import Database
from muster.ledger.statements import insert_once, upsert
from testbed.waiting import BOUND, until

ABOUT = "a test"
SWALLOW = {
    "sqlite": ["CREATE TRIGGER swallow BEFORE INSERT ON meta BEGIN SELECT RAISE(IGNORE); END"],
    "postgresql": [
        "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER swallow BEFORE INSERT ON meta FOR EACH ROW EXECUTE FUNCTION swallow()",
    ],
}
"""Statements that make a database accept an insert and discard its row."""

WRITING = """
import asyncio, itertools, sys
from muster.ledger import tables
from muster.ledger.database import Database
from muster.ledger.statements import insert_once

async def main(url, about):
    database, numbers = await Database.open(url, about), itertools.count()

    async def write():
        for key in map(str, numbers):
            assert await database.write(lambda c: insert_once(c, tables.meta, {"key": key, "value": "x"}))
            print(key, flush=True)

    await asyncio.gather(*(write() for _ in range(20)))

asyncio.run(main(*sys.argv[1:]))
"""
"""A program that writes rows in twenty tasks, and prints the key of each that was acknowledged."""


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
    assert (before, meanwhile, await database.read(rows)) == (4, 4, 5)


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
    assert await database.read(rows) == 4
    may_end.set()
    assert await first is True
    assert await database.write(rows) == 4


def insert(key: str) -> Callable[[Connection], bool]:
    return lambda connection: insert_once(connection, tables.meta, row(key))


async def test_reads_that_hang_delay_no_write(database: Database) -> None:
    """64 of them wait behind seven; what is written meanwhile is kept, and then all are answered in order."""
    hangs, began = Event(), list[int]()

    async def read(number: int) -> int:
        def work(_: Connection) -> int:
            began.append(number)
            hangs.wait(BOUND)
            return number

        return await database.read(work)

    crowd = [asyncio.create_task(read(number)) for number in range(71)]
    try:
        await until(lambda: len(began) == 7, "the readers are taken")
        assert await asyncio.wait_for(database.write(insert("meanwhile")), BOUND)
        assert sorted(began) == [*range(7)]
    finally:
        hangs.set()
    assert await asyncio.gather(*crowd) == [*range(71)]


@asynccontextmanager
async def busy(database: Database) -> AsyncIterator[None]:
    """Let everything that is written in the block wait, so that it is one batch, which runs at the end."""
    begun, may_end = Event(), Event()
    first = asyncio.create_task(database.write(lambda _: begun.set() or may_end.wait(BOUND), news=False))
    assert await asyncio.to_thread(begun.wait, BOUND)
    yield
    await asyncio.sleep(0)  # so that the tasks of the block have begun
    may_end.set()
    await first


@contextmanager
def listening(listener: Callable[..., object], what: str = "commit") -> Iterator[None]:
    event.listen(Engine, what, listener)
    yield
    event.remove(Engine, what, listener)


async def test_waiting_writes_share_one_commit(database: Database) -> None:
    commits, version = list[Connection](), await database.current_version()
    with listening(commits.append):
        async with busy(database):
            writes = [asyncio.create_task(database.write(insert(key))) for key in "abcb"]
        assert await asyncio.gather(*writes) == [True, True, True, False]
    assert len(commits) == 2
    assert await database.current_version() == version + 1


async def test_failed_write_of_a_batch_is_rolled_back_alone(database: Database) -> None:
    def refuse(connection: Connection) -> None:
        insert_once(connection, tables.meta, row("refused"))
        raise ConfigError("refused")

    def break_down(connection: Connection) -> None:
        insert_once(connection, tables.meta, row("broken"))
        connection.execute(text("SELECT nothing FROM nowhere"))

    version = await database.current_version()
    async with busy(database):
        works = insert("a"), refuse, insert("b"), break_down, insert("c")
        writes = [asyncio.create_task(database.write(work)) for work in works]
    one, refused, two, broken, three = await asyncio.gather(*writes, return_exceptions=True)
    assert (one, two, three) == (True, True, True)
    assert isinstance(refused, ConfigError)
    assert isinstance(broken, StorageError)
    assert await database.read(rows) == 7
    assert await database.current_version() == version + 1


async def test_failed_commit_fails_its_whole_batch(database: Database) -> None:
    works = list[str]()

    def fail(_: Connection) -> None:
        if len(works) == 2:
            raise DBAPIError("COMMIT", None, Exception("the disk is full"))

    version = await database.current_version()
    with listening(fail), listening(lambda _connection, name, _context: works.append(name), "release_savepoint"):
        async with busy(database):
            writes = [asyncio.create_task(database.write(insert(key))) for key in "ab"]
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["database: the disk is full"] * 2
    assert await database.read(rows) == 4
    assert await database.current_version() == version


async def test_transaction_that_the_database_ends_fails_its_whole_batch(database: Database, database_kind: str) -> None:
    """The savepoint of the failed work is gone with it, and so are the rows of the works before."""

    def end(connection: Connection) -> None:
        connection.execute(
            text("ROLLBACK" if database_kind == "sqlite" else "SELECT pg_terminate_backend(pg_backend_pid())")
        )
        connection.execute(text("SELECT nothing FROM nowhere"))

    async with busy(database):
        writes = [asyncio.create_task(database.write(work)) for work in (insert("a"), end, insert("b"))]
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StorageError] * 3
    assert await database.read(rows) == 4
    assert await database.write(insert("a")) is True


async def test_cancelled_write_that_waits_does_not_run(database: Database) -> None:
    async with busy(database):
        kept, gone = (asyncio.create_task(database.write(insert(key))) for key in "ab")
        await asyncio.sleep(0)
        gone.cancel()
    assert await kept is True
    assert await database.read(rows) == 5


def test_killed_process_keeps_every_write_that_it_acknowledged(database_url: str) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITING, database_url, ABOUT], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        acknowledged = list(islice(process.stdout, 200))
        process.kill()
        acknowledged += [line for line in process.stdout if line.endswith(b"\n")]
    engine = create_engine(database_url)
    with engine.begin() as connection:
        kept = set(connection.execute(select(tables.meta.c.key)).scalars())
    engine.dispose()
    assert {line.decode().strip() for line in acknowledged} <= kept


async def test_a_check_passes_and_leaves_one_row(database: Database) -> None:
    for _ in range(3):
        await database.check()
    assert await database.read(rows) == 5


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
