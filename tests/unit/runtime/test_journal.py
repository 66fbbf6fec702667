"""Journals and locks: confirmed writes survive SIGKILL, and one process holds a folder at a time."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from muster.errors import ConfigError, StorageError
from muster.runtime.files import write_durably
from muster.runtime.journal import LOCK_NAME, FolderLock, Journal, lock_holder
from testbed.waiting import BOUND

SCHEMA = ("CREATE TABLE IF NOT EXISTS things (name TEXT PRIMARY KEY)",)
HOLD = """
import os, signal, sys
from pathlib import Path
from muster.runtime.journal import FolderLock, Journal
lock = FolderLock(Path(sys.argv[1]))
journal = Journal(Path(sys.argv[1]) / "journal", ("CREATE TABLE IF NOT EXISTS things (name TEXT PRIMARY KEY)",))
journal.execute("INSERT INTO things VALUES ('kept')")
try:
    with journal.transaction():
        journal.execute("INSERT INTO things VALUES ('half')")
        print("ready", flush=True)
        sys.stdin.readline()
        os.kill(os.getpid(), signal.SIGKILL)
finally:
    print("never")
"""


def test_a_killed_process_leaves_what_it_said_and_frees_its_folder(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    with pytest.raises(ConfigError, match=f"{tmp_path} is in use by process {process.pid}"):
        FolderLock(tmp_path)
    assert lock_holder(tmp_path) == process.pid
    output, _ = process.communicate("go\n", timeout=BOUND)
    assert (process.returncode, output) == (-signal.SIGKILL, "")
    assert lock_holder(tmp_path) is None
    with FolderLock(tmp_path), Journal(tmp_path / "journal", SCHEMA) as journal:
        assert [row["name"] for row in journal.rows("SELECT name FROM things")] == ["kept"]
        assert journal.value("SELECT name FROM things WHERE name = 'half'") is None


def test_reading_the_lock_holder_does_not_take_the_lock(tmp_path: Path) -> None:
    assert lock_holder(tmp_path / "nowhere") is None
    lock = FolderLock(tmp_path)
    assert lock_holder(tmp_path) == os.getpid()
    lock.close()
    assert lock_holder(tmp_path) is None, "it names a process that runs, and does not hold it"
    for text in ("", "none", "0", "-1", "٣", "4" * 20):
        (tmp_path / LOCK_NAME).write_text(text)
        assert lock_holder(tmp_path) is None
    FolderLock(tmp_path).close()


def insert(journal: Journal, *names: str) -> None:
    with journal.transaction():
        for name in names:
            journal.execute("INSERT INTO things VALUES (?)", name)


def test_a_transaction_is_all_or_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal", SCHEMA) as journal:
        with pytest.raises(sqlite3.IntegrityError):
            insert(journal, "a", "a")
        assert journal.rows("SELECT * FROM things") == []
        assert journal.row("SELECT * FROM things") is None


def test_a_file_that_is_no_journal_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text("this is not a database, and it is long enough to be looked at as one" * 20)
    with pytest.raises(StorageError, match="cannot be used"):
        Journal(path, SCHEMA)


def test_a_full_disk_is_an_error_with_a_name_and_changes_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal", SCHEMA) as journal:
        journal.execute("INSERT INTO things VALUES ('a')")
        pages = journal.value("PRAGMA page_count")
        journal.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StorageError, match="full"):
            journal.execute("INSERT INTO things VALUES (?)", "b" * 100_000)
        with pytest.raises(StorageError, match="full"):
            insert(journal, "c", "d" * 100_000)
        assert [row["name"] for row in journal.rows("SELECT name FROM things")] == ["a"]


def test_a_file_that_cannot_be_written_is_an_error_with_a_name(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(StorageError, match=f"{tmp_path / 'file'} cannot be written"):
        write_durably(tmp_path / "file", b"content")


def test_files_are_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    for content in (b"one", b"two"):
        write_durably(path, content)
        assert path.read_bytes() == content
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


OLD = "CREATE TABLE work (idx INTEGER PRIMARY KEY, note TEXT, kept TEXT NOT NULL)"
ROW = "INSERT INTO work (idx, kept) VALUES (7, 'promised')"


def test_a_journal_of_the_version_before_gets_what_this_one_keeps_besides(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "journal", (OLD,))) as old:
        old.execute(ROW)
    schema = (
        "CREATE TABLE IF NOT EXISTS work (idx INTEGER PRIMARY KEY, kept TEXT NOT NULL, tx BLOB, "
        "tries INTEGER NOT NULL DEFAULT 3)",
        "CREATE TABLE IF NOT EXISTS more (name TEXT PRIMARY KEY)",
        "CREATE INDEX IF NOT EXISTS by_tx ON work (tx)",
    )
    for _ in range(2):  # and again: nothing is left to add
        with closing(Journal(tmp_path / "journal", schema)) as journal:
            (row,) = journal.rows("SELECT idx, kept, tx, tries FROM work")
            assert tuple(row) == (7, "promised", None, 3)
            assert journal.rows("SELECT name FROM more") == []


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ("CREATE TABLE IF NOT EXISTS work (idx INTEGER PRIMARY KEY, kept TEXT NOT NULL, root BLOB NOT NULL)", "root"),
        ("CREATE TABLE IF NOT EXISTS work (idx INTEGER PRIMARY KEY, note TEXT)", "kept"),
        ("CREATE TABLE IF NOT EXISTS work (step INTEGER, idx INTEGER, kept TEXT NOT NULL, PRIMARY KEY (step))", "step"),
    ],
)
def test_a_journal_that_this_version_cannot_go_on_from_is_refused_whole(
    tmp_path: Path, schema: str, named: str
) -> None:
    with closing(Journal(tmp_path / "journal", (OLD,))) as old:
        old.execute(ROW)
    with pytest.raises(ConfigError, match=f"of another version of Muster: work differs in .*'{named}'") as refused:
        Journal(tmp_path / "journal", (schema,), setting="worker.state_dir")
    assert refused.value.hint.endswith("then set another worker.state_dir")
    with closing(Journal(tmp_path / "journal", (OLD.replace("TABLE", "TABLE IF NOT EXISTS"),))) as again:
        assert tuple(again.row("SELECT * FROM work") or ()) == (7, None, "promised")
