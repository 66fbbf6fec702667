"""What processes agree on: one version of a shared database, one leader, one process per SQLite file, spools."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from sqlalchemy import Connection, select

from muster.errors import ConfigError, StorageError
from muster.ledger import tables
from muster.ledger.database import Database
from muster.ledger.statements import upsert
from orchestrator import lease
from orchestrator.lease import leading, only_process, own_spool
from orchestrator.start_mark import StartMark
from testbed.servers.postgres import PostgresServer
from testbed.waiting import until

Pair = tuple[Database, Database]


class Process:
    """What one process of a run does with marks and fills."""

    def __init__(self, database: Database, storage: Path) -> None:
        self.mark = StartMark(database, f"file:{storage}", "a test")
        self.database = database
        self.fills = 0

    async def fill(self) -> None:
        self.fills += 1

    def leading(self) -> AbstractAsyncContextManager[None]:
        return leading(self.database, self.mark, self.fill)


@pytest.fixture
async def pair(postgres: PostgresServer) -> AsyncIterator[Pair]:
    """Two processes' views of one database."""
    url = postgres.create_database()
    first, second = await Database.open(url, "a test"), await Database.open(url, "a test")
    yield first, second
    await first.close()
    await second.close()


def put(value: str) -> object:
    return lambda connection: upsert(connection, tables.meta, {"key": "x", "value": value})


def read(connection: Connection) -> str:
    return connection.execute(select(tables.meta.c.value).where(tables.meta.c.key == "x")).scalar_one()


async def test_news_of_one_process_is_a_new_version_for_all(pair: Pair) -> None:
    first, second = pair
    before = await second.current_version()
    for number in range(50):
        await first.write(put(str(number)))  # type: ignore[arg-type]
        assert await second.current_version() == before + number + 1
        assert await second.read(read) == str(number)
    await first.write(put("no news"), news=False)  # type: ignore[arg-type]

    def fail(_: Connection) -> None:
        raise ValueError("no news")

    with pytest.raises(ValueError, match="no news"):
        await first.write(fail)
    assert [await one.current_version() for one in pair] == [before + 50] * 2


async def test_concurrent_requests_share_reads_of_the_version(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    from muster.ledger.postgres import OpenConnection

    statements, scalar = [], OpenConnection.scalar

    async def counted(connection: OpenConnection, statement: str) -> object:
        statements.append(statement)
        return await scalar(connection, statement)

    monkeypatch.setattr(OpenConnection, "scalar", counted)
    first = asyncio.gather(*(pair[0].current_version() for _ in range(100)))
    await asyncio.sleep(0.001)
    later = asyncio.gather(*(pair[0].current_version() for _ in range(100)))
    assert len({*await first, *await later}) == 1
    assert len(statements) == 2


async def test_version_is_read_again_when_the_connection_has_ended(pair: Pair, postgres: PostgresServer) -> None:
    from psycopg import sql

    before = await pair[0].current_version()
    name = await pair[0].read(lambda connection: connection.exec_driver_sql("SELECT current_database()").scalar_one())
    end = sql.SQL("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = {}")
    postgres.administer(end.format(sql.Literal(name)))
    assert await pair[0].current_version() == before


async def test_one_leads_and_another_takes_over(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.05)
    first, second = pair
    one, two = Process(first, tmp_path).leading(), Process(second, tmp_path).leading()
    await one.__aenter__()
    await two.__aenter__()
    assert (first.leads, second.leads) == (True, False)
    await asyncio.sleep(0.2)
    assert (first.leads, second.leads) == (True, False)
    await one.__aexit__(None, None, None)
    await until(lambda: second.leads)
    await two.__aexit__(None, None, None)


async def test_silent_leader_loses_the_lease(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection stays open, as that of a frozen process."""
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.05)
    silent = pair[0].open_connection("SET idle_session_timeout = '300ms'")
    assert await silent.scalar(lease.TAKE)
    async with Process(pair[1], tmp_path).leading():
        assert not pair[1].leads
        await until(lambda: pair[1].leads)
    await silent.close()


async def test_a_process_alone_leads(tmp_path: Path) -> None:
    database = await Database.open(f"sqlite:///{tmp_path}/one.db", "a test")
    async with Process(database, tmp_path).leading():
        assert database.leads
    await database.close()


class KilledError(Exception):
    """Ends a process without a clean stop."""


async def kill(process: Process) -> None:
    with pytest.raises(KilledError):
        async with process.leading():
            raise KilledError


async def test_only_a_clean_stop_spares_the_next_start_a_fill(tmp_path: Path) -> None:
    url, file, copy = f"sqlite:///{tmp_path}/one.db", tmp_path / "one.db", tmp_path / "copy.db"
    fills = []

    async def run(*, killed: bool = False) -> None:
        database = await Database.open(url, "a test")
        process = Process(database, tmp_path / "storage")
        if killed:
            await kill(process)
        else:
            async with process.leading():
                assert not await process.mark.is_same()  # which a copy made now would have
        await database.close()
        fills.append(process.fills)

    await run()
    await run()
    shutil.copy(file, copy)
    await run()
    await run(killed=True)
    await run()
    await run()
    shutil.copy(copy, file)
    await run()
    await run()
    shutil.rmtree(tmp_path / "storage")
    await run()
    assert fills == [1, 0, 0, 0, 1, 0, 1, 0, 1]


async def test_a_database_fills_after_another_one_was_used_with_its_storage(tmp_path: Path) -> None:
    """A second orchestrator takes over before the first is stopped, and the first one's database is used again."""
    databases = [await Database.open(f"sqlite:///{tmp_path}/{name}.db", "a test") for name in ("one", "two")]
    one, two = (Process(database, tmp_path / "storage") for database in databases)
    first = one.leading()
    await first.__aenter__()
    async with two.leading():
        await first.__aexit__(None, None, None)
    async with one.leading():
        pass
    assert (one.fills, two.fills) == (2, 1)
    for database in databases:
        await database.close()


async def test_storage_of_another_run_is_refused(tmp_path: Path) -> None:
    """A node of one could send a file of the other, and have it deleted a day later."""
    database = await Database.open(f"sqlite:///{tmp_path}/one.db", "a test")
    other = StartMark(database, f"file:{tmp_path}", "another run")
    await other.renew()
    with pytest.raises(ConfigError, match="keeps the files of another run"):
        await Process(database, tmp_path).leading().__aenter__()
    await database.close()


async def test_of_two_processes_the_last_to_stop_spares_the_next_a_fill(pair: Pair, tmp_path: Path) -> None:
    one, two = (Process(database, tmp_path) for database in pair)
    for first, last in ((one, two), (two, one)):
        async with last.leading():
            async with first.leading():
                pass
            assert not await one.mark.is_same()
        assert await one.mark.is_same()
    assert (one.fills, two.fills) == (0, 1)  # the second one to start found the first at work
    shared = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"

    async def serve(number: int) -> bool:  # the server notices soon after a process has ended
        return await one.database.read(lambda c: c.exec_driver_sql(shared).scalar_one()) == number

    async with one.leading():
        await kill(two)
        await until(lambda: serve(1))
    assert await one.mark.is_same()  # what the other wrote is in the database that both have
    await kill(two)
    await until(lambda: serve(0))
    async with one.leading():
        pass
    assert (one.fills, two.fills) == (1, 1)


def test_sqlite_file_has_one_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/one.db"
    with only_process(url):
        with (
            pytest.raises(ConfigError, match=r"another orchestrator uses the database .*one\.db") as refused,
            only_process(url),
        ):
            pass
        assert "PostgreSQL" in refused.value.hint
    with only_process(url), only_process("postgresql://127.0.0.1/muster"), only_process("sqlite://"):
        pass


def test_spools_of_processes_that_are_gone_are_deleted(tmp_path: Path) -> None:
    spool = tmp_path / "uploads"
    gone = spool / "gone"
    gone.mkdir(parents=True)
    (gone / "upload-x").write_bytes(b"half")
    (spool / "upload-y").write_bytes(b"half")
    with own_spool(spool) as first:
        (first / "upload-z").write_bytes(b"under way")
        with own_spool(spool) as second:
            assert sorted(spool.iterdir()) == sorted([first, second])
            assert (first / "upload-z").exists()
        assert list(spool.iterdir()) == [first]
    assert list(spool.iterdir()) == []


def test_impossible_spool_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Not a directory"), own_spool(tmp_path / "file" / "uploads"):
        pass
