"""A validator's journal on disk: commitments to inspect, verdicts to report and take to court, votes.

The table of commitments is the inspector's queue, so a restart forgets nothing and memory holds a handful of rows.
Order matters in two places: a verdict is written before it is reported, a vote's salt before the vote is committed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, Literal

from muster.chain.client import charge_of
from muster.chain.cursor import EventBatch
from muster.chain.reads import REORG_DEPTH
from muster.constants import SAMPLE_BLOCKS
from muster.contracts.court import CaseOpened, CaseResolved, Outcome
from muster.contracts.registry import Convicted
from muster.contracts.runs import WorkCommitted
from muster.protocol.hashes import keccak
from muster.protocol.kinds import kind_of
from muster.protocol.messages import Verdict
from muster.runtime.journal import Journal
from muster.verification.pools import PooledRow
from muster.verification.rules import CommittedWork
from validator.outbox import Outbox
from validator.pool_journal import PoolJournal
from validator.records import SCHEMA, Ballot, CaseRecord, PendingCase

MAX_CASES: Final = 2
"""Cases a validator opens about one commitment when no quorum judges the first."""

NO_QUORUM_SECONDS: Final = 30.0
"""Pause between them."""

_UNDECIDED: Final = (Outcome.NOT_GUILTY, Outcome.NO_QUORUM, Outcome.DISMISSED, Outcome.CURED)
"""Ends of a case after which its node goes on."""


class ValidatorJournal(Journal):
    """The journal of one validator. Hold its folder's lock while using it."""

    def __init__(self, folder: Path, identity: str, run: int, validator: str) -> None:
        """Open or create it. `identity` names chain, contracts and validator.

        Raises ConfigError when the folder is another's.
        """
        super().__init__(folder / "journal.sqlite", SCHEMA, owner=identity, setting="validator.state_dir")
        self.run = run
        self.validator = validator
        self.verdicts = Outbox(self, self._commitment)
        self.pools = PoolJournal(self, self._commitment)
        self.first_hour = 0
        """The hour in which this validator registered. Work of earlier hours is left to those who served in them: it
        has no links of its hash chain for these, and cannot seal them."""

    # Events

    def record(self, batch: EventBatch, now: float) -> None:
        """Record events of the chain. The same event twice changes nothing."""
        with self.transaction():
            if batch.rewound_to is not None:
                self.execute("UPDATE commitments SET live = 0 WHERE block > ?", batch.rewound_to)
                self._look_again(batch.rewound_to)
                self.execute("DELETE FROM cases WHERE block > ? AND ballot = 'none'", batch.rewound_to)
                self.execute("UPDATE cases SET outcome = 0 WHERE ended > ?", batch.rewound_to)
                recent = batch.rewound_to - REORG_DEPTH  # what a case that ended then owed may be owed again
                self.execute("UPDATE cases SET ballot = 'revealed' WHERE ballot = 'done' AND ended > ?", recent)
                self.pools.rewind(batch.rewound_to)
                self._accuse_again(now)
            for event in batch:
                if isinstance(event, WorkCommitted):
                    self._committed(event, now)
                elif isinstance(event, CaseOpened):
                    self._opened(event)
                elif isinstance(event, CaseResolved):
                    self._resolved(event, now)
                elif isinstance(event, Convicted):
                    self._convicted(event.node)

    def _committed(self, event: WorkCommitted, now: float) -> None:
        turn = keccak(f"{self.validator} {event.node} {event.index}".encode())
        self.execute(
            """INSERT INTO commitments (node, idx, root, step, hour, block, turn, seen_at)
               VALUES (?, ?, ?, ?, ?, ?, ?, ?)
               ON CONFLICT DO UPDATE SET live = 1, hour = excluded.hour, block = excluded.block""",
            *(event.node, event.index, event.root, event.step, event.hour, event.at.block),
            *(int.from_bytes(turn[:6], "big"), now),
        )

    def _look_again(self, block: int) -> None:
        """Queue what a later block than this one drew: another one draws other rows, and calls others.

        A verdict that accuses stays: its evidence holds whatever was drawn.
        """
        self.execute(
            """UPDATE commitments SET state = 'pending', called = 0, accepted = NULL, retry_at = 0
               WHERE block > ? AND state IN ('pending', 'judged', 'passed') AND (node, idx, root) NOT IN
                     (SELECT node, idx, root FROM verdicts WHERE court IS NOT NULL)""",
            block - SAMPLE_BLOCKS,
        )

    def _opened(self, event: CaseOpened) -> None:
        """Record a case, or another one under a number that a reorg took from it.

        The same case again, perhaps opened in another block, keeps what this validator has decided.
        """
        charge = charge_of(event)
        known = self.row("SELECT charge, block FROM cases WHERE case_id = ?", event.case_id)
        if known is not None and known["charge"] == charge:
            if known["block"] != event.at.block:
                self._reopened(event, charge)
            return
        self.execute(
            """INSERT OR REPLACE INTO cases (case_id, charge, node, idx, root, step, kind, challenger, evidence, jury,
                                             commit_ends, reveal_ends, block, ballot)
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
            *(event.case_id, charge, event.node, event.index, event.root, event.step, event.kind),
            *(event.challenger, event.evidence_hash, event.jury, event.commit_ends, event.reveal_ends, event.at.block),
            self._start(event.case_id, charge),
        )
        if event.challenger == self.validator:
            self.execute(
                f"UPDATE verdicts SET court = 'opened', opened = opened + 1 WHERE {_KEY} AND court IS NOT NULL",
                *(event.node, event.index, event.root),
            )

    def _reopened(self, event: CaseOpened, charge: bytes) -> None:
        """Take over times and jury of a case that a reorg opened again."""
        self.execute(
            """UPDATE cases SET challenger = ?, jury = ?, commit_ends = ?, reveal_ends = ?, block = ?,
               ballot = CASE WHEN ballot IN ('no judge', 'late') THEN ? ELSE ballot END WHERE case_id = ?""",
            *(event.challenger, event.jury, event.commit_ends, event.reveal_ends, event.at.block),
            *(self._start(event.case_id, charge), event.case_id),
        )

    def _start(self, case_id: int, charge: bytes) -> Ballot:
        """Return how far this validator is with a new case: it may have decided about it before a reorg."""
        voted = self.value("SELECT 1 FROM votes WHERE case_id = ? AND charge = ?", case_id, charge)
        return "sealed" if voted else "none"

    def _resolved(self, event: CaseResolved, now: float) -> None:
        """Record the end of a case. Without a quorum nothing was decided: its challenger may try once more."""
        changed = self.execute(
            "UPDATE cases SET outcome = ?, ended = ? WHERE case_id = ? AND outcome = 0",
            *(int(event.outcome), event.at.block, event.case_id),
        )
        if changed and event.outcome == Outcome.NO_QUORUM:
            self.execute(
                """UPDATE verdicts SET court = 'waiting', due = ? WHERE court = 'opened' AND opened < ?
                   AND (node, idx, root) IN (SELECT node, idx, root FROM cases WHERE case_id = ? AND challenger = ?)""",
                *(now + NO_QUORUM_SECONDS, MAX_CASES, event.case_id, self.validator),
            )
        if changed and event.outcome in _UNDECIDED:
            self._inspect_again(event)

    def _accuse_again(self, now: float) -> None:
        """Let accusations wait whose case or conviction a reorg may have dropped: the challenger sees what is so."""
        self.execute(
            """UPDATE verdicts SET court = 'waiting', due = ? WHERE court = 'moot' OR court = 'opened'
               AND (node, idx, root) NOT IN (SELECT node, idx, root FROM cases WHERE challenger = ?)""",
            *(now, self.validator),
        )

    def _inspect_again(self, event: CaseResolved) -> None:
        """Queue a commitment whose case about missing data has ended: its file came late, or no juror had looked.

        A verdict that is about to be taken to court once more stays.
        """
        self.execute(
            """UPDATE commitments SET state = 'pending', called = 0, retry_at = 0
               WHERE state = 'judged' AND reason = 'data_missing'
                 AND (node, idx, root) IN (SELECT node, idx, root FROM cases WHERE case_id = ? AND kind = ?)
                 AND (node, idx, root) NOT IN
                     (SELECT node, idx, root FROM verdicts WHERE court = 'waiting' AND opened > 0)""",
            *(event.case_id, kind_of("data_missing")),
        )

    def _convicted(self, node: str) -> None:
        self.execute("UPDATE commitments SET state = 'skipped' WHERE node = ? AND state = 'pending'", node)
        self.execute("UPDATE verdicts SET court = 'moot' WHERE node = ? AND court = 'waiting'", node)

    # Inspecting

    def pending(self, before_block: int, now: float, limit: int) -> list[tuple[CommittedWork, float]]:
        """Return commitments of blocks before this one, each with the wall-clock second at which it was first seen.

        The newest step comes first: the trainer waits for it. Nodes that were rejected before come after others: their
        work is likely to be void soon.
        """
        rows = self.rows(
            """SELECT * FROM commitments
               WHERE state = 'pending' AND live = 1 AND hour >= ? AND block < ? AND retry_at <= ?
               ORDER BY node IN (SELECT node FROM commitments WHERE accepted = 0), step DESC, turn LIMIT ?""",
            *(self.first_hour, before_block, now, limit),
        )
        return [(self._commitment(row), row["seen_at"]) for row in rows]

    def backlog(self) -> int:
        """Return the number of commitments that wait to be inspected."""
        query = "SELECT COUNT(*) FROM commitments WHERE state = 'pending' AND live = 1 AND hour >= ?"
        return self.value(query, self.first_hour)

    def postpone(self, c: CommittedWork, retry_at: float) -> None:
        """Inspect it again later."""
        self.execute(f"UPDATE commitments SET retry_at = ? WHERE {_KEY}", retry_at, c.node, c.index, c.root)

    def is_called(self, c: CommittedWork) -> bool:
        """Return whether a place at a commitment was this validator's."""
        return bool(self.value(f"SELECT called FROM commitments WHERE {_KEY}", c.node, c.index, c.root))

    def call(self, c: CommittedWork) -> None:
        """Note that a place at a commitment is this validator's."""
        self.execute(f"UPDATE commitments SET called = 1 WHERE {_KEY}", c.node, c.index, c.root)

    def pass_over(self, c: CommittedWork) -> None:
        """Leave a commitment to others; an earlier verdict on it stays."""
        self.execute(
            f"""UPDATE commitments SET state = CASE WHEN (node, idx, root) IN (SELECT node, idx, root FROM verdicts)
                                                    THEN 'judged' ELSE 'passed' END WHERE {_KEY}""",
            *(c.node, c.index, c.root),
        )

    def judge(
        self,
        c: CommittedWork,
        verdict: Verdict,
        evidence: bytes | None,
        *,
        accuse_at: float | None,
        pooled: Sequence[PooledRow] = (),
    ) -> None:
        """Record a verdict, in place of an earlier one: to be reported, and from `accuse_at` on for court.

        Keep what pools take.
        """
        key = (c.node, c.index, c.root)
        with self.transaction():
            if pooled:
                self.pools.keep(c, pooled)
            self.execute(
                f"UPDATE commitments SET state = 'judged', accepted = ?, reason = ? WHERE {_KEY}",
                *(verdict.accepted, verdict.reason, *key),
            )
            self.execute(
                """INSERT OR REPLACE INTO verdicts (node, idx, root, document, evidence, court, due)
                   VALUES (?, ?, ?, ?, ?, ?, ?)""",
                *(*key, verdict.model_dump_json(), evidence, None if accuse_at is None else "waiting", accuse_at),
            )

    def evidence(self, c: CommittedWork) -> bytes | None:
        """Return the evidence bundle of a commitment's verdict; None where it has none."""
        return self.value(f"SELECT evidence FROM verdicts WHERE {_KEY}", c.node, c.index, c.root)

    # Accusing

    def accusations(self, now: float, first: Collection[int] = ()) -> list[PendingCase]:
        """Return what could go to court now, one accusation per node.

        It is the earliest that is due; a kind in `first` comes before all others.
        """
        rows = self.rows(
            """SELECT c.*, v.document, v.evidence FROM verdicts v JOIN commitments c USING (node, idx, root)
               WHERE v.court = 'waiting' AND v.due <= ? AND c.live = 1 ORDER BY v.due""",
            now,
        )
        of_node: dict[str, sqlite3.Row] = {}
        for row in sorted(rows, key=lambda row: kind_of(row["reason"]) not in first):
            of_node.setdefault(row["node"], row)
        return [
            PendingCase(self._commitment(row), Verdict.model_validate_json(row["document"]), row["evidence"] or b"")
            for row in of_node.values()
        ]

    def close_accusation(self, case: PendingCase, why: str) -> None:
        """Note that a case was opened, or why there will be none."""
        c = case.commitment
        self.execute(f"UPDATE verdicts SET court = ? WHERE {_KEY}", why, c.node, c.index, c.root)

    def expect_event(self, case: PendingCase, due: float) -> None:
        """Bring an accusation again at `due`, unless the event of its case or conviction closes it."""
        c = case.commitment
        self.execute(f"UPDATE verdicts SET due = ? WHERE {_KEY}", due, c.node, c.index, c.root)

    def delay_accusations(self, node: str, due: float) -> None:
        """Accuse this node of nothing before `due`."""
        self.execute("UPDATE verdicts SET due = MAX(due, ?) WHERE node = ? AND court = 'waiting'", due, node)

    def cases_ended(self, outcome: Outcome) -> int:
        """Return the number of cases that this validator opened and that ended so."""
        query = "SELECT COUNT(*) FROM cases WHERE challenger = ? AND outcome = ?"
        return self.value(query, self.validator, int(outcome))

    # Cases

    def cases(self) -> list[CaseRecord]:
        """Return the cases in which there may be something left to do: not ended, or not collected."""
        rows = self.rows(
            """SELECT *, 0 AS hour FROM cases LEFT JOIN votes USING (case_id, charge)
               WHERE outcome = 0 OR ballot IN ('sealed', 'committed', 'revealed') ORDER BY case_id"""
        )
        same = CaseRecord.__dataclass_fields__.keys() - {"commitment", "outcome", "guilty"}
        return [
            CaseRecord(
                commitment=self._commitment(row),
                outcome=Outcome(row["outcome"]),
                guilty=None if row["guilty"] is None else bool(row["guilty"]),
                **{name: row[name] for name in same},
            )
            for row in rows
        ]

    def seal_ballot(self, case: CaseRecord, guilty: bool, salt: bytes) -> None:
        """Write down a vote before anything leaves this machine.

        It is about this case, whatever has its number by now.
        """
        with self.transaction():
            self.execute("INSERT INTO votes VALUES (?, ?, ?, ?)", case.case_id, case.charge, guilty, salt)
            self.set_ballot(case, "sealed")

    def set_ballot(self, case: CaseRecord, ballot: Ballot) -> None:
        """Note how far this validator is with a case, unless a reorg has given its number to another."""
        self.execute("UPDATE cases SET ballot = ? WHERE case_id = ? AND charge = ?", ballot, case.case_id, case.charge)

    # Sealing

    def open_hour(self, after: int, before: int) -> int | None:
        """Return the first hour after one and before another with a verdict of this validator, or work that waits."""
        query = """SELECT MIN(hour) FROM commitments
                   WHERE live = 1 AND state IN ('judged', 'pending') AND hour >= ? AND hour < ?"""
        return self.value(query, max(after + 1, self.first_hour), before)

    def count(self, hour: int, state: Literal["judged", "pending"]) -> int:
        """Return the number of commitments of an hour that this validator has judged, or that still wait."""
        query = "SELECT COUNT(*) FROM commitments WHERE live = 1 AND state = ? AND hour = ?"
        return self.value(query, state, hour)

    def vouched(self, hour: int) -> list[CommittedWork]:
        """Return the commitments of an hour that this validator accepted."""
        rows = self.rows(
            "SELECT * FROM commitments WHERE live = 1 AND accepted = 1 AND hour = ? ORDER BY node, idx", hour
        )
        return [self._commitment(row) for row in rows]

    def _commitment(self, row: sqlite3.Row) -> CommittedWork:
        return CommittedWork(
            self.run, row["step"], row["node"], row["idx"], row["root"], hour=row["hour"], block=row["block"]
        )


_KEY: Final = "node = ? AND idx = ? AND root = ?"
