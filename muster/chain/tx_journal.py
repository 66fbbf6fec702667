"""What one key has sent and not yet seen mined, on disk: a restart waits for it before it sends anything new.

One SQLite file per chain and key. A nonce is chosen, signed for and written down in one exclusive transaction, so two
processes that use the same key on one machine never choose the same nonce. A row is written before its transaction
leaves the machine and deleted when it is mined; after a crash the journal may name too much, never too little.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.errors import StorageError

LOCK_SECONDS: Final = 10.0
"""Longest wait for another process that holds the journal; it holds it for milliseconds."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS sent (
    chain TEXT NOT NULL, nonce INTEGER NOT NULL, label TEXT NOT NULL, recipient TEXT, data BLOB NOT NULL,
    value TEXT NOT NULL, gas INTEGER NOT NULL, max_fee INTEGER NOT NULL, tip INTEGER NOT NULL,
    raw BLOB NOT NULL, hashes TEXT NOT NULL, PRIMARY KEY (chain, nonce)
)
"""
_COLUMNS: Final = "nonce, label, recipient, data, value, gas, max_fee, tip, raw, hashes"


@dataclass(frozen=True)
class Sent:
    """A signed transaction that is on its way."""

    nonce: int
    label: str
    """The call in words, e.g. Runs.commitWork."""
    to: str | None
    """None creates a contract."""
    data: bytes
    value: int
    gas: int
    max_fee: int
    tip: int
    raw: bytes
    """Its latest signed form."""
    hashes: tuple[bytes, ...]
    """Of every signed form, the latest last: whichever is mined, it is this transaction."""


class TxJournal:
    """The journal of one key on one chain. Its methods block for milliseconds: call them in a thread."""

    def __init__(self, path: Path, chain: str) -> None:
        """`chain` is the hash of the chain's first block, so that a fresh local chain starts with an empty journal."""
        self.path = path
        self._chain = chain
        self._guard = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise StorageError(f"the journal {path} cannot be used: {error}", hint="check its folder") from error

    def close(self) -> None:
        with self._guard:
            self._database.close()

    def pending(self) -> list[Sent]:
        """Return everything on its way, in order of nonces."""
        with self._guard:
            return self._pending()

    def reserve(self, first: int, taken: Collection[int], sign: Callable[[int], Sent]) -> Sent:
        """Choose the lowest nonce from `first` on that is neither ours nor `taken`, sign for it and write it down."""
        with self._guard:
            self._execute("BEGIN IMMEDIATE")
            try:
                used = {sent.nonce for sent in self._pending()} | set(taken)
                nonce = next(number for number in range(first, first + len(used) + 1) if number not in used)
                sent = sign(nonce)
                places = ", ".join("?" * 11)
                self._execute(f"INSERT INTO sent (chain, {_COLUMNS}) VALUES ({places})", (self._chain, *_row(sent)))
                self._execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:  # a full disk ends it by itself
                    self._execute("ROLLBACK")
                raise
            return sent

    def replace(self, old: Sent, new: Sent) -> bool:
        """Write down a new signed form of `old`; False when somebody else changed it or saw it mined first."""
        with self._guard:
            cursor = self._execute(
                "UPDATE sent SET max_fee = ?, tip = ?, raw = ?, hashes = ? WHERE chain = ? AND nonce = ? AND raw = ?",
                (new.max_fee, new.tip, new.raw, _hashes(new), self._chain, old.nonce, old.raw),
            )
            return cursor.rowcount == 1

    def forget(self, nonce: int) -> None:
        """Delete what was mined or never left; harmless when it is deleted already."""
        with self._guard:
            self._execute("DELETE FROM sent WHERE chain = ? AND nonce = ?", (self._chain, nonce))

    def _pending(self) -> list[Sent]:
        query = f"SELECT {_COLUMNS} FROM sent WHERE chain = ? ORDER BY nonce"
        with closing(self._execute(query, (self._chain,))) as cursor:
            return [_sent(row) for row in cursor.fetchall()]

    def _execute(self, statement: str, values: tuple = ()) -> sqlite3.Cursor:
        try:
            return self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise StorageError(f"the journal {self.path} fails: {error}", hint="is the disk full?") from error


def _hashes(sent: Sent) -> str:
    return json.dumps([value.hex() for value in sent.hashes])


def _row(sent: Sent) -> tuple[object, ...]:
    value = str(sent.value)  # SQLite's integers have 64 bits
    fees = (sent.gas, sent.max_fee, sent.tip)
    return (sent.nonce, sent.label, sent.to, sent.data, value, *fees, sent.raw, _hashes(sent))


def _sent(row: tuple) -> Sent:
    hashes = tuple(bytes.fromhex(text) for text in json.loads(row[9]))
    return Sent(row[0], row[1], row[2], row[3], int(row[4]), row[5], row[6], row[7], row[8], hashes)
