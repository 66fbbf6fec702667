"""The database: opening it, migrating it, and transactions of which one writes at a time.

SQLite in WAL mode by default: readers never wait for the writer, and a killed process loses nothing it answered for.
One process owns a database; within it `write` serialises writers, so SQLite never reports that it is locked.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Table, delete, event, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from muster.errors import ConfigError, StorageError
from orchestrator import tables

MAX_NONCES_PER_SIGNER: Final = 6_000
"""Live nonces of one signer: a hundred requests a second for the life of a request. More are refused."""

MAX_EVENTS: Final = 5_000
_BUSY_MILLISECONDS: Final = 5_000
_MIGRATIONS: Final = Path(__file__).parent / "migrations"


class Database:
    """The service's state. Make one with `Database.open`."""

    def __init__(self, engine: AsyncEngine, identity: str) -> None:
        self._engine = engine
        self._writing = asyncio.Lock()
        self.identity = identity
        """Random name of this database: a new one after deletion, so that cursors into the old one are noticed."""
        self.version = 0
        """Grows with every write: what was computed at one version holds until the next."""

    @classmethod
    async def open(cls, url: str, about: str) -> Database:
        """Open or create the database at `url` and bring it up to date.

        about: what it belongs to (chain, contracts, run). Raises ConfigError when it is about something else or the
        url is none, StorageError when it cannot be opened.
        """
        engine = _engine(url)
        try:
            async with engine.begin() as connection:
                await connection.run_sync(migrate)
                identity = await _identify(connection, about)
        except BaseException as error:
            await engine.dispose()
            if not isinstance(error, SQLAlchemyError | OSError):
                raise
            reason = str(error.orig) if isinstance(error, DBAPIError) else str(error)
            raise StorageError(f"database {_shown(url)}: {reason}", hint="check orchestrator.database_url") from error
        return cls(engine, identity)

    async def close(self) -> None:
        await self._engine.dispose()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A connection for looking."""
        async with self._engine.connect() as connection:
            yield connection

    @asynccontextmanager
    async def write(self, *, news: bool = True) -> AsyncIterator[AsyncConnection]:
        """A transaction, committed on leaving, rolled back on an exception. One at a time.

        news: whether it may change an answer; bookkeeping does not.
        """
        async with self._writing:
            async with self._engine.begin() as connection:
                yield connection
            self.version += news

    async def remember_nonce(self, signer: str, nonce: str, expiry: int, now: float) -> str:
        """Note a request. Returns "new", "replayed", or "flooded" when the signer has too many live requests."""
        async with self._writing, self._engine.begin() as connection:
            await connection.execute(delete(tables.nonces).where(tables.nonces.c.expiry <= int(now)))
            count = select(func.count()).select_from(tables.nonces).where(tables.nonces.c.signer == signer)
            if ((await connection.execute(count)).scalar() or 0) >= MAX_NONCES_PER_SIGNER:
                return "flooded"
            row = {"signer": signer, "nonce": nonce, "expiry": expiry}
            return "new" if await insert_once(connection, tables.nonces, row) else "replayed"


async def insert_once(connection: AsyncConnection, table: Table, row: Mapping[str, Any]) -> bool:
    """Insert a row unless one of its unique keys exists. Whether it was inserted."""
    statement = _insert(connection, table).values(dict(row)).on_conflict_do_nothing()
    return (await connection.execute(statement)).rowcount == 1


async def upsert(connection: AsyncConnection, table: Table, row: Mapping[str, Any]) -> None:
    """Insert a row, or replace the other columns of the one that has its primary key."""
    keys = [column.name for column in table.primary_key.columns]
    statement = _insert(connection, table).values(dict(row))
    changed = {name: statement.excluded[name] for name in row if name not in keys}
    await connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=changed))


def _insert(connection: AsyncConnection, table: Table) -> Any:
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table)


def migrate(connection: Connection) -> None:
    """Apply the migrations that are missing."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _engine(url: str) -> AsyncEngine:
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite" and parsed.database:
            Path(parsed.database).absolute().parent.mkdir(parents=True, exist_ok=True)
        engine = create_async_engine(parsed, pool_pre_ping=parsed.get_backend_name() != "sqlite")
    except ArgumentError as error:
        raise ConfigError(f"database url {_shown(url)!r}: {error}", hint="sqlite+aiosqlite:///FILE") from error
    except SQLAlchemyError as error:
        raise ConfigError(f"database url {_shown(url)!r} needs an asynchronous driver: {error}") from error
    except ImportError as error:
        raise ConfigError(f"database url {_shown(url)!r}: {error}", hint=f"pip install {error.name}") from error
    except OSError as error:
        raise StorageError(
            f"database {_shown(url)}: {error.strerror}", hint="check orchestrator.database_url"
        ) from error
    if parsed.get_backend_name() == "sqlite":
        event.listen(engine.sync_engine, "connect", _tune_sqlite)
    return engine


def _tune_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_MILLISECONDS}")
    cursor.close()


def _shown(url: str) -> str:
    """The url without its password."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return url


async def _identify(connection: AsyncConnection, about: str) -> str:
    """Claim a new database for `about`, or check that it already is; its random name."""
    query = select(tables.meta.c.key, tables.meta.c.value)
    rows = {row.key: row.value for row in await connection.execute(query)}
    if not rows:
        rows = {"about": about, "identity": secrets.token_hex(8)}
        for key, value in rows.items():
            await insert_once(connection, tables.meta, {"key": key, "value": value})
    if rows["about"] != about:
        raise ConfigError(
            f"the database belongs to {rows['about']}, the settings say {about}",
            hint="set orchestrator.database_url to another file, or delete it: it is rebuilt from chain and storage",
        )
    return rows["identity"]
