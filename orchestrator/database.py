"""The database: opening it, migrating it, and transactions of which one writes at a time.

SQLAlchemy's plain (blocking) face, one trip to a thread per unit of work: `read` and `write` take a function of a
connection. Measured on SQLite, that costs a quarter of the asynchronous face, which makes a trip per statement.

SQLite in WAL mode by default: readers never wait for the writer, and a killed process loses nothing it answered for.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, Table, create_engine, event, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from muster.errors import ConfigError, StorageError
from orchestrator import tables

T = TypeVar("T")

_HINT: Final = "check orchestrator.database_url"
_BUSY_MILLISECONDS: Final = 5_000
_MIGRATIONS: Final = Path(__file__).parent / "migrations"


class Database:
    """The service's state. Make one with `Database.open`."""

    def __init__(self, engine: Engine, identity: str) -> None:
        self._engine = engine
        self._writers = engine.execution_options(muster_writes=True)
        self._writing = asyncio.Lock()
        self.identity = identity
        """Random name of this database: a new one after deletion, so that cursors into the old one are noticed."""
        self.version = 0
        """Grows with every write that is news: what was computed at one version holds until the next."""

    @classmethod
    async def open(cls, url: str, about: str) -> Database:
        """Open or create the database at `url` and bring it up to date.

        about: what it belongs to (chain, contracts, run). Raises ConfigError when it is about something else or the
        url is none, StorageError when it cannot be opened.
        """
        return await asyncio.to_thread(cls._open, url, about)

    @classmethod
    def _open(cls, url: str, about: str) -> Database:
        engine = _engine(url)
        try:
            with engine.execution_options(muster_writes=True).begin() as connection:
                migrate(connection)
                return cls(engine, _identify(connection, about))
        except BaseException as error:
            engine.dispose()
            if not isinstance(error, SQLAlchemyError | OSError):
                raise
            reason = str(error.orig) if isinstance(error, DBAPIError) else str(error)
            raise StorageError(f"database {_shown(url)}: {reason}", hint=_HINT) from error

    async def close(self) -> None:
        await asyncio.to_thread(self._engine.dispose)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """What `work` finds, in a thread and a transaction of its own: its queries see one state."""
        return await asyncio.to_thread(self._read, work)

    def _read(self, work: Callable[[Connection], T]) -> T:
        try:
            with self._engine.connect() as connection:
                return work(connection)
        except DBAPIError as error:
            raise StorageError(f"database: {error.orig}", hint=_HINT) from error

    async def write(self, work: Callable[[Connection], T], *, news: bool = True) -> T:
        """Do `work` in a thread and a transaction, committed on return, rolled back on an exception. One at a time.

        news: whether it may change an answer; bookkeeping does not.
        """
        async with self._writing:
            return await asyncio.to_thread(self._write, work, news)

    def _write(self, work: Callable[[Connection], T], news: bool) -> T:
        try:
            with self._writers.begin() as connection:
                result = work(connection)
        except DBAPIError as error:
            raise StorageError(f"database: {error.orig}", hint=_HINT) from error
        self.version += news  # here, because whoever asked for it may have been cancelled
        return result


def insert_once(connection: Connection, table: Table, row: Mapping[str, Any]) -> bool:
    """Insert a row unless one of its unique keys exists. Whether it was inserted."""
    return connection.execute(_insert(connection, table).values(dict(row)).on_conflict_do_nothing()).rowcount == 1


def upsert(connection: Connection, table: Table, row: Mapping[str, Any]) -> None:
    """Insert a row, or replace the other columns of the one that has its primary key."""
    keys = [column.name for column in table.primary_key.columns]
    statement = _insert(connection, table).values(dict(row))
    changed = {name: statement.excluded[name] for name in row if name not in keys}
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=changed))


def _insert(connection: Connection, table: Table) -> Any:
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table)


def migrate(connection: Connection) -> None:
    """Apply the migrations that are missing."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        on_disk = parsed.get_backend_name() == "sqlite"
        if on_disk and parsed.database:
            Path(parsed.database).absolute().parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(parsed, pool_pre_ping=not on_disk)
        if engine.dialect.is_async:
            raise ConfigError(f"database url {_shown(url)!r} names an asynchronous driver", hint="sqlite:///FILE")
    except (ArgumentError, SQLAlchemyError) as error:
        raise ConfigError(f"database url {_shown(url)!r}: {error}", hint="sqlite:///FILE") from error
    except ImportError as error:
        raise ConfigError(f"database url {_shown(url)!r}: {error}", hint=f"pip install {error.name}") from error
    except OSError as error:
        raise StorageError(f"database {_shown(url)}: {error.strerror}", hint=_HINT) from error
    if on_disk:
        event.listen(engine, "connect", _tune_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _tune_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where SQLAlchemy says, see _begin_sqlite
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_MILLISECONDS}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """Take the write lock at the beginning: a reader that becomes a writer half way cannot wait for its turn."""
    writes = connection.get_execution_options().get("muster_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _shown(url: str) -> str:
    """The url without its password."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return url


def _identify(connection: Connection, about: str) -> str:
    """Claim a new database for `about`, or check that it already is; its random name."""
    rows = {row.key: row.value for row in connection.execute(select(tables.meta.c.key, tables.meta.c.value))}
    if not rows:
        rows = {"about": about, "identity": secrets.token_hex(8)}
        for key, value in rows.items():
            insert_once(connection, tables.meta, {"key": key, "value": value})
    if rows["about"] != about:
        raise ConfigError(
            f"the database belongs to {rows['about']}, the settings say {about}",
            hint="set orchestrator.database_url to another file, or delete it: it is rebuilt from chain and storage",
        )
    return rows["identity"]
