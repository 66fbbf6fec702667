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
class OwnGrades:
    """Grades of this validator that are to be shown."""

    commitment: CommittedWork
    shown: ShownGrades
    refusals: int
    seen_at: float
    """Wall-clock second at which the commitment was first seen."""


@dataclass(frozen=True)
class OtherGrades:
    """Grades that another validator has shown, of a commitment that this one graded as well."""

    commitment: CommittedWork
    shown: ShownGrades
    ours: ShownGrades
    position: int | None
    """The first row that differs, once they were compared."""

    @property
    def validator(self) -> str:
        return self.shown.statement.validator


class GradeJournal:
    """The grades in a validator's journal."""

    def __init__(self, journal: Journal, commitment: Callable[[sqlite3.Row], CommittedWork]) -> None:
        """Keep grades in this journal. `commitment` reads a row of its table of commitments."""
        self._journal = journal
        self._commitment = commitment

    # Showing one's own

    def unsent(self, now: float, limit: int) -> list[OwnGrades]:
        """Return grades to show now, whose verdicts are reported; none about what a reorg took back."""
        rows = self._journal.rows(
            """SELECT g.*, c.step, c.hour, c.block, c.seen_at FROM own_grades g
               JOIN commitments c USING (node, idx, root) JOIN verdicts v USING (node, idx, root)
               WHERE g.state = 'unsent' AND g.retry_at <= ? AND v.state = 'sent' AND c.live = 1
               ORDER BY g.retry_at, g.rowid LIMIT ?""",
            *(now, limit),
        )
        return [OwnGrades(self._commitment(row), _shown(row), row["refusals"], row["seen_at"]) for row in rows]

    def sent(self, c: CommittedWork) -> None:
        """Note that the orchestrator has taken them."""
        self._journal.execute(f"UPDATE own_grades SET state = 'sent' WHERE {_KEY}", c.node, c.index, c.root)

    def put_off(self, c: CommittedWork, retry_at: float) -> None:
        """Show them later."""
        self._journal.execute(f"UPDATE own_grades SET retry_at = ? WHERE {_KEY}", retry_at, c.node, c.index, c.root)

    def refused(self, c: CommittedWork, *, retry_at: float | None) -> None:
        """Note that the orchestrator found fault with them. Without a time to try again they are shown no more."""
        self._journal.execute(
            f"UPDATE own_grades SET state = ?, refusals = refusals + 1, retry_at = ? WHERE {_KEY}",
            *("refused" if retry_at is None else "unsent", retry_at or 0, c.node, c.index, c.root),
        )

    # Reading others'

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
        return self._others("o.state = 'new'", limit)

    def agreed(self, other: OtherGrades) -> None:
        """Forget grades that are no reason to accuse."""
        self._journal.execute(f"DELETE FROM other_grades WHERE {_OTHER}", *_key(other))

    def differ(self, other: OtherGrades, position: int, due: float) -> None:
        """Note that a row is graded otherwise, and from when on this validator may accuse."""
        self._journal.execute(
            f"UPDATE other_grades SET state = 'waiting', position = ?, due = ? WHERE {_OTHER}",
            *(position, due, *_key(other)),
        )

    # Accusing

    def accusations(self, now: float) -> list[OtherGrades]:
        """Return what could go to court now, one accusation per validator, the earliest that is due."""
        found: dict[str, OtherGrades] = {}
        for other in self._others("o.state = 'waiting' AND o.due <= ? AND c.live = 1 ORDER BY o.due, o.rowid", -1, now):
            found.setdefault(other.validator, other)
        return list(found.values())

    def close_accusation(self, other: OtherGrades, state: str) -> None:
        """Note that a case was opened, or why there will be none."""
        self._journal.execute(f"UPDATE other_grades SET state = ? WHERE {_OTHER}", state, *_key(other))

    def delay_accusations(self, validator: str, due: float) -> None:
        """Accuse this validator of nothing before `due`."""
        self._journal.execute(
            "UPDATE other_grades SET due = MAX(due, ?) WHERE validator = ? AND state = 'waiting'", due, validator
        )

    def _others(self, where: str, limit: int, *values: object) -> list[OtherGrades]:
        rows = self._journal.rows(
            f"""SELECT o.*, g.document AS ours, c.step, c.hour, c.block FROM other_grades o
                JOIN own_grades g USING (node, idx, root) JOIN commitments c USING (node, idx, root)
                WHERE {where} LIMIT ?""",
            *(*values, limit),
        )
        return [
            OtherGrades(
                self._commitment(row), _shown(row), ShownGrades.model_validate_json(row["ours"]), row["position"]
            )
            for row in rows
        ]


_KEY: Final = "node = ? AND idx = ? AND root = ?"
_OTHER: Final = f"validator = ? AND {_KEY}"


def _shown(row: sqlite3.Row) -> ShownGrades:
    return ShownGrades.model_validate_json(row["document"])


def _key(other: OtherGrades) -> tuple[str, str, int, bytes]:
    c = other.commitment
    return other.validator, c.node, c.index, c.root
