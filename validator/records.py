"""What the validator's journal holds and gives out: work to inspect, verdicts, cases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from muster.contracts.court import Outcome
from muster.protocol.kinds import NO_ROW, kind_of
from muster.protocol.messages import Verdict
from muster.verification.rules import CommittedWork
from validator.pool_journal import POOL_SCHEMA

SCHEMA: Final = (
    # state: pending, judged, skipped (its node is convicted), or passed (no place is this validator's).
    # live: whether the chain still has it, after reorgs.
    # turn: this validator's own order, so that several are through a backlog sooner together.
    # called: whether a place was this validator's: from then on it looks, also if the file comes late or never.
    # pooled: the rows that all validators re-run, where this one has.
    """CREATE TABLE IF NOT EXISTS commitments (
        node TEXT NOT NULL, idx INTEGER NOT NULL, root BLOB NOT NULL, step INTEGER NOT NULL, hour INTEGER NOT NULL,
        block INTEGER NOT NULL, live INTEGER NOT NULL DEFAULT 1, state TEXT NOT NULL DEFAULT 'pending',
        turn INTEGER NOT NULL, seen_at REAL NOT NULL, retry_at REAL NOT NULL DEFAULT 0, accepted INTEGER, reason TEXT,
        called INTEGER NOT NULL DEFAULT 0, pooled TEXT, PRIMARY KEY (node, idx, root)
    )""",
    "CREATE INDEX IF NOT EXISTS pending ON commitments (state, step)",
    "CREATE INDEX IF NOT EXISTS hours ON commitments (hour)",
    "CREATE INDEX IF NOT EXISTS rejected ON commitments (node) WHERE accepted = 0",
    # state: unsent, sent, or refused. court: NULL for what leads to no accusation, waiting (until due), opened, or the
    # word for why there will be no case. opened: cases that this validator opened about it.
    """CREATE TABLE IF NOT EXISTS verdicts (
        node TEXT NOT NULL, idx INTEGER NOT NULL, root BLOB NOT NULL, document TEXT NOT NULL, evidence BLOB,
        state TEXT NOT NULL DEFAULT 'unsent', refusals INTEGER NOT NULL DEFAULT 0, retry_at REAL NOT NULL DEFAULT 0,
        court TEXT, due REAL, opened INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (node, idx, root)
    )""",
    "CREATE INDEX IF NOT EXISTS accusing ON verdicts (court)",
    # charge: what the case is about; after a reorg the number may name another.
    # ballot: none, sealed (salt on disk, nothing sent), committed, revealed, done, or the word for why there is none.
    # ended: the block in which it was.
    """CREATE TABLE IF NOT EXISTS cases (
        case_id INTEGER PRIMARY KEY, charge BLOB NOT NULL, node TEXT NOT NULL, idx INTEGER NOT NULL, root BLOB NOT NULL,
        step INTEGER NOT NULL, kind INTEGER NOT NULL, challenger TEXT NOT NULL, evidence BLOB NOT NULL,
        jury INTEGER NOT NULL, commit_ends INTEGER NOT NULL, reveal_ends INTEGER NOT NULL, block INTEGER NOT NULL,
        outcome INTEGER NOT NULL DEFAULT 0, ballot TEXT NOT NULL DEFAULT 'none', ended INTEGER NOT NULL DEFAULT 0
    )""",
    # What was decided under which number about which charge: kept whatever becomes of the number, for the vote may be
    # on chain, and only its salt opens it.
    """CREATE TABLE IF NOT EXISTS votes (
        case_id INTEGER NOT NULL, charge BLOB NOT NULL, guilty INTEGER NOT NULL, salt BLOB NOT NULL,
        PRIMARY KEY (case_id, charge)
    )""",
    *POOL_SCHEMA,
)

Ballot = Literal["none", "sealed", "committed", "revealed", "done", "no judge", "late"]


@dataclass(frozen=True)
class PendingCase:
    """A case that this validator may open, about work that it rejected."""

    commitment: CommittedWork
    verdict: Verdict
    evidence: bytes
    """The bundle that the verdict names."""

    @property
    def reason(self) -> str:
        return self.verdict.reason or ""

    @property
    def position(self) -> int:
        """Return the row that shows it; NO_ROW where a pool or the whole file does."""
        return NO_ROW if self.verdict.position is None else self.verdict.position

    @property
    def kind(self) -> int:
        return kind_of(self.reason)

    @property
    def about(self) -> dict[str, str | int]:
        """Return what the log says of it."""
        c = self.commitment
        return {"node": c.node, "index": c.index, "kind": self.reason}


@dataclass(frozen=True)
class CaseRecord:
    """A case as its event states it, and this validator's part in it."""

    case_id: int
    charge: bytes
    """`muster.chain.client.charge_of`: what the number meant when this was read."""
    commitment: CommittedWork
    kind: int
    challenger: str
    evidence: bytes
    jury: int
    commit_ends: int
    reveal_ends: int
    block: int
    """That it was opened in."""
    outcome: Outcome
    ballot: Ballot
    guilty: bool | None
    salt: bytes | None

    @property
    def vote(self) -> tuple[bool, bytes]:
        """Return the sealed vote and its salt, without which it cannot be revealed."""
        assert self.guilty is not None
        assert self.salt is not None
        return self.guilty, self.salt
