"""Write the chain's events into the database: members, checkpoints, commitments, cases, payments; and undo them.

Applying an event is idempotent, so the cursor may deliver an event twice when in doubt. Statuses of commitments follow
from the rows of all other tables, so after any change those it concerns are decided again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Table, delete, func, select, update

from muster.contracts.codec import Event, Place
from muster.contracts.court import (
    AbsenceReported,
    CaseOpened,
    CaseResolved,
    Outcome,
    VoteCommitted,
    VoteRevealed,
)
from muster.contracts.refutations import Refuted
from muster.contracts.registry import Convicted, Fined, Registered, Retired, Role, Withdrawn
from muster.contracts.runs import CheckpointPublished, Claimed, HourSealed, RunClosed, Voided, WorkCommitted
from muster.ledger import tallies, undo
from muster.ledger.attribution import Attribution
from muster.ledger.events import MAX_EVENTS, record_events
from muster.ledger.queries import (
    IN_BLOCKS,
    JUDGED_BY,
    OF_NODE,
    ONE,
    CommitmentSelection,
    Queries,
    member_of,
)
from muster.ledger.run_facts import latest_step
from muster.ledger.statements import ANY_OF, insert_once, row_of, rows_of_any, upsert
from muster.ledger.tables import (
    COURT,
    DEED,
    FROM_CHAIN,
    ORCHESTRATOR,
    calls,
    cases,
    checkpoints,
    commitments,
    counts,
    events,
    meta,
    nodes,
    places,
    proofs,
    votes,
)
from muster.protocol.kinds import reason_of, reason_of_flaw

INTERESTING: Final = (
    Registered,
    Retired,
    Withdrawn,
    Convicted,
    Fined,
    CheckpointPublished,
    WorkCommitted,
    Claimed,
    Voided,
    HourSealed,
    RunClosed,
    CaseOpened,
    VoteCommitted,
    VoteRevealed,
    CaseResolved,
    AbsenceReported,
    Refuted,
)
"""Events that `apply` handles."""

TIMED: Final = (Registered, Convicted, Fined, Claimed, Voided)
"""Those of them that are written down with the time of their block."""

MAX_TIMED: Final = 256
"""Newest events of a piece of the chain that have the time of their block; earlier ones have the earliest of these."""

_MAX_POSITION: Final = (1 << 63) - 1
"""What a column can hold. A leaf's position is what its worker wrote, up to 256 bits."""

_SOURCE: Final = "chain:"
"""Sources of recorded events that come from the chain begin with this."""


class ChainProjection:
    """Writes one run's events. Every method works in the caller's transaction."""

    def __init__(self, queries: Queries, attribution: Attribution | None = None, *, tells: bool = False) -> None:
        """`tells`: whether what happened is told to people, as an explorer does."""
        self._queries = queries
        self._tells = tells
        self._attribution = attribution
        self._run = queries.run

    def forget(self, connection: Connection) -> None:
        """Delete everything that came from the chain: it is read again."""
        oldest = connection.execute(select(func.min(places.c.block))).scalar()
        connection.execute(delete(calls).where(calls.c.block >= (oldest or 0)))
        for table in FROM_CHAIN:
            if self._tells or table in ORCHESTRATOR:
                connection.execute(delete(table))
        if self._tells:
            connection.execute(delete(events).where(events.c.source.startswith(_SOURCE)))
        connection.execute(delete(counts).where(counts.c.kind != DEED))
        connection.execute(delete(meta).where(meta.c.key == "closed"))

    def roll_back(self, connection: Connection, block: int) -> None:
        """Undo what events after a block changed: at most what `apply` was told to remember."""
        about = cases.c.id.in_([key["id"] for key in undo.changed_after(connection, block, cases)])
        accused = list(connection.execute(select(*cases.c["node", "index"]).where(about)))
        members = [key["address"] for key in undo.changed_after(connection, block, nodes)]
        drawn = calls.c.block > block
        accused += connection.execute(select(*calls.c["node", "index"]).where(drawn)).all()
        before = _statuses(connection, members)
        tallies.remove_commitments(connection, block)
        connection.execute(delete(calls).where(drawn))
        if self._tells:
            tallies.remove_payments(connection, block)
            connection.execute(delete(proofs).where(proofs.c.block > block))
            _remove_events(connection, block)
        undo.restore(connection, block)
        changed = before ^ _statuses(connection, members)
        again: list[Again] = [(ONE, {"node": row.node, "index": row.index}) for row in accused]
        again += [redecided for node in {node for node, _ in changed} for redecided in _work_of(node)]
        _decide(connection, self._queries, again)

    def timed_blocks(self, found: Iterable[Event]) -> set[int]:
        """Return the blocks whose time `apply` has to know for these events."""
        found = list(found)
        needed = {event.at.block for event in found if isinstance(event, TIMED) and event.run == self._run}
        return needed | ({event.at.block for event in found[-MAX_TIMED:]} if self._tells else set())

    def apply(
        self, connection: Connection, found: Iterable[Event], times: Mapping[int, int], remember_from: int = 0
    ) -> None:
        """Write down what events changed; nothing for those of other runs or of no interest here.

        Commitments come after the rest, all at once: their statuses follow from what is known in the end, in any order.
        times: the chain's seconds of the blocks that `timed_blocks` names. remember_from: the first block that
        `roll_back` may have to undo.
        """
        piece = _Piece(connection, times, remember_from, tells=self._tells)
        work = list[WorkCommitted]()
        for event in found:
            if getattr(event, "run", self._run) != self._run:
                continue
            if isinstance(event, WorkCommitted):
                work.append(event)
            else:
                piece.apply(event)
        if work:
            self._commit(piece, work)
        _decide(connection, self._queries, piece.again)
        if piece.recorded:
            newest = sorted(piece.recorded, key=lambda one: (one[0].block, one[0].log_index))
            earliest = min(times.values(), default=0)
            recorded = [(kind, data, _source(at), times.get(at.block, earliest)) for at, kind, data in newest]
            record_events(connection, recorded)

    def _commit(self, piece: _Piece, work: Sequence[WorkCommitted]) -> None:
        """Write down commitments."""
        rows = [row_of(commitments, event, block=event.at.block) for event in work]
        new = tallies.put_commitments(piece.connection, rows)
        if self._attribution is not None:
            self._attribution.attribute(piece.connection, new)
        numbers = [event.at.block for event in work]
        piece.again.insert(0, (IN_BLOCKS, {"first": min(numbers), "last": max(numbers)}))
        for event in work[-MAX_EVENTS:]:
            piece.record("committed", {"node": event.node, "index": event.index, "step": event.step}, event.at)


Again = tuple[CommitmentSelection, dict[str, Any]]
"""Commitments whose status is to be decided again: which, and the values of its parameters."""


class _Piece:
    """Writes the events of some blocks, except commitments."""

    def __init__(self, connection: Connection, times: Mapping[int, int], remember_from: int, *, tells: bool) -> None:
        self.connection = connection
        self._tells = tells
        self._times = times
        self._remember_from = remember_from
        self.recorded: list[tuple[Place, str, dict[str, Any]]] = []
        """Events for live views."""
        self.again: list[Again] = []

    def apply(self, event: Event) -> None:
        """Write down what an event changed."""
        match event:
            case Registered():
                self._registered(event)
            case Retired() | Withdrawn():
                self._left(event)
            case Convicted():
                self._convicted(event)
            case CheckpointPublished():
                self._published(event)
            case CaseOpened():
                self._case_opened(event)
            case CaseResolved():
                self._case_resolved(event)
            case VoteCommitted() | VoteRevealed() | AbsenceReported():
                if self._knows_case(event.case_id):
                    self._note_in_case(event)
            case Refuted() if self._tells:
                self._refuted(event)
            case Claimed():
                self._pay(event.at, event.node, "claim", event.paid)
                self._settle(event.at, event.node, event.through)
                self.record("claimed", {"node": event.node, "amount": event.paid}, event.at)
            case Fined():
                self._pay(event.at, event.node, "fine", event.amount)
                self.record("fined", {"node": event.node, "amount": event.amount}, event.at)
            case Voided():
                self._pay(event.at, event.node, "void", event.amount)
                self._settle(event.at, event.node, event.through)
                self.record("voided", {"node": event.node, "amount": event.amount}, event.at)
            case HourSealed():
                row = {"kind": "seal", "subject": event.validator, "number": event.hour, "status": "", "reason": ""}
                if self._insert(event.at, counts, row | {"count": 1}):
                    self._tally(event.at, event.validator, "seals")
                self.record("sealed", {"node": event.validator, "hour": event.hour}, event.at)
            case RunClosed():
                self._upsert(event.at, meta, {"key": "closed", "value": str(event.at.block)})
                self.record("closed", {}, event.at)

    def _registered(self, event: Registered) -> None:
        latest = latest_step(self.connection)
        first_step = 0 if latest is None else latest + 2  # of a worker that joins now, as joinedStep on chain
        row = row_of(
            nodes,
            event,
            address=event.node,
            status="active",
            block=event.at.block,
            first_step=first_step,
            joined=self._times[event.at.block],
            transaction=event.at.transaction,
        )
        # A key registers once: a second delivery must not bring a jailed node back.
        self._insert(event.at, nodes, row)
        if event.role is Role.VALIDATOR:  # verdicts may be here already, from a rebuild or before a reorg
            self.again.append((JUDGED_BY, {"validator": event.node}))
        data = {"node": event.node, "operator": event.operator, "role": row["role"]}
        self.record("joined", data, event.at)

    def _left(self, event: Retired | Withdrawn) -> None:
        kind = type(event).__name__.lower()
        if isinstance(event, Withdrawn):
            self._change(event.at, event.node, withdrawn=True)
        if self._change(event.at, event.node, nodes.c.status != "jailed", status=kind):
            self.record(kind, {"node": event.node}, event.at)

    def _convicted(self, event: Convicted) -> None:
        if not self._change(event.at, event.node, nodes.c.status != "jailed", status="jailed"):
            return
        self._pay(event.at, event.node, "slash", event.slashed)
        data = {"node": event.node, "slashed": event.slashed, "bounty": event.bounty, "to": event.beneficiary}
        self.record("convicted", data, event.at)
        self.again += _work_of(event.node)

    def _published(self, event: CheckpointPublished) -> None:
        row = row_of(checkpoints, event, block=event.at.block, transaction=event.at.transaction)
        self._upsert(event.at, checkpoints, row)
        self.record("checkpoint", {"step": event.step, "root": row["manifest_root"]}, event.at)

    def _case_opened(self, event: CaseOpened) -> None:
        start = {"outcome": "open", "reveals": 0, "guilty_votes": 0, "opened_in": event.at.transaction}
        row = row_of(cases, event, id=event.case_id, evidence=event.evidence_hash, kind=reason_of(event.kind), **start)
        if self._insert(event.at, cases, row):
            self._tally(event.at, event.challenger, "open")
        self.again.append((ONE, {"node": event.node, "index": event.index}))
        data = {key: row[key] for key in ("node", "index", "kind", "challenger")}
        self.record("case opened", {"case": event.case_id, **data}, event.at)

    def _case_resolved(self, event: CaseResolved) -> None:
        if not self._knows_case(event.case_id):
            return
        values = row_of(cases, event, resolved_in=event.at.transaction)
        self._remember(event.at, cases, {"id": event.case_id})
        about = select(cases.c.node, cases.c.index, cases.c.challenger, cases.c.outcome)
        node, index, challenger, before = self.connection.execute(about.where(cases.c.id == event.case_id)).one()
        self.connection.execute(update(cases).where(cases.c.id == event.case_id).values(values))
        self._tally(event.at, challenger, before, -1)
        self._tally(event.at, challenger, values["outcome"])
        self.again.append((ONE, {"node": node, "index": index}))
        if event.outcome is Outcome.CURED:  # its key commits no more, and what it may still do is retire
            self._change(event.at, node, nodes.c.status == "active", status="retired")
        votes = {"guilty": event.guilty_votes, "reveals": event.reveals, "jury": event.jury}
        data = {"case": event.case_id, "node": node, "index": index, "outcome": values["outcome"], **votes}
        self.record("case ended", data, event.at)

    def _refuted(self, event: Refuted) -> None:
        if member_of(self.connection, event.node) is None:
            return  # of another run
        place = {"block": event.at.block, "log_index": event.at.log_index, "transaction": event.at.transaction}
        kind, position = reason_of_flaw(event.flaw), min(event.position, _MAX_POSITION)
        row = row_of(proofs, event, **place, kind=kind, position=position)
        if insert_once(self.connection, proofs, row):
            self._tally(event.at, event.prover, "proofs")
        data = {key: row[key] for key in ("node", "index", "prover", "kind", "flaw")}
        self.record("refuted", data, event.at)

    def _knows_case(self, case_id: int) -> bool:
        """Return whether the case is one of this run: votes and outcomes do not name their run."""
        return self.connection.execute(select(cases.c.id).where(cases.c.id == case_id)).scalar() is not None

    def _note_in_case(self, event: VoteCommitted | VoteRevealed | AbsenceReported) -> None:
        """Write down what was done in a case of this run."""
        transaction = "0x" + event.at.transaction.hex()
        match event:
            case VoteCommitted():
                self._note_vote(event, committed_in=transaction)
            case VoteRevealed():
                self._note_vote(event, guilty=event.guilty, revealed_in=transaction)
                data = {"case": event.case_id, "judge": event.judge, "guilty": event.guilty}
                self.record("voted", data, event.at)
            case AbsenceReported():
                self._note_vote(event, absent=True)
                data = {"case": event.case_id, "judge": event.judge, "expelled": event.expelled}
                self.record("absent", data, event.at)

    def _note_vote(self, event: VoteCommitted | VoteRevealed | AbsenceReported, **what: bool | str) -> None:
        """Add what a judge did to what it did before."""
        key = {"case_id": event.case_id, "judge": event.judge}
        before = self.connection.execute(undo.by_key(votes), key).one_or_none()
        self._upsert(event.at, votes, {**key, **what})
        if "guilty" in what and (before is None or before.guilty is None):
            self._tally(event.at, event.judge, "votes")
        if "absent" in what and (before is None or not before.absent):
            self._tally(event.at, event.judge, "absences")

    def _pay(self, at: Place, node: str, kind: str, amount: int) -> None:
        if not self._tells:
            return
        row = {"block": at.block, "log_index": at.log_index, "node": node, "kind": kind, "amount": str(amount)}
        transaction = "0x" + at.transaction.hex()
        tallies.pay(self.connection, {**row, "time": self._times[at.block], "transaction": transaction})

    def _settle(self, at: Place, node: str, through: int) -> None:
        """Note that commitments up to this one are settled; an event that is delivered again takes nothing back."""
        self._change(at, node, nodes.c.settled <= through, settled=through + 1)

    # Writing, so that it can be undone

    def _remember(self, at: Place, table: Table, key: Mapping[str, Any]) -> None:
        if at.block >= self._remember_from:
            undo.remember(self.connection, at.block, table, key)

    def _insert(self, at: Place, table: Table, row: Mapping[str, Any]) -> bool:
        self._remember(at, table, _key_of(table, row))
        return insert_once(self.connection, table, row)

    def _upsert(self, at: Place, table: Table, row: Mapping[str, Any]) -> None:
        self._remember(at, table, _key_of(table, row))
        upsert(self.connection, table, row)

    def _tally(self, at: Place, validator: str, kind: str, number: int = 1) -> None:
        """Add to what a validator did in court."""
        key = {"kind": COURT, "subject": validator, "number": 0, "status": kind, "reason": ""}
        before = self.connection.execute(undo.by_key(counts), key).one_or_none()
        self._upsert(at, counts, {**key, "count": number + (before[-1] if before else 0)})

    def _change(self, at: Place, node: str, *where: Any, **values: Any) -> bool:
        """Change a node where a condition holds; return whether that is so, and there is such a node."""
        self._remember(at, nodes, {"address": node})
        changed = update(nodes).where(nodes.c.address == node, *where).values(values)
        return self.connection.execute(changed).rowcount > 0

    def record(self, kind: str, data: dict[str, Any], at: Place) -> None:
        if self._tells:
            self.recorded.append((at, kind, data))


def _key_of(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    return {column.name: row[column.name] for column in table.primary_key.columns}


def _work_of(node: str) -> list[Again]:
    """Return the commitments whose status follows from what a node is: its work, and what it has judged."""
    return [(OF_NODE, {"node": node}), (JUDGED_BY, {"validator": node})]


def _decide(connection: Connection, queries: Queries, again: Iterable[Again]) -> None:
    """Decide statuses again, each selection once."""
    for which, given in {(id(which), *given.values()): (which, given) for which, given in again}.values():
        queries.update_statuses(connection, which, **given)


def _statuses(connection: Connection, members: Sequence[str]) -> set[tuple[str, str]]:
    query = select(*nodes.c["address", "status"]).where(nodes.c.address.in_(ANY_OF))
    return {(address, status) for address, status in rows_of_any(connection, query, members)}


def _source(at: Place) -> str:
    return f"{_SOURCE}{at.block}:{at.log_index}"


def _remove_events(connection: Connection, block: int) -> None:
    """Delete recorded events of later blocks."""
    rows = connection.execute(select(*events.c["id", "source"]).where(events.c.source.startswith(_SOURCE)))
    later = [row.id for row in rows if int(row.source.split(":")[1]) > block]
    connection.execute(delete(events).where(events.c.id.in_(later)))
