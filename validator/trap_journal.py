"""What a validator's journal holds in a run with traps: its turns, what it sealed of each hour, and what it claimed.

A seal shows two roots, and only this journal has the salts that open them: leaves are on disk before the seal is sent.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from muster.contracts.court import Outcome
from muster.protocol.kinds import NO_ROW
from muster.protocol.merkle import LeafTree
from muster.protocol.traps import rejection_leaf, sealed_rejections, vouched_leaf
from muster.runtime.journal import Journal
from muster.verification.rules import CommittedWork

TRAP_SCHEMA: Final = (
    # called: whether this validator is. One that is not looks later, or not at all (state 'passed').
    """CREATE TABLE IF NOT EXISTS turns (
        node TEXT NOT NULL, idx INTEGER NOT NULL, root BLOB NOT NULL, called INTEGER NOT NULL,
        PRIMARY KEY (node, idx, root)
    )""",
    # claimed: whether nothing is left to be claimed of the hour.
    """CREATE TABLE IF NOT EXISTS seals (
        hour INTEGER PRIMARY KEY, vouched BLOB NOT NULL, rejected BLOB NOT NULL, claimed INTEGER NOT NULL DEFAULT 0
    )""",
    # position: the false row of a rejection; NULL of what was vouched for. place: in its list.
    """CREATE TABLE IF NOT EXISTS sealed_leaves (
        hour INTEGER NOT NULL, node TEXT NOT NULL, idx INTEGER NOT NULL, root BLOB NOT NULL, position INTEGER,
        salt BLOB NOT NULL, leaf BLOB NOT NULL, place INTEGER NOT NULL, PRIMARY KEY (hour, node, idx)
    )""",
    # Acts about a commitment that were done, or that the contract refused for good.
    """CREATE TABLE IF NOT EXISTS trap_acts (
        node TEXT NOT NULL, idx INTEGER NOT NULL, act TEXT NOT NULL, why TEXT NOT NULL, PRIMARY KEY (node, idx, act)
    )""",
)

RECENT_HOURS: Final = 96
"""Hours whose seals are looked at again after a reorg: more than claims take."""

TrapCall = Literal["claim", "settle", "excuse", "unticketed", "withheld", "share", "bounty"]
"""What a validator does once about a commitment (`validator.claims`)."""


@dataclass(frozen=True)
class SealedLeaf:
    """What an hour's seal says of one commitment."""

    node: str
    index: int
    root: bytes
    position: int | None
    """The row that was found false, or NO_ROW; None: the validator vouched for it."""
    salt: bytes
    leaf: bytes
    place: int


@dataclass(frozen=True)
class SealedHour:
    """An hour as it was sealed. `vouched`, `rejected`: in the order of their places."""

    hour: int
    vouched: tuple[SealedLeaf, ...]
    rejected: tuple[SealedLeaf, ...]

    @property
    def vouch_root(self) -> bytes:
        return self.vouch_tree.root if self.vouched else bytes(32)

    @property
    def vouch_tree(self) -> LeafTree:
        return LeafTree.from_hashes([one.leaf for one in self.vouched])

    @property
    def rejections(self) -> bytes:
        """Return the word that was sealed."""
        return sealed_rejections([one.leaf for one in self.rejected])

    def leaf_of(self, node: str, index: int) -> SealedLeaf | None:
        """Return what was sealed about a commitment, if anything was."""
        return next((one for one in (*self.vouched, *self.rejected) if (one.node, one.index) == (node, index)), None)


def seal_hour(
    hour: int, vouched: Sequence[tuple[CommittedWork, bytes]], rejected: Sequence[tuple[CommittedWork, int]]
) -> SealedHour:
    """Return the lists of an hour, each leaf with its own salt: who sees the roots can guess no leaf of them.

    `vouched`: with the leaf that is hidden (`validator.sealing.vouch_leaf`). `rejected`: with the false row.
    """
    shown, found = [], []
    for place, (c, bare) in enumerate(vouched):
        salt = secrets.token_bytes(32)
        leaf = vouched_leaf(bare, salt)
        shown.append(SealedLeaf(c.node, c.index, c.root, None, salt, leaf, place))
    for place, (c, position) in enumerate(rejected):
        salt = secrets.token_bytes(32)
        leaf = rejection_leaf(c.node, c.index, c.root, position, salt)
        found.append(SealedLeaf(c.node, c.index, c.root, position, salt, leaf, place))
    return SealedHour(hour, tuple(shown), tuple(found))


class TrapJournal:
    """The tables of traps in a validator's journal."""

    def __init__(self, journal: Journal, commitment: Callable[[sqlite3.Row], CommittedWork]) -> None:
        """Keep them in this journal. `commitment` reads a row of its table of commitments."""
        self._journal = journal
        self._commitment = commitment

    # Turns

    def without_turn(self, first_hour: int, before_block: int, limit: int) -> list[CommittedWork]:
        """Return waiting commitments of which is not known yet whether this validator is called."""
        rows = self._journal.rows(
            """SELECT * FROM commitments c WHERE state = 'pending' AND live = 1 AND hour >= ? AND block < ?
               AND NOT EXISTS (SELECT 1 FROM turns WHERE (node, idx, root) = (c.node, c.idx, c.root)) LIMIT ?""",
            *(first_hour, before_block, limit),
        )
        return [self._commitment(row) for row in rows]

    def take_turn(self, c: CommittedWork, *, called: bool, retry_at: float) -> None:
        """Note whether this validator is called. It inspects the commitment at `retry_at`, or not before."""
        with self._journal.transaction():
            self._journal.execute("INSERT OR REPLACE INTO turns VALUES (?, ?, ?, ?)", c.node, c.index, c.root, called)
            self._journal.execute(f"UPDATE commitments SET retry_at = ? WHERE {_KEY}", retry_at, *_key(c))

    def is_called(self, c: CommittedWork) -> bool:
        """Return whether this validator is called for a commitment."""
        return bool(self._journal.value(f"SELECT called FROM turns WHERE {_KEY}", *_key(c)))

    def pass_over(self, c: CommittedWork) -> None:
        """Leave a commitment to those who have looked at it."""
        self._journal.execute(f"UPDATE commitments SET state = 'passed' WHERE {_KEY}", *_key(c))

    def rewind(self, block: int) -> None:
        """Forget the turns of what a reorg took after a block: its hour, and so the links, may be others now."""
        later = "(node, idx, root) IN (SELECT node, idx, root FROM commitments WHERE block > ?)"
        self._journal.execute(f"DELETE FROM turns WHERE {later}", block)
        self._journal.execute("UPDATE commitments SET state = 'pending' WHERE state = 'passed' AND block > ?", block)
        # The chain may have lost what was claimed; what it has it refuses to do again.
        self._journal.execute("DELETE FROM trap_acts")
        self._journal.execute(
            "UPDATE seals SET claimed = 0 WHERE hour > (SELECT MAX(hour) FROM seals) - ?", RECENT_HOURS
        )

    # Seals

    def rejected(self, hour: int) -> list[tuple[CommittedWork, int]]:
        """Return what was rejected beyond the accusing limit in an hour, each with the row that is false, or NO_ROW.

        Not what lacked its file: a node that shows it later would fine whoever says so.
        """
        rows = self._journal.rows(
            """SELECT c.*, COALESCE(json_extract(v.document, '$.position'), ?) AS position
               FROM commitments c JOIN verdicts v USING (node, idx, root)
               WHERE c.live = 1 AND c.accepted = 0 AND c.hour = ? AND v.court IS NOT NULL AND v.court != 'withdrawn'
                 AND json_extract(v.document, '$.reason') != ? ORDER BY node, idx""",
            NO_ROW,
            hour,
            "data_missing",
        )
        return [(self._commitment(row), row["position"]) for row in rows]

    def keep(self, made: SealedHour) -> None:
        """Keep what is about to be sealed, in place of what an earlier try would have sealed."""
        with self._journal.transaction():
            self._journal.execute("DELETE FROM sealed_leaves WHERE hour = ?", made.hour)
            self._journal.execute(
                "INSERT OR REPLACE INTO seals (hour, vouched, rejected) VALUES (?, ?, ?)",
                *(made.hour, made.vouch_root, made.rejections),
            )
            for one in (*made.vouched, *made.rejected):
                self._journal.execute(
                    "INSERT INTO sealed_leaves VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    *(made.hour, one.node, one.index, one.root, one.position, one.salt, one.leaf, one.place),
                )

    def sealed(self, hour: int) -> SealedHour | None:
        """Return what was sealed of an hour; None where this journal does not have it."""
        if self._journal.row("SELECT 1 FROM seals WHERE hour = ?", hour) is None:
            return None
        rows = self._journal.rows("SELECT * FROM sealed_leaves WHERE hour = ? ORDER BY place", hour)
        leaves = [
            SealedLeaf(row["node"], row["idx"], row["root"], row["position"], row["salt"], row["leaf"], row["place"])
            for row in rows
        ]
        vouched = tuple(one for one in leaves if one.position is None)
        return SealedHour(hour, vouched, tuple(one for one in leaves if one.position is not None))

    # Claims

    def unclaimed(self) -> list[int]:
        """Return the sealed hours of which something may be left to be claimed, the oldest first."""
        rows = self._journal.rows(
            """SELECT hour FROM seals WHERE claimed = 0
               AND hour IN (SELECT hour FROM commitments WHERE live = 1) ORDER BY hour"""
        )
        return [row["hour"] for row in rows]

    def claimed(self, hour: int) -> None:
        """Note that nothing is left to be claimed of an hour."""
        self._journal.execute("UPDATE seals SET claimed = 1 WHERE hour = ?", hour)

    def work_of(self, hour: int) -> list[CommittedWork]:
        """Return all commitments of an hour, in the order of nodes and indices."""
        rows = self._journal.rows("SELECT * FROM commitments WHERE live = 1 AND hour = ? ORDER BY node, idx", hour)
        return [self._commitment(row) for row in rows]

    def done(self, node: str, index: int, act: TrapCall) -> bool:
        """Return whether an act about a commitment needs no other try."""
        return self.why(node, index, act) is not None

    def why(self, node: str, index: int, act: TrapCall) -> str | None:
        """Return why an act needs no other try: it is "done", or the contract refused it for this."""
        return self._journal.value("SELECT why FROM trap_acts WHERE node = ? AND idx = ? AND act = ?", node, index, act)

    def did(self, node: str, index: int, act: TrapCall, why: str) -> None:
        """Note that an act was done, or `why` it can never be."""
        self._journal.execute("INSERT OR REPLACE INTO trap_acts VALUES (?, ?, ?, ?)", node, index, act, why)

    def cases_about(self, node: str, index: int) -> list[int]:
        """Return the numbers of the cases that were opened about a commitment."""
        query = "SELECT case_id FROM cases WHERE accused = ? AND idx = ? ORDER BY case_id"
        return [row["case_id"] for row in self._journal.rows(query, node, index)]

    def bounties(self, me: str) -> list[tuple[int, CommittedWork | None]]:
        """Return the convictions of whose bounty this validator may have a part, and took none yet.

        Each with the commitment if this validator had rejected it when it sealed; else it opened the case.
        """
        rows = self._journal.rows(
            """SELECT c.*, k.case_id FROM cases k
               LEFT JOIN sealed_leaves s ON (s.node, s.idx) = (k.accused, k.idx) AND s.position IS NOT NULL
               LEFT JOIN commitments c ON (c.node, c.idx, c.root) = (s.node, s.idx, s.root) AND c.live = 1
               WHERE k.outcome = ? AND (c.idx IS NOT NULL OR k.challenger = ?)
               AND NOT EXISTS (SELECT 1 FROM trap_acts WHERE (node, idx, act) = (k.accused, k.idx, 'bounty'))""",
            int(Outcome.GUILTY),
            me,
        )
        return [(row["case_id"], None if row["node"] is None else self._commitment(row)) for row in rows]

    # Accusations

    def held(self) -> list[tuple[CommittedWork, int]]:
        """Return the rejected commitments, with the false row, of which is not known yet whether that was planted."""
        rows = self._journal.rows(
            """SELECT c.*, json_extract(v.document, '$.position') AS position
               FROM verdicts v JOIN commitments c USING (node, idx, root)
               WHERE v.court = 'held' AND c.live = 1 ORDER BY c.hour, node, idx"""
        )
        return [(self._commitment(row), row["position"]) for row in rows]

    def release(self, c: CommittedWork, court: Literal["waiting", "trap"], due: float) -> None:
        """Let an accusation that was held go to court from `due` on, or note that the row was planted."""
        self._journal.execute(
            f"UPDATE verdicts SET court = ?, due = ? WHERE court = 'held' AND {_KEY}", court, due, *_key(c)
        )


_KEY: Final = "node = ? AND idx = ? AND root = ?"


def _key(c: CommittedWork) -> tuple[str, int, bytes]:
    return c.node, c.index, c.root
