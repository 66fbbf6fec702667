"""What the trainer knows of a run, on disk: commitments, verdicts, cases, shown links, checks, and the hours' lists.

A restart goes on from it: no verdict is read twice, no file that was left out comes again, no row is chosen again, and
a list that was made stays as it is. What belongs to an hour is deleted once its list is made, but work that can still
be trained on (`keep_from`) with what is said of it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.chain.cursor import EventBatch
from muster.constants import HOUR_SECONDS, SAMPLE_BLOCKS
from muster.contracts.court import CaseOpened, CaseResolved
from muster.contracts.registry import Convicted
from muster.contracts.runs import HourSealed, WorkCommitted
from muster.protocol.acceptance import CaseState, Decision, Opinion, decide
from muster.protocol.counting import Tally, records_of
from muster.protocol.hashes import hash_bytes, hex_hash
from muster.protocol.looks import Record
from muster.protocol.messages import LeftOut, LookList, RowCheck, SignedText, Verdict
from muster.protocol.terms import Terms
from muster.runtime.journal import Journal
from muster.verification.look_facts import CalledWork, ShownLink
from muster.verification.rules import CommittedWork

NO_ROW: Final = -1
"""Position of a rejection that names no row."""

NO_STEP: Final = 1 << 32
"""After all steps."""

KEPT_HOURS: Final = 30 * 24
"""Lists of so many hours are kept."""

SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS commitments (
        node TEXT, idx INTEGER, root TEXT NOT NULL, step INTEGER NOT NULL, hour INTEGER NOT NULL,
        block INTEGER NOT NULL, known TEXT, PRIMARY KEY (node, idx))""",
    """CREATE TABLE IF NOT EXISTS cases (
        number INTEGER PRIMARY KEY, node TEXT, idx INTEGER, challenger TEXT NOT NULL, outcome TEXT NOT NULL,
        block INTEGER NOT NULL, ended INTEGER)""",
    "CREATE INDEX IF NOT EXISTS cases_about ON cases (node, idx)",
    "CREATE TABLE IF NOT EXISTS jailed (node TEXT PRIMARY KEY, block INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS left_out (file_hash TEXT PRIMARY KEY, step INTEGER NOT NULL, reason TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS verdicts (
        validator TEXT, node TEXT, idx INTEGER, root TEXT, came INTEGER NOT NULL, accepted INTEGER NOT NULL,
        position INTEGER, verdict TEXT NOT NULL, PRIMARY KEY (validator, node, idx, root))""",
    "CREATE INDEX IF NOT EXISTS verdicts_about ON verdicts (node, idx)",
    """CREATE TABLE IF NOT EXISTS links (
        validator TEXT, hour INTEGER, link TEXT NOT NULL, second INTEGER NOT NULL, block INTEGER NOT NULL,
        picked INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (validator, hour))""",
    """CREATE TABLE IF NOT EXISTS checks (
        validator TEXT, node TEXT, idx INTEGER, root TEXT, position INTEGER, kind TEXT, hour INTEGER NOT NULL,
        step INTEGER NOT NULL, outcome TEXT, listed INTEGER, rank INTEGER NOT NULL,
        PRIMARY KEY (validator, node, idx, root, position, kind))""",
    """CREATE TABLE IF NOT EXISTS lists (
        hour INTEGER PRIMARY KEY, shown TEXT NOT NULL, tally TEXT NOT NULL, sent INTEGER NOT NULL DEFAULT 0)""",
    "CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
)

_SAME: Final = "s.node = c.node AND s.idx = c.idx"
_CASED: Final = f"EXISTS (SELECT 1 FROM cases AS s WHERE {_SAME})"
_ABOUT: Final = "validator = ? AND node = ? AND idx = ? AND root = ? AND position = ? AND kind = ?"


@dataclass(frozen=True)
class DueCheck:
    """A row that is to be replayed."""

    validator: str
    node: str
    index: int
    root: str
    position: int
    hour: int
    step: int
    kind: str
    """"numbers": of a look. "rejection": whether an arithmetic shares it."""
    rank: int = 1
    """The lowest is replayed first."""

    @property
    def key(self) -> tuple[str, str, int, str, int, str]:
        return self.validator, self.node, self.index, self.root, self.position, self.kind


class LookJournal(Journal):
    """The looks of one run. Hold its folder's lock while using it."""

    def __init__(self, folder: Path, identity: str, run: int) -> None:
        """Open or create it. `identity` names chain, contracts and trainer."""
        super().__init__(folder / "journal.sqlite", SCHEMA, owner=identity, setting="trainer.state_dir")
        self.run = run

    # What came

    @property
    def place(self) -> int:
        """Return where to go on reading verdicts from."""
        return int(self.value("SELECT value FROM state WHERE name = 'place'") or 0)

    @property
    def seen(self) -> int:
        """Return the last block whose events are here."""
        return int(self.value("SELECT value FROM state WHERE name = 'seen'") or 0)

    def keep_verdicts(self, came: Iterable[tuple[Verdict, int]], place: int) -> None:
        """Keep verdicts, the last of each validator about a root, and how far they were read."""
        with self.transaction():
            for verdict, second in came:
                self.execute(
                    "INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    *(verdict.validator, verdict.node, verdict.index, verdict.root, second),
                    *(verdict.accepted, verdict.position, verdict.model_dump_json()),
                )
            self.execute("INSERT OR REPLACE INTO state VALUES ('place', ?)", place)

    def record(self, batch: EventBatch, links: Mapping[tuple[str, int], ShownLink]) -> None:
        """Record events of the chain. `links`: what the seals show, by validator and hour.

        The same event twice changes nothing.
        """
        if not batch.events and (batch.last, batch.rewound_to) == (self.seen, None):
            return
        oldest, listed = self._oldest, self.last_hour
        with self.transaction():
            if batch.rewound_to is not None:
                for table in ("commitments", "links", "cases", "jailed"):
                    self.execute(f"DELETE FROM {table} WHERE block > ?", batch.rewound_to)
                self.execute("UPDATE cases SET outcome = 'open', ended = NULL WHERE ended > ?", batch.rewound_to)
                undrawn = batch.rewound_to - SAMPLE_BLOCKS
                self.execute("UPDATE commitments SET known = NULL WHERE block > ?", undrawn)
            for event in batch:
                if isinstance(event, WorkCommitted) and (event.hour > listed or event.step >= oldest):
                    self.execute(
                        """INSERT INTO commitments (node, idx, root, step, hour, block) VALUES (?, ?, ?, ?, ?, ?)
                           ON CONFLICT DO NOTHING""",
                        *(event.node, event.index, hex_hash(event.root), event.step, event.hour, event.at.block),
                    )
                elif isinstance(event, HourSealed) and (link := links.get((event.validator, event.hour))) is not None:
                    self.execute(
                        """INSERT INTO links (validator, hour, link, second, block) VALUES (?, ?, ?, ?, ?)
                           ON CONFLICT DO NOTHING""",
                        *(event.validator, event.hour, hex_hash(link.link), link.second, event.at.block),
                    )
                elif isinstance(event, CaseOpened):
                    self.execute(
                        """INSERT INTO cases (number, node, idx, challenger, outcome, block)
                           SELECT ?, node, idx, ?, 'open', ? FROM commitments WHERE node = ? AND idx = ?
                           ON CONFLICT DO NOTHING""",
                        *(event.case_id, event.challenger, event.at.block, event.node, event.index),
                    )
                elif isinstance(event, CaseResolved):
                    self.execute(
                        "UPDATE cases SET outcome = ?, ended = ? WHERE number = ?",
                        *(event.outcome.name.lower(), event.at.block, event.case_id),
                    )
                elif isinstance(event, Convicted):
                    self.execute("INSERT OR IGNORE INTO jailed VALUES (?, ?)", event.node, event.at.block)
            self.execute("INSERT OR REPLACE INTO state VALUES ('seen', ?)", batch.last)

    # What is known of commitments

    def commitment(self, node: str, index: int) -> CommittedWork | None:
        row = self.row("SELECT * FROM commitments WHERE node = ? AND idx = ?", node, index)
        return None if row is None else self._work(row)

    def _work(self, row: sqlite3.Row) -> CommittedWork:
        root = hash_bytes(row["root"])
        return CommittedWork(self.run, row["step"], row["node"], row["idx"], root, row["hour"], row["block"])

    def unknown(self, first: int, last: int) -> list[CommittedWork]:
        """Return the commitments of these hours that have verdicts, and of which it is not known who is called."""
        return [c for c in self._unknown if first <= c.hour <= last]

    def uncalled(self) -> list[CommittedWork]:
        """Return those of them whose drawing block's events are here: a reorg that takes it would be seen."""
        return [c for c in self._unknown if c.block + SAMPLE_BLOCKS <= self.seen]

    @property
    def _unknown(self) -> list[CommittedWork]:
        rows = self.rows(
            """SELECT * FROM commitments AS c WHERE known IS NULL
               AND EXISTS (SELECT 1 FROM verdicts AS v WHERE v.node = c.node AND v.idx = c.idx AND v.root = c.root)"""
        )
        return [self._work(row) for row in rows]

    def know(self, known: CalledWork) -> None:
        """Keep who is called to a commitment, unless a reorg took it meanwhile."""
        c = known.work
        said = [known.order, known.opens, hex_hash(known.drawn_by), known.operator, known.work_class]
        self.execute(
            "UPDATE commitments SET known = ? WHERE node = ? AND idx = ? AND block = ?",
            *(json.dumps(said), c.node, c.index, c.block),
        )

    def known(self, first: int, last: int) -> list[CalledWork]:
        """Return the commitments of these hours of which it is known who is called."""
        rows = self.rows("SELECT * FROM commitments WHERE hour BETWEEN ? AND ? AND known IS NOT NULL", first, last)
        return [self._called(row) for row in rows]

    def known_of(self, node: str, index: int) -> CalledWork | None:
        row = self.row("SELECT * FROM commitments WHERE node = ? AND idx = ? AND known IS NOT NULL", node, index)
        return None if row is None else self._called(row)

    def _called(self, row: sqlite3.Row) -> CalledWork:
        order, opens, drawn_by, operator, work_class = json.loads(row["known"])
        return CalledWork(self._work(row), tuple(order), opens, hash_bytes(drawn_by), operator, work_class)

    def came(self, c: CommittedWork) -> list[tuple[Verdict, int]]:
        """Return the verdicts about a commitment, with the second of each."""
        rows = self.rows(
            "SELECT verdict, came FROM verdicts WHERE node = ? AND idx = ? AND root = ? ORDER BY came, rowid",
            *(c.node, c.index, hex_hash(c.root)),
        )
        return [(Verdict.model_validate_json(row["verdict"]), row["came"]) for row in rows]

    def links(self, hour: int) -> dict[str, ShownLink]:
        """Return the links of an hour that are shown, by validator."""
        rows = self.rows("SELECT * FROM links WHERE hour = ?", hour)
        return {row["validator"]: ShownLink(hash_bytes(row["link"]), row["second"]) for row in rows}

    # What became of them

    def decide(
        self, known: CalledWork, came: Sequence[tuple[Verdict, int]], jailed: Collection[str], terms: Terms
    ) -> Decision:
        """Return what became of a commitment. `came`: the verdicts about it; `jailed`: all nodes that are."""
        c, refuted = known.work, self.refuted(known.work)
        opinions = [
            Opinion.of(one, second, trusted=one.validator not in jailed, refuted=one.validator in refuted)
            for one, second in came
        ]
        rows = self.rows("SELECT challenger, outcome, number FROM cases WHERE node = ? AND idx = ?", c.node, c.index)
        cases = [CaseState(*row) for row in rows]
        about = {"jailed": c.node in jailed, "accepts_required": terms.accepts_required, "call": known.call(terms)}
        return decide(opinions, cases, **about)

    def since(self, oldest: int) -> list[CalledWork]:
        """Return the commitments of `oldest` and later steps of which it is known who is called, the oldest first."""
        query = "SELECT * FROM commitments WHERE step >= ? AND known IS NOT NULL ORDER BY step, block, node, idx"
        return [self._called(row) for row in self.rows(query, oldest)]

    @property
    def jailed(self) -> set[str]:
        """Return the nodes that were convicted."""
        return {row["node"] for row in self.rows("SELECT node FROM jailed")}

    def left_out(self) -> list[LeftOut]:
        """Return the files that will never be used, in the order in which they were left out."""
        query = "SELECT step, file_hash, reason FROM left_out ORDER BY rowid"
        return [LeftOut.model_validate(dict(row)) for row in self.rows(query)]

    def leave_out(self, one: LeftOut) -> None:
        query = "INSERT OR IGNORE INTO left_out (file_hash, step, reason) VALUES (?, ?, ?)"
        self.execute(query, one.file_hash, one.step, one.reason)

    def keep_from(self, oldest: int) -> None:
        """Keep work of this step and later ones until it is too old, and forget what was left out of earlier ones."""
        with self.transaction():
            self.execute("INSERT OR REPLACE INTO state VALUES ('oldest', ?)", oldest)
            self.execute("DELETE FROM left_out WHERE step < ?", oldest)

    @property
    def _oldest(self) -> int:
        """Return the first step whose work can still be trained on."""
        return int(self.value("SELECT value FROM state WHERE name = 'oldest'") or NO_STEP)

    # Checks

    def rejections(self, seen: int) -> list[tuple[Verdict, CommittedWork]]:
        """Return rejections of commitments without a case that are not looked into yet, and came up to a second."""
        rows = self.rows(
            f"""SELECT c.*, v.verdict FROM verdicts AS v JOIN commitments AS c USING (node, idx, root)
               WHERE NOT {_CASED} AND NOT v.accepted AND v.came <= ? AND c.hour > ?
               AND NOT EXISTS (SELECT 1 FROM checks AS k WHERE k.kind = 'rejection' AND k.validator = v.validator
                               AND k.node = v.node AND k.idx = v.idx AND k.root = v.root)""",
            *(seen, self.last_hour),
        )
        return [(Verdict.model_validate_json(row["verdict"]), self._work(row)) for row in rows]

    def refuted(self, c: CommittedWork) -> set[str]:
        """Return the validators whose rejections of a commitment hold nothing back; none where a court decides."""
        rows = self.rows(
            f"""SELECT validator FROM checks JOIN commitments AS c USING (node, idx, root)
               WHERE node = ? AND idx = ? AND root = ? AND outcome IN ('refuted', 'unnamed') AND NOT {_CASED}""",
            *(c.node, c.index, hex_hash(c.root)),
        )
        return {row["validator"] for row in rows}

    def fresh_refuted(self, oldest_step: int) -> list[RowCheck]:
        """Return the rejections that hold nothing back of work that can still be trained on."""
        rows = self.rows(
            f"""SELECT k.* FROM checks AS k JOIN commitments AS c USING (node, idx, root)
               WHERE k.outcome IN ('refuted', 'unnamed') AND k.step >= ? AND NOT {_CASED} ORDER BY k.rowid""",
            oldest_step,
        )
        return [_checked(row) for row in rows]

    def unpicked(self) -> list[tuple[str, int]]:
        """Return validators and hours whose link is shown, and of which no rows were chosen yet."""
        rows = self.rows("SELECT validator, hour FROM links WHERE NOT picked ORDER BY hour, validator")
        return [(row["validator"], row["hour"]) for row in rows]

    def pick(self, validator: str, hour: int, checks: Iterable[DueCheck]) -> None:
        """Keep which rows of a validator's hour are checked."""
        with self.transaction():
            self.execute("UPDATE links SET picked = 1 WHERE validator = ? AND hour = ?", validator, hour)
            self.add(checks)

    def add(self, checks: Iterable[DueCheck]) -> None:
        for one in checks:
            self.execute(
                """INSERT INTO checks (validator, node, idx, root, position, kind, hour, step, rank)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING""",
                *(*one.key, one.hour, one.step, one.rank),
            )

    def is_chosen(self, check: DueCheck) -> bool:
        """Return whether a check is due, or was made."""
        return bool(self.value(f"SELECT 1 FROM checks WHERE {_ABOUT}", *check.key))

    def next_checks(self) -> list[DueCheck]:
        """Return the checks to do next: of one kind, about one look."""
        rows = self.rows(
            """SELECT * FROM checks WHERE outcome IS NULL
               AND (validator, node, idx, root, kind) = (SELECT validator, node, idx, root, kind FROM checks
                   WHERE outcome IS NULL ORDER BY rank, hour, rowid LIMIT 1) ORDER BY position"""
        )
        return [
            DueCheck(*(row[name] for name in ("validator", "node", "idx", "root", "position", "hour", "step", "kind")))
            for row in rows
        ]

    def put_off(self, checks: Iterable[DueCheck]) -> None:
        """Do others first: these cannot be done now."""
        for one in checks:
            self.execute(f"UPDATE checks SET rank = rank + 1 WHERE {_ABOUT}", *one.key)

    def conclude(self, check: DueCheck, outcome: str, more: Iterable[DueCheck] = ()) -> None:
        """Keep what came of a check, and the rows that are checked for it."""
        with self.transaction():
            self.execute(f"UPDATE checks SET outcome = ? WHERE {_ABOUT}", outcome, *check.key)
            self.add(more)

    def is_checking(self, last: int) -> bool:
        """Return whether looks up to an hour are still to be checked."""
        return bool(self.value("SELECT 1 FROM checks WHERE outcome IS NULL AND hour <= ?", last))

    def unlisted(self, last: int) -> list[RowCheck]:
        """Return what came of checks that no list has yet: of looks up to an hour, and of all rejections."""
        rows = self.rows(
            f"""SELECT k.* FROM checks AS k LEFT JOIN commitments AS c USING (node, idx, root)
               WHERE k.listed IS NULL AND ((k.kind = 'numbers' AND k.outcome IS NOT NULL AND k.hour <= ?)
               OR (k.outcome IN ('refuted', 'unnamed') AND NOT {_CASED})) ORDER BY k.rowid""",
            last,
        )
        return [_checked(row) for row in rows]

    # Lists

    @property
    def last_hour(self) -> int:
        """Return the hour of the latest list; 0 before any."""
        return self.value("SELECT MAX(hour) FROM lists") or 0

    @property
    def first_open(self) -> int | None:
        """Return the first hour with commitments that is in no list yet."""
        return self.value("SELECT MIN(hour) FROM commitments WHERE hour > ?", self.last_hour)

    def tally(self) -> Tally:
        """Return what the lists so far say."""
        said = self.value("SELECT tally FROM lists ORDER BY hour DESC LIMIT 1")
        records, void = json.loads(said) if said else ({}, [])
        return Tally(
            {who: Record(**one) for who, one in records.items()},
            {(who, node, index): why for who, node, index, why in void},
        )

    def keep_list(self, hour: int, shown: SignedText, tally: Tally, checks: Sequence[RowCheck]) -> None:
        """Keep an hour's list, and delete what is no longer needed of it and the hours before."""
        said = {who: vars(one) for who, one in tally.records.items()}, [[*key, why] for key, why in tally.void.items()]
        with self.transaction():
            self.execute(
                "INSERT INTO lists (hour, shown, tally) VALUES (?, ?, ?)",
                *(hour, shown.model_dump_json(), json.dumps(said)),
            )
            self.execute("DELETE FROM lists WHERE hour < ? AND sent", hour - KEPT_HOURS)
            for one in checks:
                kind = "rejection" if one.outcome == "refuted" or one.position is None else "numbers"
                position = NO_ROW if one.position is None else one.position
                key = one.validator, one.node, one.index, one.root, position, kind
                self.execute(f"UPDATE checks SET listed = ? WHERE {_ABOUT}", hour, *key)
            about = "SELECT 1 FROM commitments AS c WHERE c.node = verdicts.node AND c.idx = verdicts.idx"
            oldest = self._oldest
            self.execute(f"DELETE FROM verdicts WHERE EXISTS ({about} AND hour <= ? AND step < ?)", hour, oldest)
            self.execute("DELETE FROM commitments WHERE hour <= ? AND step < ?", hour, oldest)
            self.execute(f"DELETE FROM verdicts WHERE came < ? AND NOT EXISTS ({about})", hour * HOUR_SECONDS)
            self.execute("DELETE FROM links WHERE hour <= ?", hour)
            self.execute("DELETE FROM checks WHERE hour <= ? AND (listed IS NULL OR step < ?)", hour, oldest)
            self.execute(f"DELETE FROM cases AS s WHERE NOT EXISTS (SELECT 1 FROM commitments AS c WHERE {_SAME})")

    def adopt(self, shown: SignedText, found: LookList) -> None:
        """Go on from a list that another journal of this trainer made, which was lost."""
        self.keep_list(found.hour, shown, Tally(records_of(found)), ())
        self.sent(found.hour)

    def unsent(self) -> list[tuple[int, SignedText]]:
        """Return the lists that the orchestrator does not have yet, each with its hour, in order."""
        rows = self.rows("SELECT hour, shown FROM lists WHERE NOT sent ORDER BY hour")
        return [(row["hour"], SignedText.model_validate_json(row["shown"])) for row in rows]

    def sent(self, hour: int) -> None:
        self.execute("UPDATE lists SET sent = 1 WHERE hour = ?", hour)


def _checked(row: sqlite3.Row) -> RowCheck:
    about = {name: row[name] for name in ("validator", "node", "root")}
    if row["position"] == NO_ROW:
        return RowCheck(index=row["idx"], position=None, outcome="cannot", **about)
    return RowCheck(index=row["idx"], position=row["position"], outcome=row["outcome"], **about)
