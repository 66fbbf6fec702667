"""What the journal holds of private tests: this validator's own grades, and those that others have shown.

Own grades are written with their verdict and shown once it is reported. Others' are kept until they were compared
with one's own: equal ones are forgotten, different ones are taken to court.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from muster.protocol.messages import ShownGrades
from muster.runtime.journal import Journal
from muster.verification.rules import CommittedWork
from validator.outbox import Outbox

GRADE_SCHEMA: Final = (
    # state: unsent, sent, or refused.
    """CREATE TABLE IF NOT EXISTS own_grades (
        node TEXT NOT NULL, idx INTEGER NOT NULL, root BLOB NOT NULL, document TEXT NOT NULL,
        state TEXT NOT NULL DEFAULT 'unsent', refusals INTEGER NOT NULL DEFAULT 0, retry_at REAL NOT NULL DEFAULT 0,
        PRIMARY KEY (node, idx, root)
    )""",
    # state: new (not compared yet), waiting (to be accused from due on), opened, or the word for why there is no case.
    """CREATE TABLE IF NOT EXISTS other_grades (
        validator TEXT NOT NULL, node TEXT NOT NULL, idx INTEGER NOT NULL, root BLOB NOT NULL, document TEXT NOT NULL,
        state TEXT NOT NULL DEFAULT 'new', position INTEGER, due REAL NOT NULL DEFAULT 0,
        opened INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (validator, node, idx, root)
    )""",
    "CREATE INDEX IF NOT EXISTS uncompared ON other_grades (state)",
    "CREATE TABLE IF NOT EXISTS grade_cursor (one INTEGER PRIMARY KEY CHECK (one = 1), place TEXT NOT NULL)",
)


@dataclass(frozen=True)
class OtherGrades:
    """Grades that another validator has shown, of a commitment that this one graded as well."""

    commitment: CommittedWork
    shown: ShownGrades
    ours: ShownGrades

    @property
    def validator(self) -> str:
        return self.shown.statement.validator


class GradeJournal:
    """The grades in a validator's journal."""

    def __init__(self, journal: Journal, commitment: Callable[[sqlite3.Row], CommittedWork]) -> None:
        """Keep grades in this journal. `commitment` reads a row of its table of commitments."""
        self._journal = journal
        self._commitment = commitment
        self.own = Outbox(journal, "own_grades", ShownGrades, commitment, after="verdicts")

    @property
    def cursor(self) -> str | None:
        """Return how far others' grades were read."""
        return self._journal.value("SELECT place FROM grade_cursor")

    def read(self, grades: list[ShownGrades], cursor: str) -> None:
        """Keep grades that others have shown, and how far they were read. The same ones again change nothing."""
        with self._journal.transaction():
            for shown in grades:
                said = shown.statement
                self._journal.execute(
                    """INSERT INTO other_grades (validator, node, idx, root, document) VALUES (?, ?, ?, ?, ?)
                       ON CONFLICT DO NOTHING""",
                    *(said.validator, said.node, said.index, bytes.fromhex(said.root[2:]), shown.model_dump_json()),
                )
            self._journal.execute("INSERT OR REPLACE INTO grade_cursor VALUES (1, ?)", cursor)

    def uncompared(self, limit: int) -> list[OtherGrades]:
        """Return others' grades of commitments that this validator has graded, and not compared yet."""
        rows = self._journal.rows(
            """SELECT o.*, g.document AS ours, c.step, c.hour, c.block FROM other_grades o
               JOIN own_grades g USING (node, idx, root) JOIN commitments c USING (node, idx, root)
               WHERE o.state = 'new' LIMIT ?""",
            limit,
        )
        read = ShownGrades.model_validate_json
        return [OtherGrades(self._commitment(row), read(row["document"]), read(row["ours"])) for row in rows]

    def agreed(self, other: OtherGrades) -> None:
        """Forget grades that are no reason to accuse."""
        self._journal.execute(f"DELETE FROM other_grades WHERE {_OTHER}", *_key(other))

    def differ(self, other: OtherGrades, position: int, due: float) -> None:
        """Note that a row is graded otherwise, and from when on this validator may accuse."""
        self._journal.execute(
            f"UPDATE other_grades SET state = 'waiting', position = ?, due = ? WHERE {_OTHER}",
            *(position, due, *_key(other)),
        )


_OTHER: Final = "validator = ? AND node = ? AND idx = ? AND root = ?"


def _key(other: OtherGrades) -> tuple[str, str, int, bytes]:
    c = other.commitment
    return other.validator, c.node, c.index, c.root
