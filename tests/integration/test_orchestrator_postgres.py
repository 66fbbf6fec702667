"""An orchestrator whose database server refuses, restarts, hangs, locks or forbids. Uses a separate PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from psycopg import sql
from sqlalchemy import select

from muster.errors import ConfigError, StorageError
from muster.ledger import database as module
from muster.ledger import postgres, tables
from muster.ledger.database import Database
from muster.ledger.statements import upsert
from muster.protocol.hashes import NOTHING_HASH, content_hash
from muster.protocol.messages import StepReport
from muster.protocol.requests import sign_request
from testbed.runs.run_fixture import Orchestrator, RunFixture, some_hash
from testbed.servers.postgres import PASSWORD, PostgresServer
from testbed.waiting import BOUND, wait_until

ABOUT = "a test"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that tests may stop."""
    running = PostgresServer()
    yield running
    running.close()


@pytest.fixture
async def database(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    monkeypatch.setattr(module, "CHECK_SECONDS", 0)
    opened = await Database.open(server.create_database(), ABOUT)
    yield opened
    await opened.close()


def name_of(connection: Any) -> str:
    return connection.exec_driver_sql("SELECT current_database()").scalar_one()


# The url


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
async def test_every_way_to_name_it(server: PostgresServer, scheme: str) -> None:
    url = server.create_database()
    opened = await Database.open(url.replace("postgresql", scheme, 1), ABOUT)
    assert await opened.read(name_of) == url.rpartition("/")[2]
    await opened.close()


async def test_the_password_may_come_from_the_environment(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.create_database()
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    opened = await Database.open(url.partition(":%")[0] + "@" + url.partition("@")[2], ABOUT)
    assert await opened.read(name_of) == url.rpartition("/")[2]
    await opened.close()


async def test_a_wrong_password_is_not_shown(server: PostgresServer) -> None:
    url = server.create_database()
    wrong = url.partition(":%")[0] + ":some-secret@" + url.partition("@")[2]
    with pytest.raises(StorageError, match='password authentication failed for user "muster"') as refused:
        await Database.open(wrong, ABOUT)
    assert "some-secret" not in str(refused.value) + refused.value.hint


async def test_a_database_that_cannot_hold_every_text_is_refused(server: PostgresServer) -> None:
    with pytest.raises(ConfigError, match="encoded in LATIN1") as refused:
        await Database.open(server.create_database("LATIN1"), ABOUT)
    assert "ENCODING 'UTF8'" in refused.value.hint


async def test_without_its_driver_the_next_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "muster.ledger.postgres")
    with pytest.raises(ConfigError, match="psycopg") as refused:
        await Database.open("postgresql://127.0.0.1/muster", ABOUT)
    assert refused.value.hint == "pip install 'psycopg[binary]'"


# In trouble


async def test_read_only_database_is_reported_until_writable(server: PostgresServer, database: Database) -> None:
    name = sql.Identifier(await database.read(name_of))
    leave = sql.SQL("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = {}")
    leave = leave.format(sql.Literal(await database.read(name_of)))
    await database.check()
    server.administer(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name), leave)
    with pytest.raises(StorageError, match="read-only transaction"):
        await database.check()
    server.administer(sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(name), leave)
    await database.check()


async def test_another_writer_is_not_waited_for_without_end(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "LOCK_SECONDS", 1)
    url = server.create_database()
    first, second = await Database.open(url, ABOUT), await Database.open(url, ABOUT)
    loop = asyncio.get_running_loop()

    def hold(connection: Any) -> str:
        try:
            asyncio.run_coroutine_threadsafe(second.write(name_of), loop).result(BOUND)
        except StorageError as error:
            return str(error)
        return ""

    try:
        assert await first.write(hold) == "database: canceling statement due to lock timeout"
        assert await second.write(name_of) == url.rpartition("/")[2]
    finally:
        await first.close()
        await second.close()


async def test_a_statement_that_does_not_end_is_ended(database: Database) -> None:
    def sleep(connection: Any) -> None:
        shorten(connection, "statement_timeout", postgres.STATEMENT_SECONDS)
        connection.exec_driver_sql("SELECT pg_sleep(600)")

    with pytest.raises(StorageError, match="canceling statement due to statement timeout"):
        await database.read(sleep)


def shorten(connection: Any, bound: str, seconds: int) -> None:
    """See that the server keeps a bound of so many seconds, and let it keep a tenth of a second in this transaction."""
    assert connection.exec_driver_sql(f"SHOW {bound}").scalar_one() == f"{seconds}s"
    connection.exec_driver_sql(f"SET LOCAL {bound} = '100ms'")


async def test_stalled_transaction_times_out_and_frees_database(server: PostgresServer) -> None:
    url = server.create_database()
    stopped, other = await Database.open(url, ABOUT), await Database.open(url, ABOUT)

    def stop(connection: Any) -> None:
        backend = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        upsert(connection, tables.meta, {"key": "half", "value": "x"})
        shorten(connection, "idle_in_transaction_session_timeout", postgres.IDLE_SECONDS)
        wait_until(lambda: not psutil.pid_exists(backend), "the server has given this connection up")
        connection.exec_driver_sql("SELECT 1")

    try:
        with pytest.raises(StorageError, match="idle-in-transaction timeout"):
            await stopped.write(stop)
        query = select(tables.meta.c.key).where(tables.meta.c.key == "half")
        assert await other.write(lambda connection: connection.execute(query).all()) == []
    finally:
        await stopped.close()
        await other.close()


async def test_hung_server_fails_queries_in_bounded_time(
    server: PostgresServer, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections stay open, and its own timeouts no longer fire."""
    await asyncio.gather(*(database.read(name_of) for _ in range(7)))
    with monkeypatch.context() as patch:
        patch.setattr(postgres, "ANSWER_SECONDS", 1.0)
        patch.setattr(postgres, "CONNECT_SECONDS", 2)
        patch.setattr(module, "TURN_SECONDS", 4.0)
        server.freeze()
        try:
            asked = [database.read(name_of) for _ in range(30)] + [database.write(name_of) for _ in range(10)]
            failed = await asyncio.gather(*asked, database.check(), return_exceptions=True)
        finally:
            server.thaw()
    assert {type(error) for error in failed} == {StorageError}
    assert await database.read(name_of) == await database.write(name_of)
    await database.check()


# The story


@pytest.fixture(scope="module")
def run_fixture(deployment: Any, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    folder = tmp_path_factory.mktemp("postgres")
    run_fixture = asyncio.run(RunFixture.build(folder, deployment.settings, seed="on postgres", workers=("w1",)))
    asyncio.run(run_fixture.publish(0))
    return run_fixture


@pytest.fixture
def orchestrator(run_fixture: RunFixture, server: PostgresServer, tmp_path: Path) -> Iterator[Orchestrator]:
    with Orchestrator(run_fixture, tmp_path / "orchestrator", database_url=server.create_database()) as running:
        yield running
    said = running.said + running.json_log.read_text()
    for secret in ("Traceback", PASSWORD, running.database_url.split("@")[0].rpartition(":")[2]):
        assert secret not in said


def reasons(orchestrator: Orchestrator) -> list[str]:
    return json.loads(orchestrator.get("/readyz")[1])["reasons"]


async def test_a_restart_of_the_server_in_the_middle_of_a_run(
    run_fixture: RunFixture, orchestrator: Orchestrator, server: PostgresServer
) -> None:
    """Signed requests are accepted once before and after it, and refused in between with a reason."""
    bundle, data, root = b"evidence", b"rollouts" * 100, some_hash("root")
    target = f"{orchestrator.url}/v1/evidence"

    def post(headers: dict[str, str]) -> httpx2.Response:
        with httpx2.Client(trust_env=False, timeout=BOUND) as client:
            return client.post(target, content=bundle, headers=headers)

    def signed() -> dict[str, str]:
        return sign_request(
            run_fixture.key("v1"), run_fixture.domain, "POST", target, content_hash(bundle), now=time.time()
        )

    once = signed()
    assert [post(once).status_code, post(once).status_code, post(signed()).status_code] == [201, 401, 201]
    async with (
        run_fixture.client(orchestrator.url, "w1") as worker,
        run_fixture.client(orchestrator.url, "trainer") as trainer,
    ):
        receipt = await worker.put_file(data, run_fixture.run, 0, root)
        await trainer.post_step(StepReport(run=run_fixture.run, step=0, metrics={"reward": 0.5}))

        server.stop()
        node = f"{orchestrator.url}/v1/nodes/{run_fixture.key('w1').address}"
        for _ in range(2):  # whose it is takes the database too
            headers = sign_request(
                run_fixture.key("w1"), run_fixture.domain, "GET", node, NOTHING_HASH, now=time.time()
            )
            with httpx2.Client(trust_env=False, timeout=BOUND) as client:
                refused = client.get(node, headers=headers)
            assert (refused.status_code, refused.headers["content-type"]) == (503, "application/problem+json")
            assert refused.json()["detail"].startswith("database: ")
        refused = post(signed())
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["title"] == "Not ready"
        assert refused.json()["detail"].startswith("database: ")
        await asyncio.to_thread(
            wait_until, lambda: any(reason.startswith("database: ") for reason in reasons(orchestrator))
        )
        assert orchestrator.get("/healthz")[0] == 200
        assert await worker.get_file(receipt.file_hash) == data
        await run_fixture.commit("w1", 0, root)

        server.start()
        await asyncio.to_thread(wait_until, lambda: orchestrator.get("/readyz")[0] == 200)
        assert [post(once).json()["title"], post(signed()).status_code] == ["Replayed request", 201]
        for validator in (await run_fixture.called(orchestrator.url, "w1", 0))[:2]:
            async with run_fixture.client(orchestrator.url, validator) as client:
                verdict = run_fixture.verdict(validator, "w1", 0, root, content_hash(data))
                await client.post_verdict(verdict)
                await client.post_verdict(verdict)
        assert (await trainer.node(run_fixture.key("w1").address)).accepted == 1
        assert await worker.put_file(data, run_fixture.run, 0, root) == receipt


def test_a_backup_that_is_put_back_shows_and_the_chain_is_read_on_from_it(
    run_fixture: RunFixture, orchestrator: Orchestrator, server: PostgresServer
) -> None:
    live = orchestrator.database_url.rpartition("/")[2]
    names = {"live": sql.Identifier(live), "backup": sql.Identifier("backup"), "lost": sql.Identifier("lost")}
    leave = sql.SQL("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = {}")
    leave = leave.format(sql.Literal(live))

    def swap(*statements: str) -> None:
        """Change databases between two looks of the orchestrator, which reconnects at once."""
        closed = sql.SQL("ALTER DATABASE {live} ALLOW_CONNECTIONS false").format(**names)
        server.administer(closed, leave, *(sql.SQL(one).format(**names) for one in statements))  # type: ignore[arg-type]
        server.administer(sql.SQL("ALTER DATABASE {live} ALLOW_CONNECTIONS true").format(**names))

    def steps() -> int:
        return len(asyncio.run(orchestrator.rows(tables.checkpoints, "step")))

    before = steps()
    swap("CREATE DATABASE {backup} TEMPLATE {live}")
    asyncio.run(run_fixture.publish(before))
    wait_until(lambda: orchestrator.get("/readyz")[0] == 200 and steps() == before + 1)
    swap("ALTER DATABASE {live} RENAME TO {lost}", "ALTER DATABASE {backup} RENAME TO {live}")
    asyncio.run(run_fixture.publish(before + 1))  # a place that is not the one written last shows when a block comes
    wait_until(lambda: orchestrator.get("/readyz")[0] == 200 and steps() == before + 2)
