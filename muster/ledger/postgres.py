"""What the database needs on PostgreSQL, through psycopg: an engine whose waits have bounds, and one writer at a time.

Imported only for a database there, since psycopg belongs to the extra `postgres`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import psycopg
from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError

from muster.errors import ConfigError

T = TypeVar("T")

CONNECT_SECONDS: Final = 5
"""Longest wait for a new connection, to each host that the URL names. The URL may say otherwise."""

STATEMENT_SECONDS: Final = 10
"""Longest run of one statement, kept by the server."""

LOCK_SECONDS: Final = 5
"""Longest wait for another process that writes, kept by the server."""

IDLE_SECONDS: Final = 30
"""Longest pause within a transaction, kept by the server: a process whose machine lost power keeps others from writing
no longer than this."""

ANSWER_SECONDS: Final = 15.0
"""Longest wait for any answer, kept here: a server that hangs keeps no time-out itself."""

_WRITERS_LOCK: Final = 0x6D757374  # "must"
"""Key of the advisory lock that a writing transaction holds."""

_READ_VERSION: Final = "SELECT value FROM meta WHERE key = 'writes'"
_RAISE_VERSION: Final = "UPDATE meta SET value = CAST(CAST(value AS bigint) + 1 AS text) WHERE key = 'writes'"


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed when the server has not answered for ANSWER_SECONDS."""

    def wait(self, gen: Generator[Any, Any, T], *arguments: Any, **options: Any) -> T:
        return super().wait(self._bounded(gen), *arguments, **options)

    def _bounded(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Pass on what psycopg's generator waits for, until it ends or the time is up."""
        deadline = time.monotonic() + ANSWER_SECONDS
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > deadline:
                    self.pgconn.finish()  # whose answer comes late must not be taken for the next one's
                    raise psycopg.OperationalError(f"the server has not answered for {ANSWER_SECONDS:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value


class OpenConnection:
    """A connection that stays open, for one statement at a time outside transactions."""

    def __init__(self, engine: Engine, prepare: str = "") -> None:
        """prepare: statement that each connection begins with."""
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._prepare = prepare
        self._connection: Connection | None = None
        self._thread = ThreadPoolExecutor(1, "database")

    async def scalar(self, statement: str) -> Any:
        """Return the value that a statement gives; it may run twice. Raises DBAPIError."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._scalar, statement)

    def _scalar(self, statement: str) -> Any:
        was_open = self._connection is not None
        try:
            return self._execute(statement)
        except DBAPIError:
            if not was_open:
                raise
            return self._execute(statement)  # the server may have restarted since the last one

    def _execute(self, statement: str) -> Any:
        try:
            if self._connection is None:
                self._connection = self._engine.connect()
                if self._prepare:
                    self._connection.exec_driver_sql(self._prepare)
            return self._connection.exec_driver_sql(statement).scalar()
        except DBAPIError:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        """End the connection, and with it the locks that it holds."""
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown()


class SharedVersion:
    """The version of a database that several processes use: a row that every write that is news raises."""

    def __init__(self, engine: Engine) -> None:
        self._connection = OpenConnection(engine)
        self._reading: asyncio.Task[int] | None = None
        self._next: asyncio.Task[int] | None = None

    def grow(self, connection: Connection) -> None:
        """Raise the version with the other changes of a transaction: no reader sees it before them."""
        connection.exec_driver_sql(_RAISE_VERSION)

    async def read(self) -> int:
        """Return the version. Calls share a read that begins after them. Raises DBAPIError."""
        if self._next is None:
            self._next = asyncio.create_task(self._read_after(self._reading))
            self._next.add_done_callback(lambda read: read.cancelled() or read.exception())  # callers may be gone
        return await asyncio.shield(self._next)

    async def _read_after(self, before: asyncio.Task[int] | None) -> int:
        if before is not None:
            await asyncio.wait([before])
        self._reading, self._next = self._next, None
        return int(await self._connection.scalar(_READ_VERSION))

    async def close(self) -> None:
        await self._connection.close()


def postgres_engine(url: URL, connections: int) -> Engine:
    """Return an engine with at most so many connections. Connects when it is first used."""
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"),
        pool_size=connections,
        max_overflow=0,
        pool_timeout=ANSWER_SECONDS,
        pool_pre_ping=True,  # a connection that broke while it was idle is replaced
        use_native_hstore=False,  # no column is one: saves a query per connection
    )
    event.listen(engine, "do_connect", _connect)
    event.listen(engine, "begin", _begin)
    return engine


def _connect(_dialect: object, _record: object, arguments: list[Any], options: dict[str, Any]) -> BoundedConnection:
    options = {"connect_timeout": CONNECT_SECONDS, "application_name": "muster"} | options
    connection = BoundedConnection.connect(*arguments, **options)
    bounds = {
        "statement_timeout": STATEMENT_SECONDS,
        "lock_timeout": LOCK_SECONDS,
        "idle_in_transaction_session_timeout": IDLE_SECONDS,
    }
    for name, seconds in bounds.items():
        connection.execute("SELECT set_config(%s, %s, false)", (name, f"{seconds}s"))
    connection.execute("SET synchronous_commit = on")  # a power failure takes nothing that was answered for
    connection.commit()
    return connection


def _begin(connection: Connection) -> None:
    """Wait for the turn to write. Each statement after it sees all that earlier writers committed."""
    if connection.get_execution_options().get("muster_writes", False):
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS_LOCK})")


def check_encoding(connection: Connection) -> None:
    """Raise ConfigError when the database cannot hold every text."""
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding != "UTF8":
        raise ConfigError(
            f"the database is encoded in {encoding}, which cannot hold every text",
            hint="CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, and set orchestrator.database_url to that",
        )
