"""What a process must still know after a power failure: a locked folder, and a database in it.

A worker's journal says what it committed to, a validator's which salt its vote has. Two processes with one journal
would contradict each other on chain, so the folder is locked while it is used.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from muster.errors import ConfigError, StorageError
from muster.runtime.closing import Closing

LOCK_NAME: Final = "lock"
_BUSY_SECONDS: Final = 10.0


class FolderLock(Closing):
    """Reserves a folder for one process, until `close` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        """Lock it. Raises ConfigError when another process has it, StorageError when it cannot be used."""
        self.path = folder / LOCK_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(
                f"{folder} cannot be used: {error.strerror}", hint="check the folder's rights"
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._descriptor)
            raise ConfigError(
                f"{folder} is in use by process {holder}",
                hint="one process per folder: stop that one, or set another folder",
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Release the folder."""
        os.close(self._descriptor)


def lock_holder(folder: Path) -> int | None:
    """Return the process that holds a folder's lock, or None.

    The lock is tried only if a process with the number in it runs: a process that starts meanwhile must find it free.
    """
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
        if not text.isascii() or not text.isdigit() or not Path("/proc", text).exists():
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(text)
    finally:
        os.close(descriptor)
    return None


class Journal(Closing):
    """A SQLite database whose changes are on disk when a call returns. Calls block for one write to disk."""

    def __init__(
        self, path: Path, schema: Sequence[str], *, owner: str = "", setting: str = "", one_thread: bool = True
    ) -> None:
        """Open it, or make it by `schema`: statements that make the tables, each with IF NOT EXISTS.

        `owner` names whose journal it is (key, chain and contracts), and `setting` where its folder is set. Without
        `one_thread` any thread may call, one at a time. Tables of an earlier version get this one's columns. Raises
        StorageError when it cannot be used, ConfigError when it is another owner's, or of a version that this one
        cannot go on from.
        """
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=one_thread
            )
            self._database.row_factory = sqlite3.Row
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            with self.transaction():
                for statement in [*self._upgrade(schema, setting), *schema]:
                    self._database.execute(statement)
        except (OSError, sqlite3.Error, StorageError) as error:
            if "_database" in vars(self):
                self.close()
            hint = "check its folder"
            raise StorageError(f"the journal {path} cannot be used: {error}", hint=hint) from error
        except ConfigError:
            self.close()
            raise
        if owner:
            self._claim(owner, setting)

    def _upgrade(self, schema: Sequence[str], setting: str) -> Iterator[str]:
        """Yield the statements that add to tables of an earlier version what `schema` has besides.

        Raises ConfigError where a column is missing that no row can do without, or has one that this version never
        fills: both would end in an error once there is work to note.
        """
        with closing(sqlite3.connect(":memory:")) as wanted:
            for statement in schema:
                wanted.execute(statement)
            for (table,) in wanted.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
                here, there = _columns(self._database, table), _columns(wanted, table)
                needed = (
                    {name for name in here.keys() ^ there.keys() if (here | there)[name].is_needed} if here else set()
                )
                if needed:
                    raise ConfigError(
                        f"the journal {self.path} is of another version of Muster: {table} differs in {sorted(needed)}",
                        hint="let the version that wrote it end its open work and cases, then set another "
                        + (setting or "folder"),
                    )
                for name in there.keys() - here.keys() if here else ():
                    yield f"ALTER TABLE {table} ADD COLUMN {name} {there[name].definition}"

    def _claim(self, owner: str, setting: str) -> None:
        """Note whose journal this is. Raises ConfigError when it is another's."""
        self.execute("CREATE TABLE IF NOT EXISTS identity (name TEXT PRIMARY KEY)")
        known = self.value("SELECT name FROM identity")
        if known is None:
            self.execute("INSERT INTO identity VALUES (?)", owner)
        elif known != owner:
            self.close()
            raise ConfigError(f"{self.path.parent} is the journal of {known}, not of {owner}", hint=f"set {setting}")

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Put all of what is executed inside on disk when it ends, or none of it. Raises StorageError as `execute`."""
        self._run("BEGIN IMMEDIATE")
        try:
            yield
            self._run("COMMIT")
        except BaseException:
            if self._database.in_transaction:  # a full disk ends it by itself
                self._database.execute("ROLLBACK")
            raise

    def execute(self, statement: str, *values: Any) -> int:
        """Run a statement and return the number of rows changed. It is on disk on return, unless in a transaction.

        Raises StorageError when the disk refuses; what breaks a constraint of the schema stays sqlite3.IntegrityError.
        """
        return self._run(statement, *values).rowcount

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        return self._run(query, *values).fetchall()

    def row(self, query: str, *values: Any) -> sqlite3.Row | None:
        return self._run(query, *values).fetchone()

    def value(self, query: str, *values: Any) -> Any:
        """Return the first column of the first row; None when there is none."""
        row = self.row(query, *values)
        return None if row is None else row[0]

    def _run(self, statement: str, *values: Any) -> sqlite3.Cursor:
        try:
            return self._database.execute(statement, values)
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
            raise
        except sqlite3.DatabaseError as error:
            raise StorageError(f"the journal {self.path} fails: {error}", hint="is the disk full?") from error


class _Column(NamedTuple):
    """A column as SQLite describes it."""

    definition: str
    """What follows its name in an ALTER TABLE."""
    is_needed: bool
    """No row can be without a value for it, and there is none to begin with."""


def _columns(database: sqlite3.Connection, table: str) -> dict[str, _Column]:
    """Return the columns of a table by name; none where there is no such table."""
    found = {}
    for _, name, kind, not_null, default, key in map(tuple, database.execute(f"PRAGMA table_info({table})")):
        given = "" if default is None else f" DEFAULT {default}"
        found[name] = _Column(f"{kind}{' NOT NULL' * not_null}{given}", bool(key or (not_null and default is None)))
    return found
