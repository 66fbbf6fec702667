"""What the database needs on PostgreSQL, through psycopg: an engine whose waits have bounds, and one writer at a time.

Imported only for a database there, since psycopg belongs to the extra `postgres`.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, Final, TypeVar

import psycopg
from sqlalchemy import URL, Connection, Engine, create_engine, event

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
