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
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.chain.types import Fees, TxRequest
from muster.runtime.journal import Journal

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
    call: TxRequest
    gas: int
    fees: Fees
    raw: bytes
    """Its latest signed form."""
    hashes: tuple[bytes, ...]
    """Of every signed form, the latest last: whichever is mined, it is this transaction."""


class TxJournal(Journal):
    """The journal of one key on one chain. Its methods block for milliseconds: call them in a thread."""

    def __init__(self, path: Path, chain: str) -> None:
        """`chain` is the hash of the chain's first block, so that a fresh local chain starts with an empty journal."""
        super().__init__(path, [_SCHEMA], one_thread=False)
        self._chain = chain
        self._guard = threading.RLock()

    def close(self) -> None:
        with self._guard:
            super().close()

    def pending(self) -> list[Sent]:
        """Return everything on its way, in order of nonces."""
        with self._guard:
            rows = self.rows(f"SELECT {_COLUMNS} FROM sent WHERE chain = ? ORDER BY nonce", self._chain)
        return [_sent(row) for row in rows]

    def reserve(self, first: int, taken: Collection[int], sign: Callable[[int], Sent]) -> Sent:
        """Choose the lowest nonce from `first` on that is neither ours nor `taken`, sign for it and write it down."""
        with self._guard, self.transaction():
            used = {sent.nonce for sent in self.pending()} | set(taken)
            nonce = next(number for number in range(first, first + len(used) + 1) if number not in used)
            sent = sign(nonce)
            places = ", ".join("?" * 11)
            self.execute(f"INSERT INTO sent (chain, {_COLUMNS}) VALUES ({places})", self._chain, *_row(sent))
            return sent

    def replace(self, old: Sent, new: Sent) -> bool:
        """Write down a new signed form of `old`; False when somebody else changed it or saw it mined first."""
        statement = (
            "UPDATE sent SET max_fee = ?, tip = ?, raw = ?, hashes = ? WHERE chain = ? AND nonce = ? AND raw = ?"
        )
        with self._guard:
            values = new.fees.max_fee, new.fees.tip, new.raw, _hashes(new), self._chain, old.nonce, old.raw
            return self.execute(statement, *values) == 1

    def forget(self, nonce: int) -> None:
        """Delete what was mined or never left; harmless when it is deleted already."""
        with self._guard:
            self.execute("DELETE FROM sent WHERE chain = ? AND nonce = ?", self._chain, nonce)


def _hashes(sent: Sent) -> str:
    return json.dumps([value.hex() for value in sent.hashes])


def _row(sent: Sent) -> tuple[object, ...]:
    call, fees = sent.call, sent.fees
    value = str(call.value)  # SQLite's integers have 64 bits
    what = (sent.nonce, call.label, call.to, call.data, value)
    return (*what, sent.gas, fees.max_fee, fees.tip, sent.raw, _hashes(sent))


def _sent(row: sqlite3.Row) -> Sent:
    hashes = tuple(bytes.fromhex(text) for text in json.loads(row["hashes"]))
    call = TxRequest(row["recipient"], row["data"], row["label"], int(row["value"]))
    return Sent(row["nonce"], call, row["gas"], Fees(row["max_fee"], row["tip"]), row["raw"], hashes)
