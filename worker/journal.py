"""The journal of a worker: which files it has finished, and how far each has got.

Per index one row, through the states saved (file on disk), uploaded (receipt kept), committed (mined). A file is on
disk before any other process sees it. What an index must contain follows from the chain, so the file comes first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from muster.errors import StorageError
from muster.protocol.hashes import content_hash
from muster.protocol.messages import UploadReceipt
from muster.runtime.files import write_durably
from muster.runtime.journal import Journal
from worker.decisions import Entry

_SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS work (
        idx INTEGER PRIMARY KEY, step INTEGER NOT NULL, anchor BLOB NOT NULL, root BLOB NOT NULL,
        file_hash TEXT NOT NULL, state TEXT NOT NULL, receipt TEXT, tx BLOB, block INTEGER
    )""",
)


class WorkJournal(Journal):
    """The journal of one worker, in its state folder. Hold the folder's lock while using it."""

    def __init__(self, folder: Path, identity: str) -> None:
        """Open it. `identity` names chain, contracts and node. Raises ConfigError when the folder is another's."""
        (folder / "files").mkdir(parents=True, exist_ok=True)  # before SQLite forces the folder's names to disk
        super().__init__(folder / "journal.sqlite", _SCHEMA, owner=identity, setting="worker.state_dir")
        self.folder = folder
        self._intact: set[str] = set()
        """Hashes of files that this process wrote or has verified: none is hashed a second time."""

    def entry(self, index: int) -> Entry | None:
        row = self.row("SELECT idx, step, anchor, root, file_hash, state FROM work WHERE idx = ?", index)
        return None if row is None else Entry(*row)

    def indices(self, start: int) -> set[int]:
        """Return the indices from `start` on that have work."""
        return {row["idx"] for row in self.rows("SELECT idx FROM work WHERE idx >= ?", start)}

    def pending(self, below: int) -> list[Entry]:
        """Return work for earlier indices that is not recorded as committed."""
        rows = self.rows("SELECT idx FROM work WHERE idx < ? AND state != 'committed' ORDER BY idx", below)
        return [entry for row in rows if (entry := self.entry(row["idx"]))]

    def receipt(self, index: int) -> UploadReceipt | None:
        """Return the storage's receipt for an index: it dismisses a case about missing data."""
        text = self.value("SELECT receipt FROM work WHERE idx = ?", index)
        return None if text is None else UploadReceipt.model_validate_json(text)

    def save(self, index: int, step: int, anchor: bytes, root: bytes, data: bytes) -> Entry:
        """Write a finished file to disk, then record it.

        Raises StorageError when the index has work already, or the disk refuses.
        """
        if self.entry(index) is not None:
            raise StorageError(f"there is work for index {index} already")
        entry = Entry(index, step, anchor, root, content_hash(data), "saved")
        write_durably(self._path(entry.file_hash), data)
        self._intact.add(entry.file_hash)
        statement = "INSERT INTO work (idx, step, anchor, root, file_hash, state) VALUES (?, ?, ?, ?, ?, 'saved')"
        self.execute(statement, index, step, anchor, root, entry.file_hash)
        return entry

    def data(self, entry: Entry) -> bytes:
        """Return the finished file. Raises StorageError when it is gone or damaged."""
        try:
            data = self._path(entry.file_hash).read_bytes()
        except OSError as error:
            raise StorageError(f"{self._path(entry.file_hash)} cannot be read: {error.strerror}") from error
        if entry.file_hash not in self._intact:
            if content_hash(data) != entry.file_hash:
                raise StorageError(f"{self._path(entry.file_hash)} is damaged")
            self._intact.add(entry.file_hash)
        return data

    def uploaded(self, index: int, receipt: UploadReceipt) -> None:
        """Record that the storage holds the file."""
        self.execute("UPDATE work SET state = 'uploaded', receipt = ? WHERE idx = ?", receipt.model_dump_json(), index)

    def committed(self, index: int, tx: bytes | None, block: int | None) -> None:
        """Record that the chain has it; `tx` is None when an earlier process sent it."""
        self.execute("UPDATE work SET state = 'committed', tx = ?, block = ? WHERE idx = ?", tx, block, index)

    def discard(self, entry: Entry) -> None:
        """Forget work that can no longer be committed."""
        self.execute("DELETE FROM work WHERE idx = ?", entry.index)
        self._path(entry.file_hash).unlink(missing_ok=True)
        self._intact.discard(entry.file_hash)

    def prune(self, settled: int) -> int:
        """Delete the files of settled work, which can no longer be requested. Return how many."""
        rows = self.rows("SELECT file_hash FROM work WHERE idx < ? AND state = 'committed'", settled)
        hashes = {row["file_hash"] for row in rows if self._path(row["file_hash"]).exists()}
        for file_hash in hashes:
            self._path(file_hash).unlink()
        self._intact -= hashes
        return len(hashes)

    def _path(self, file_hash: str) -> Path:
        return self.folder / "files" / f"{file_hash}.parquet"
