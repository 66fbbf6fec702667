"""What a worker has finished and how far it has got with it, on disk before anybody else learns of it.

Per index one row, through the states saved (file on disk), uploaded (receipt in hand), committed (mined). What an
index is to contain follows from the chain, so nothing needs writing down before there is a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from muster.errors import ConfigError, StorageError
from muster.files import write_durably
from muster.hashes import content_hash
from muster.journal import Journal
from muster.messages import Receipt
from worker.decisions import Entry

_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS identity (name TEXT PRIMARY KEY)",
    """CREATE TABLE IF NOT EXISTS work (
        idx INTEGER PRIMARY KEY, step INTEGER NOT NULL, anchor BLOB NOT NULL, root BLOB NOT NULL,
        file_hash TEXT NOT NULL, state TEXT NOT NULL, receipt TEXT, tx BLOB, block INTEGER
    )""",
)


class WorkJournal:
    """The journal of one node, in its state folder. Hold the folder's lock while using it."""

    def __init__(self, folder: Path, identity: str) -> None:
        """`identity` names chain, contracts and node. Raises ConfigError when the folder is another's."""
        self.folder = folder
        self._journal = Journal(folder / "journal.sqlite", _SCHEMA)
        known = self._journal.value("SELECT name FROM identity")
        if known is None:
            self._journal.execute("INSERT INTO identity VALUES (?)", identity)
        elif known != identity:
            self.close()
            raise ConfigError(f"{folder} is the journal of {known}, not of {identity}", hint="set worker.state_dir")

    def close(self) -> None:
        self._journal.close()

    def entry(self, index: int) -> Entry | None:
        """The work for an index."""
        row = self._journal.row("SELECT * FROM work WHERE idx = ?", index)
        if row is None:
            return None
        return Entry(row["idx"], row["step"], row["anchor"], row["root"], row["file_hash"], row["state"])

    def indices(self, start: int) -> set[int]:
        """Indices from `start` on that there is work for."""
        return {row["idx"] for row in self._journal.rows("SELECT idx FROM work WHERE idx >= ?", start)}

    def unsettled(self, below: int) -> list[Entry]:
        """Work for earlier indices that is not noted as committed."""
        rows = self._journal.rows("SELECT idx FROM work WHERE idx < ? AND state != 'committed' ORDER BY idx", below)
        return [entry for row in rows if (entry := self.entry(row["idx"]))]

    def receipt(self, index: int) -> Receipt | None:
        """The storage's receipt for an index: what dismisses a case about missing data."""
        text = self._journal.value("SELECT receipt FROM work WHERE idx = ?", index)
        return None if text is None else Receipt.model_validate_json(text)

    def save(self, index: int, step: int, anchor: bytes, root: bytes, data: bytes) -> Entry:
        """A finished file: on disk, then noted. Raises StorageError when there is work for this index already,
        or the disk refuses."""
        if self.entry(index) is not None:
            raise StorageError(f"there is work for index {index} already")
        entry = Entry(index, step, anchor, root, content_hash(data), "saved")
        write_durably(self._path(entry), data)
        self._journal.execute(
            "INSERT INTO work (idx, step, anchor, root, file_hash, state) VALUES (?, ?, ?, ?, ?, 'saved')",
            index,
            step,
            anchor,
            root,
            entry.file_hash,
        )
        return entry

    def data(self, entry: Entry) -> bytes:
        """The finished file. Raises StorageError when it is gone or damaged."""
        try:
            data = self._path(entry).read_bytes()
        except OSError as error:
            raise StorageError(f"{self._path(entry)} cannot be read: {error.strerror}") from error
        if content_hash(data) != entry.file_hash:
            raise StorageError(f"{self._path(entry)} is damaged")
        return data

    def uploaded(self, index: int, receipt: Receipt) -> None:
        self._journal.execute(
            "UPDATE work SET state = 'uploaded', receipt = ? WHERE idx = ?", receipt.model_dump_json(), index
        )

    def committed(self, index: int, tx: bytes | None, block: int | None) -> None:
        """The chain has it; `tx` is None when an earlier life of this process sent it."""
        self._journal.execute("UPDATE work SET state = 'committed', tx = ?, block = ? WHERE idx = ?", tx, block, index)

    def discard(self, entry: Entry) -> None:
        """Forget work that can no longer be committed."""
        self._journal.execute("DELETE FROM work WHERE idx = ?", entry.index)
        self._path(entry).unlink(missing_ok=True)

    def prune(self, settled: int) -> int:
        """Delete the files of settled work, which nobody can ask for any more; returns how many."""
        rows = self._journal.rows("SELECT file_hash FROM work WHERE idx < ? AND state = 'committed'", settled)
        paths = [path for row in rows if (path := self._file(row["file_hash"])).exists()]
        for path in paths:
            path.unlink()
        return len(paths)

    def _path(self, entry: Entry) -> Path:
        return self._file(entry.file_hash)

    def _file(self, file_hash: str) -> Path:
        return self.folder / "files" / f"{file_hash}.parquet"
