"""The database: opening it, and transactions of which one writes at a time.

SQLAlchemy's plain (blocking) face, one trip to a thread per unit of work: `read` and `write` take a function of a
connection. Measured on SQLite, that costs a quarter of the asynchronous face, which makes a trip per statement.
Writes that come while one transaction commits share the next, each in a savepoint (group commit).

SQLite in WAL mode by default: readers never wait for the writer, and a power failure takes nothing that was answered
for: each transaction is forced to disk before `write` returns.
PostgreSQL behaves the same way here (`muster.ledger.postgres`): a read sees one state, and of all processes one writes.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import URL, Connection, Engine, Table, create_engine, delete, event, inspect, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from muster.errors import ConfigError, StorageError
from muster.ledger import tables
from muster.ledger.statements import insert_once
from muster.runtime.batches import Batches, Failure, Outcome
from muster.runtime.sessions import check_sessions

if TYPE_CHECKING:
    from muster.ledger.postgres import OpenConnection, SharedVersion

T = TypeVar("T")
Item = TypeVar("Item")

TURN_SECONDS: Final = 15.0
"""Longest wait for what is under way in the database to end, before a piece of work is refused."""

MAX_BATCH: Final = 64
"""Works that share one transaction."""

CHECK_SECONDS: Final = 1.0
"""A check that ended less than this ago is not repeated, however many ask."""

_HINT: Final = "check orchestrator.database_url, and that the database there can be written to"
_URLS: Final = "sqlite:///FILE, or postgresql://USER:PASSWORD@HOST/DATABASE"
_SQLITE: Final = ("sqlite", "sqlite+pysqlite")
_POSTGRES: Final = ("postgresql", "postgres", "postgresql+psycopg")
_BUSY_MILLISECONDS: Final = 5_000
_READERS: Final = 7
"""Reads at the same time."""
_OPEN: Final = 2
"""Connections that stay open for one purpose: to read the version, and to hold the lease."""


@dataclass(frozen=True)
class _Work:
    """A piece of work that writes."""

    run: Callable[[Connection], Any]
    news: bool


class Database:
    """The service's state. Open one with `Database.open`."""

    def __init__(self, engine: Engine, identity: str) -> None:
        self._engine = engine
        self._readers = _reading(engine)
        self._writers = _writing(engine)
        self._may_read = asyncio.Semaphore(_READERS)
        self._writes = Batches(self._write_batch, most=MAX_BATCH)
        self._threads = ThreadPoolExecutor(_READERS + 1, "database")
        """Separate threads, so that a database that hangs keeps no file from being served."""
        self._checked = float("-inf")
        self._check: asyncio.Task[None] | None = None
        self.identity = identity
        """Random name of this database: a new one after deletion, so that cursors into the old one are noticed."""
        self._shared_version = _shared_version(engine)
        self._own_version = 0
        self.leads = True
        """Whether this process does the work that one does for all (`orchestrator.lease`)."""

    @classmethod
    async def open(cls, url: str, about: str, made: Sequence[Table] | None = None) -> Database:
        """Open or create the database at `url`.

        about: what it belongs to (chain, contracts, run). made: the tables of a new one; None for all. Raises
        ConfigError when it belongs to something else or to another version of Muster, or `url` names no database;
        StorageError when it cannot be opened.
        """
        return await asyncio.to_thread(cls._open, url, about, made)

    @classmethod
    def _open(cls, url: str, about: str, made: Sequence[Table] | None) -> Database:
        engine = _engine(url)
        try:
            if engine.dialect.name == "postgresql":
                check_sessions(engine)
            with _writing(engine).begin() as connection:
                if connection.dialect.name == "postgresql":
                    from muster.ledger.postgres import check_encoding

                    check_encoding(connection)
                return cls(engine, _identify(connection, about, made))
        except BaseException as error:
            engine.dispose()
            if not isinstance(error, SQLAlchemyError | OSError):
                raise
            raise StorageError(f"database {_shown(url)}: {_reason(error)}", hint=_HINT) from error

    async def close(self) -> None:
        if self._check is not None:
            self._check.cancel()
        if self._shared_version is not None:
            await self._shared_version.close()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        await asyncio.to_thread(self._engine.dispose)

    async def check(self) -> None:
        """Raise StorageError unless a row that is written now is kept, exactly once, and read back."""
        if self._check is None or (self._check.done() and time.monotonic() - self._checked > CHECK_SECONDS):
            self._check = asyncio.create_task(self.write(self._probe, news=False), name="database check")
            self._check.add_done_callback(self._check_done)
        await asyncio.shield(self._check)

    def _check_done(self, check: asyncio.Task[None]) -> None:
        self._checked = time.monotonic()
        if not check.cancelled():
            check.exception()  # retrieved here too: the requests that asked may be gone

    def _probe(self, connection: Connection) -> None:
        meta, row = tables.meta, {"key": "probe", "value": secrets.token_hex(8)}
        connection.execute(delete(meta).where(meta.c.key == row["key"]))
        inserted = insert_once(connection, meta, row), insert_once(connection, meta, row | {"value": "again"})
        found = connection.execute(select(meta.c.value).where(meta.c.key == row["key"])).scalars().all()
        if inserted != (True, False) or found != [row["value"]]:
            raise StorageError(f"database: a row written once was kept as {found}, reported as {inserted}", hint=_HINT)
        identity = connection.execute(select(meta.c.value).where(meta.c.key == "identity")).scalar()
        if identity != self.identity:
            raise StorageError(
                "database: it is not the one that was opened at the start", hint="start the orchestrator again"
            )

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` reads, in a separate thread and transaction: its queries see one state.

        Raises StorageError when the database fails, or is busy for TURN_SECONDS.
        """
        async with _turn(self._may_read):
            return await asyncio.get_running_loop().run_in_executor(self._threads, _run, self._readers.connect, work)

    async def write(self, work: Callable[[Connection], T], *, news: bool = True) -> T:
        """Run `work` in a thread, alone or after others in one transaction; it is committed when this returns.

        What it raises rolls back its own changes only. news: whether it may change an answer of `Queries`. Raises
        StorageError as `read` does.
        """
        try:
            return await self._writes.add(_Work(work, news), wait=TURN_SECONDS)
        except TimeoutError as error:
            raise _busy() from error

    def together(
        self, work: Callable[[Connection, Sequence[Item]], Sequence[T]], *, writes: bool = True, news: bool = True
    ) -> Callable[[Item], Awaitable[T]]:
        """Return what does `work` on an item and on those that come meanwhile, all at once and in their order.

        It gives an outcome for each. Where it fails, each item is tried by itself. Raises as `write`.
        """

        async def run(items: Sequence[Item]) -> Sequence[Outcome]:
            def one(connection: Connection) -> Sequence[T]:
                return work(connection, items)

            try:
                return await (self.write(one, news=news) if writes else self.read(one))
            except Exception:
                if len(items) == 1:
                    raise
            found = await asyncio.gather(*(run([item]) for item in items), return_exceptions=True)
            return [Failure(each) if isinstance(each, BaseException) else each[0] for each in found]

        batches = Batches(run, most=MAX_BATCH)

        async def add(item: Item) -> T:
            try:
                return await batches.add(item, wait=TURN_SECONDS)
            except TimeoutError as error:
                raise _busy() from error

        return add

    async def _write_batch(self, batch: Sequence[_Work]) -> Sequence[Outcome]:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._write, batch)

    def _write(self, batch: Sequence[_Work]) -> Sequence[Outcome]:
        def run(connection: Connection) -> tuple[Sequence[Outcome], bool]:
            one = len(batch) == 1
            outcomes = [work.run(connection) if one else _attempt(connection, work.run) for work in batch]
            pairs = zip(batch, outcomes, strict=True)
            news = any(work.news and not isinstance(outcome, Failure) for work, outcome in pairs)
            if news and self._shared_version is not None:
                self._shared_version.grow(connection)
            return outcomes, news

        outcomes, news = _run(self._writers.begin, run)
        self._own_version += news  # here, because the callers may be gone
        return outcomes

    @property
    def is_shared(self) -> bool:
        """Return whether other processes may use this database too."""
        return self._shared_version is not None

    async def current_version(self) -> int:
        """Return a number that grows with every write that is news, in whichever process.

        What was computed at one version holds until the next. Raises StorageError when the database fails.
        """
        if self._shared_version is None:
            return self._own_version
        try:
            return await self._shared_version.read()
        except (DBAPIError, PoolTimeoutError) as error:
            raise StorageError(f"database: {_reason(error)}", hint=_HINT) from error

    def open_connection(self, prepare: str) -> OpenConnection:
        """Return another connection to a shared database. prepare: statement that it begins with."""
        from muster.ledger.postgres import OpenConnection

        return OpenConnection(self._engine, prepare)


def _attempt(connection: Connection, work: Callable[[Connection], Any]) -> Outcome:
    """Return what a work gives, or why it failed, when its changes are undone. Raises when nothing can be kept."""
    savepoint = connection.begin_nested()
    try:
        result = work(connection)
    except Exception as error:
        if connection.invalidated:
            raise
        savepoint.rollback()  # fails where the database has ended the whole transaction
        return Failure(_failure(error) if isinstance(error, DBAPIError) else error)
    savepoint.commit()
    return result


def _run(connect: Callable[[], AbstractContextManager[Connection]], work: Callable[[Connection], T]) -> T:
    try:
        with connect() as connection:
            return work(connection)
    except (DBAPIError, PoolTimeoutError) as error:
        raise _failure(error) from error


@asynccontextmanager
async def _turn(gate: asyncio.Semaphore) -> AsyncIterator[None]:
    """Hold a place in the database. Raises StorageError when none becomes free in time."""
    try:
        async with asyncio.timeout(TURN_SECONDS):
            await gate.acquire()
    except TimeoutError as error:
        raise _busy() from error
    try:
        yield
    finally:
        gate.release()


def _busy() -> StorageError:
    return StorageError(f"database: busy for {TURN_SECONDS:g} s", hint=_HINT)


def _failure(error: Exception) -> StorageError:
    return StorageError(f"database: {_reason(error)}", hint=_HINT)


def _reason(error: Exception) -> str:
    """Return why the database failed, on one line."""
    return " ".join(str(error.orig if isinstance(error, DBAPIError) else error).split())


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise ConfigError(f"database url {_shown(url)!r} cannot be read", hint=_URLS) from error
    if parsed.drivername in _SQLITE:
        return _sqlite_engine(parsed)
    if parsed.drivername not in _POSTGRES:
        raise ConfigError(f"database url {_shown(url)!r}: {parsed.drivername} is not supported", hint=_URLS)
    try:
        from muster.ledger.postgres import postgres_engine
    except ImportError as error:
        raise ConfigError(f"database url {_shown(url)!r}: {error}", hint="pip install 'psycopg[binary]'") from error
    return postgres_engine(parsed, _READERS + 1 + _OPEN)


def _shared_version(engine: Engine) -> SharedVersion | None:
    if engine.dialect.name != "postgresql":
        return None
    from muster.ledger.postgres import SharedVersion

    return SharedVersion(engine)


def _sqlite_engine(url: URL) -> Engine:
    if url.database:
        try:
            Path(url.database).absolute().parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"database {url}: {error.strerror}", hint=_HINT) from error
    engine = create_engine(url)
    event.listen(engine, "connect", _tune_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _writing(engine: Engine) -> Engine:
    """Return the engine for transactions that write: each waits for its turn when it begins."""
    return engine.execution_options(muster_writes=True)


def _reading(engine: Engine) -> Engine:
    """Return the engine for transactions that read: their queries see one state, as on SQLite they always do."""
    if engine.dialect.name != "postgresql":
        return engine
    return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def _tune_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where SQLAlchemy says, see _begin_sqlite
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_MILLISECONDS}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """Take the write lock at the beginning: a reader that becomes a writer half way cannot wait for its turn."""
    writes = connection.get_execution_options().get("muster_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _shown(url: str) -> str:
    """Return the url without its password, wherever that stands."""
    try:
        return make_url(url).set(query={}).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):
        return url.partition(":")[0] + ":…"


def _identify(connection: Connection, about: str, made: Sequence[Table] | None) -> str:
    """Make the tables of a new database for `about`, or check whose the database is; return its random name."""
    if not inspect(connection).has_table("meta"):
        tables.metadata.create_all(connection, made)
        new = {"about": about, "identity": secrets.token_hex(8), "version": tables.VERSION, "writes": "0"}
        for key, value in new.items():
            insert_once(connection, tables.meta, {"key": key, "value": value})
    rows = {row.key: row.value for row in connection.execute(select(tables.meta.c.key, tables.meta.c.value))}
    if rows.get("version") != tables.VERSION:
        raise ConfigError(
            f"the database was made by another version of Muster: {rows.get('version', 'older than 4')}",
            hint="delete it, or set orchestrator.database_url to another: it is rebuilt from chain and storage",
        )
    if rows["about"] != about:
        raise ConfigError(
            f"the database belongs to {rows['about']}, the settings say {about}",
            hint="set orchestrator.database_url to another file, or delete it: it is rebuilt from chain and storage",
        )
    return rows["identity"]
