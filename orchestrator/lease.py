"""Settle what each process of a run has to itself: the work that one does for all, its database file, its spool.

Of the processes on one PostgreSQL one follows the chain and lets old work go. It holds an advisory lock
on a connection that stays open. The server frees the lock when the connection ends or says
nothing for SILENT_SECONDS, and another process takes over. For a moment two may do the work: what they write excludes
each other in the database. All that serve share a second lock there, by which the last one knows that it is the last. A
SQLite file has one process.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Final

from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from muster.errors import ConfigError, StorageError
from muster.ledger.database import Database
from muster.runtime import telemetry
from orchestrator.start_mark import StartMark

if TYPE_CHECKING:
    from muster.ledger.postgres import OpenConnection

RENEW_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 10
"""Without a renewal, after which the server takes the lease away: as long as a frozen process keeps it."""

TASKS: Final = ("follower", "retention")
"""What only the process with the lease does."""

_KEY: Final = 0x6C656164  # "lead"
_SERVES: Final = 0x73657276  # "serv"
_PREPARE: Final = f"SET idle_session_timeout = '{SILENT_SECONDS}s'"
_OTHERS: Final = f"""SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = {_SERVES}
    AND pid <> pg_backend_pid() AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"""
TAKE: Final = f"SELECT pg_try_advisory_lock({_KEY}), pg_advisory_lock_shared({_SERVES})"
"""Takes the lease, where it is free, and the lock of all. Both are freed with the connection."""

log = telemetry.logger("orchestrator")
LEASE: Final = telemetry.gauge("orchestrator_lease", "1 while this process does the task for all processes", ("task",))


@asynccontextmanager
async def leading(database: Database, mark: StartMark, fill: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Let `database.leads` say whether this process holds the lease, while the block runs.

    `fill` fills the database from storage. It is awaited before, unless another process serves or the last one was
    stopped in good order. Raises StorageError when storage does not tell.
    """
    connection = database.open_connection(_PREPARE) if database.is_shared else None

    async def others_serve() -> bool:
        return connection is not None and await connection.scalar(_OTHERS)

    try:
        if not await others_serve() and not await mark.is_same():
            await fill()
        async with _holding(database, connection):
            await mark.renew()
            yield
            try:
                latest = await mark.latest()  # before it is asked who serves: who starts meanwhile writes another
                if not await others_serve():
                    await mark.settle(latest)
            except (StorageError, DBAPIError) as error:
                log.warning("the next start reads storage again", error=str(error))
    finally:
        if connection is not None:
            await connection.close()


@asynccontextmanager
async def _holding(database: Database, connection: OpenConnection | None) -> AsyncIterator[None]:
    """Hold the lock of all, and the lease when it is free; without a connection, both."""
    if connection is None:
        _show(database.leads)
        yield
        return

    async def renew() -> None:
        try:
            leads = bool(await connection.scalar(TAKE))
        except DBAPIError:
            leads = False
        if leads != database.leads:
            log.info("lease", held=leads)
        database.leads = leads
        _show(leads)

    async def keep() -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            await renew()

    database.leads = False
    await renew()
    task = asyncio.create_task(keep(), name="lease")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _show(leads: bool) -> None:
    for task in TASKS:
        LEASE.labels(task).set(leads)


@contextmanager
def only_process(database_url: str) -> Iterator[None]:
    """Keep a SQLite file to this process while the block runs. Raises ConfigError when another one has it."""
    url = make_url(database_url)
    if url.get_backend_name() != "sqlite" or not url.database:
        yield
        return
    lock = _lock(Path(f"{url.database}.lock"))
    if lock is None:
        raise ConfigError(
            f"another orchestrator uses the database {url.database}",
            hint="stop it; several processes of a run need PostgreSQL: set orchestrator.database_url",
        )
    try:
        yield
    finally:
        os.close(lock)


@contextmanager
def own_spool(folder: Path) -> Iterator[Path]:
    """Yield a new folder in the spool folder. What processes that are gone left there is deleted."""
    with _storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        turn = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(turn, fcntl.LOCK_EX)  # of two that start, neither takes the other's folder for a forgotten one
            for left in folder.iterdir():
                _delete_unused(left)
            own = Path(mkdtemp(dir=folder))
            lock = _lock(own)
        finally:
            os.close(turn)
    assert lock is not None
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        os.close(lock)


def _delete_unused(left: Path) -> None:
    lock = _lock(left)
    if lock is None:
        return
    shutil.rmtree(left) if left.is_dir() else left.unlink()
    os.close(lock)


def _lock(path: Path) -> int | None:
    """Lock a folder or file, which is made; return the descriptor that holds it, or None when another one does."""
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    with _storage_errors(path):
        descriptor = os.open(path, flags, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}", hint="check the rights of its folder") from error
