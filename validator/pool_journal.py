"""What the journal holds of pools: of each inspected commitment the rows that all validators re-run, and whole units.

A unit takes a replay, so it is kept. It follows from the block after the commitment that ends it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final

from muster.constants import SAMPLE_BLOCKS
from muster.errors import UnreachableError
from muster.runtime.journal import Journal
from muster.verification.pools import WINDOW, PooledRow, Unit, rows_from_json, rows_to_json
from muster.verification.rules import CommittedWork

POOL_SCHEMA: Final = (
    "CREATE INDEX IF NOT EXISTS steps ON commitments (node, step) WHERE live = 1",
    # block: that of the commitment which ends the unit.
    """CREATE TABLE IF NOT EXISTS pool_units (
        node TEXT NOT NULL, step INTEGER NOT NULL, block INTEGER NOT NULL, document TEXT NOT NULL,
        PRIMARY KEY (node, step)
    )""",
)


@dataclass(frozen=True)
class StepWork:
    """A node's work of one step: its first and last commitment, and those beside them."""

    before: CommittedWork | None
    """The last of an earlier step; None where `first` is the node's first."""
    first: CommittedWork
    last: CommittedWork
    closing: CommittedWork
    """The first of a later step."""


class PoolJournal:
    """The pools in a validator's journal."""

    def __init__(self, journal: Journal, commitment: Callable[[sqlite3.Row], CommittedWork]) -> None:
        """Keep pools in this journal. `commitment` reads a row of its table of commitments."""
        self._journal = journal
        self._commitment = commitment

    def keep(self, c: CommittedWork, rows: Sequence[PooledRow]) -> None:
        """Keep the rows of a commitment that all validators re-run."""
        self._journal.execute(
            "UPDATE commitments SET pooled = ? WHERE node = ? AND idx = ? AND root = ?",
            *(rows_to_json(rows), c.node, c.index, c.root),
        )

    def rewind(self, block: int) -> None:
        """Forget what follows from the hash of a later block than this one."""
        drawn = block - SAMPLE_BLOCKS
        self._journal.execute("UPDATE commitments SET pooled = NULL WHERE block > ?", drawn)
        self._journal.execute("DELETE FROM pool_units WHERE block > ?", drawn)

    def steps_around(self, c: CommittedWork) -> list[StepWork]:
        """Return the node's steps that are over, at most a WINDOW before and after that of a commitment."""
        rows = self._journal.rows(
            f"""SELECT c.*, s.count FROM commitments c JOIN (
                    SELECT step, MIN(idx) AS first, MAX(idx) AS last, COUNT(*) AS count FROM commitments
                    WHERE node = ?1 AND live = 1 AND step IN (
                        SELECT * FROM ({_STEPS} AND step <= ?2 ORDER BY step DESC LIMIT ?3)
                        UNION SELECT * FROM ({_STEPS} AND step > ?2 ORDER BY step LIMIT ?3)
                    ) GROUP BY step
                ) s ON c.step = s.step AND c.idx IN (s.first, s.last)
                WHERE c.node = ?1 AND c.live = 1 ORDER BY c.idx""",
            *(c.node, c.step, WINDOW + 1),
        )
        whole = []
        for _, ends in groupby(rows, key=lambda row: row["step"]):
            first, *last = ends
            works = [self._commitment(row) for row in (first, *last)]
            if first["count"] == works[-1].index - works[0].index + 1:
                whole.append(works)
        found = [
            StepWork(before[-1] if before else None, works[0], works[-1], closing[0])
            for before, (works, closing) in zip([[], *whole], pairwise(whole), strict=False)
        ]
        return [
            one
            for one in found
            if one.closing.index == one.last.index + 1
            and (one.before.index + 1 if one.before else 0) == one.first.index
        ]

    def committed(self, node: str, index: int) -> CommittedWork:
        """Return a commitment. Raises UnreachableError where a reorg took it."""
        row = self._journal.row("SELECT * FROM commitments WHERE node = ? AND idx = ? AND live = 1", node, index)
        if row is None:
            raise UnreachableError(f"commitment {index} of {node} is no longer on chain")
        return self._commitment(row)

    def rows_by_step(self, node: str, first: int, last: int) -> dict[int, list[PooledRow]]:
        """Return what was kept of a node's work from one step to another, by step, in the order of commitments."""
        rows = self._journal.rows(
            """SELECT step, pooled FROM commitments
               WHERE node = ? AND live = 1 AND pooled IS NOT NULL AND step BETWEEN ? AND ? ORDER BY idx""",
            *(node, first, last),
        )
        found: dict[int, list[PooledRow]] = {}
        for row in rows:
            found.setdefault(row["step"], []).extend(rows_from_json(row["pooled"]))
        return found

    def unit(self, work: StepWork) -> Unit | None:
        """Return the unit of a step, if it was kept."""
        first = work.first
        document = self._journal.value(
            "SELECT document FROM pool_units WHERE node = ? AND step = ? AND block = ?",
            *(first.node, first.step, work.closing.block),
        )
        return None if document is None else Unit(first.step, first.index, work.last.index, rows_from_json(document))

    def keep_unit(self, work: StepWork, unit: Unit) -> None:
        self._journal.execute(
            "INSERT OR REPLACE INTO pool_units VALUES (?, ?, ?, ?)",
            *(work.first.node, unit.step, work.closing.block, rows_to_json(unit.rows)),
        )


_STEPS: Final = "SELECT DISTINCT step FROM commitments WHERE node = ?1 AND live = 1"
