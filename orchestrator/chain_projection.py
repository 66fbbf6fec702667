"""Write the chain's events into the database: members, checkpoints, commitments, cases, payments.

Applying an event is idempotent, so the cursor may deliver an event twice when in doubt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sqlalchemy import Connection, delete, select, update

from muster.contracts.codec import Event, Place
from muster.contracts.court import (
    AbsenceReported,
    CaseOpened,
    CaseResolved,
    GradeAccused,
    MasterRevealed,
    Outcome,
    Refuted,
    VoteCommitted,
    VoteRevealed,
)
from muster.contracts.registry import Convicted, Fined, Registered, Retired, StepDoubted, Withdrawn
from muster.contracts.runs import CheckpointPublished, Claimed, HourSealed, RunClosed, Voided, WorkCommitted
from orchestrator import tallies
from orchestrator.attribution import Attribution
from orchestrator.database import insert_once, row_of, upsert
from orchestrator.events import record_event
from orchestrator.queries import Queries, member_of
from orchestrator.run_facts import latest_step
from orchestrator.tables import (
    FROM_CHAIN,
    cases,
    checkpoints,
    commitments,
    doubts,
    events,
    meta,
    nodes,
    proofs,
    seals,
    verdicts,
    votes,
)

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
    StepDoubted,
    RunClosed,
    CaseOpened,
    GradeAccused,
    VoteCommitted,
    VoteRevealed,
    CaseResolved,
    AbsenceReported,
    Refuted,
    MasterRevealed,
)
"""Events that `apply` handles."""

TIMED: Final = (Registered, Convicted, Fined, Claimed, Voided)
"""Those of them that are written down with the time of their block."""

_MAX_POSITION: Final = (1 << 63) - 1
"""What a column can hold. A leaf's position is what its worker wrote, up to 256 bits."""

_SOURCE: Final = "chain:"
"""Sources of recorded events that come from the chain begin with this."""


class ChainProjection:
    """Writes one run's events. Every method works in the caller's transaction."""

    def __init__(self, queries: Queries, attribution: Attribution | None = None) -> None:
        self._queries = queries
        self._attribution = attribution
        self._run = queries.run

    def forget(self, connection: Connection) -> None:
        """Delete what came from the chain, after a reorg: it is read again."""
        for table in FROM_CHAIN:
            connection.execute(delete(table))
        connection.execute(delete(events).where(events.c.source.startswith(_SOURCE)))
        connection.execute(delete(meta).where(meta.c.key == "closed"))

    def timed_blocks(self, found: Iterable[Event]) -> set[int]:
        """Return the blocks whose time `apply` has to know for these events."""
        return {event.at.block for event in found if isinstance(event, TIMED) and event.run == self._run}

    def apply(self, connection: Connection, event: Event, times: Mapping[int, int]) -> None:
        """Write down what an event changed; nothing for events of other runs or of no interest here.

        times: the chain's seconds of the blocks that `timed_blocks` names.
        """
        if getattr(event, "run", self._run) != self._run:
            return
        match event:
            case Registered():
                self._registered(connection, event, times[event.at.block])
            case Retired() | Withdrawn():
                self._left(connection, event)
            case Convicted():
                self._convicted(connection, event, times[event.at.block])
            case CheckpointPublished():
                self._published(connection, event)
            case WorkCommitted():
                self._committed(connection, event)
            case CaseOpened():
                self._case_opened(connection, event)
            case CaseResolved():
                self._case_resolved(connection, event)
            case GradeAccused() | VoteCommitted() | VoteRevealed() | AbsenceReported():
                if self._knows_case(connection, event.case_id):
                    _note_in_case(connection, event)
            case Refuted():
                self._refuted(connection, event)
            case MasterRevealed():
                data = {"epoch": event.epoch, "master": "0x" + event.master.hex()}
                _record_event(connection, "master revealed", data, event.at)
            case Claimed():
                _pay(connection, event.at, times, event.node, "claim", event.paid)
                _settle(connection, event.node, event.through)
                _record_event(connection, "claimed", {"node": event.node, "amount": event.paid}, event.at)
            case Fined():
                _pay(connection, event.at, times, event.node, "fine", event.amount)
                _record_event(connection, "fined", {"node": event.node, "amount": event.amount}, event.at)
            case Voided():
                _pay(connection, event.at, times, event.node, "void", event.amount)
                _settle(connection, event.node, event.through)
                _record_event(connection, "voided", {"node": event.node, "amount": event.amount}, event.at)
            case HourSealed():
                insert_once(connection, seals, row_of(seals, event))
                _record_event(connection, "sealed", {"node": event.validator, "hour": event.hour}, event.at)
            case StepDoubted():
                insert_once(connection, doubts, row_of(doubts, event))
                _record_event(connection, "doubted", {"node": event.validator, "step": event.step}, event.at)
            case RunClosed():
                upsert(connection, meta, {"key": "closed", "value": str(event.at.block)})
                _record_event(connection, "closed", {}, event.at)

    def _registered(self, connection: Connection, event: Registered, time: int) -> None:
        latest = latest_step(connection)
        first_step = 0 if latest is None else latest + 2  # of a worker that joins now, as joinedStep on chain
        row = row_of(
            nodes,
            event,
            address=event.node,
            status="active",
            block=event.at.block,
            first_step=first_step,
            joined=time,
            transaction=event.at.transaction,
        )
        # A key registers once: a second delivery must not bring a jailed node back.
        insert_once(connection, nodes, row)
        data = {"node": event.node, "operator": event.operator, "role": row["role"]}
        _record_event(connection, "joined", data, event.at)

    def _left(self, connection: Connection, event: Retired | Withdrawn) -> None:
        if isinstance(event, Withdrawn):
            connection.execute(update(nodes).where(nodes.c.address == event.node).values(withdrawn=True))
        if _change_status(connection, event.node, type(event).__name__.lower()):
            _record_event(connection, type(event).__name__.lower(), {"node": event.node}, event.at)

    def _convicted(self, connection: Connection, event: Convicted, time: int) -> None:
        if not _change_status(connection, event.node, "jailed"):
            return
        _pay(connection, event.at, {event.at.block: time}, event.node, "slash", event.slashed)
        data = {"node": event.node, "slashed": event.slashed, "bounty": event.bounty, "to": event.beneficiary}
        _record_event(connection, "convicted", data, event.at)
        own = select(commitments.c.node, commitments.c.index).where(commitments.c.node == event.node)
        judged = select(verdicts.c.node, verdicts.c.index).where(verdicts.c.validator == event.node)
        for node, index in connection.execute(own.union(judged)).all():
            self._queries.update_status(connection, node, index)

    def _published(self, connection: Connection, event: CheckpointPublished) -> None:
        row = row_of(checkpoints, event, block=event.at.block, transaction=event.at.transaction)
        upsert(connection, checkpoints, row)
        _record_event(connection, "checkpoint", {"step": event.step, "root": row["manifest_root"]}, event.at)

    def _committed(self, connection: Connection, event: WorkCommitted) -> None:
        tallies.put_commitment(connection, row_of(commitments, event, block=event.at.block))
        self._queries.update_status(connection, event.node, event.index)
        if self._attribution is not None:
            self._attribution.attribute(connection, event.node, event.index, event.step)
        data = {"node": event.node, "index": event.index, "step": event.step}
        _record_event(connection, "committed", data, event.at)

    def _case_opened(self, connection: Connection, event: CaseOpened) -> None:
        start = {"outcome": "open", "reveals": 0, "guilty_votes": 0, "opened_in": event.at.transaction}
        row = row_of(cases, event, id=event.case_id, evidence=event.evidence_hash, **start)
        insert_once(connection, cases, row)
        self._queries.update_status(connection, event.node, event.index)
        data = {key: row[key] for key in ("node", "index", "kind", "challenger")}
        _record_event(connection, "case opened", {"case": event.case_id, **data}, event.at)

    def _case_resolved(self, connection: Connection, event: CaseResolved) -> None:
        if not self._knows_case(connection, event.case_id):
            return
        values = row_of(cases, event, resolved_in=event.at.transaction)
        connection.execute(update(cases).where(cases.c.id == event.case_id).values(values))
        about = select(cases.c.node, cases.c.index).where(cases.c.id == event.case_id)
        node, index = connection.execute(about).one()
        self._queries.update_status(connection, node, index)
        if event.outcome is Outcome.CURED:  # its key commits no more, and what it may still do is retire
            late = update(nodes).where(nodes.c.address == node, nodes.c.status == "active")
            connection.execute(late.values(status="retired"))
        votes = {"guilty": event.guilty_votes, "reveals": event.reveals, "jury": event.jury}
        data = {"case": event.case_id, "node": node, "index": index, "outcome": values["outcome"], **votes}
        _record_event(connection, "case ended", data, event.at)

    def _refuted(self, connection: Connection, event: Refuted) -> None:
        if member_of(connection, event.node) is None:
            return  # of another run
        place = {"block": event.at.block, "log_index": event.at.log_index, "transaction": event.at.transaction}
        row = row_of(proofs, event, **place, position=min(event.position, _MAX_POSITION))
        insert_once(connection, proofs, row)
        data = {key: row[key] for key in ("node", "index", "prover", "kind", "flaw")}
        _record_event(connection, "refuted", data, event.at)

    def _knows_case(self, connection: Connection, case_id: int) -> bool:
        """Return whether the case is one of this run: votes and outcomes do not name their run."""
        return connection.execute(select(cases.c.id).where(cases.c.id == case_id)).scalar() is not None


def _change_status(connection: Connection, node: str, status: str) -> bool:
    """Change the status of a node; return whether there is one, and it was not convicted before."""
    changed = update(nodes).where(nodes.c.address == node, nodes.c.status != "jailed").values(status=status)
    return connection.execute(changed).rowcount > 0


def _note_in_case(connection: Connection, event: GradeAccused | VoteCommitted | VoteRevealed | AbsenceReported) -> None:
    """Write down what was done in a case of this run."""
    transaction = "0x" + event.at.transaction.hex()
    match event:
        case GradeAccused():
            data = {"case": event.case_id, "validator": event.validator, "node": event.node}
            _record_event(connection, "grade accused", data, event.at)
        case VoteCommitted():
            _note_vote(connection, event.case_id, event.judge, committed_in=transaction)
        case VoteRevealed():
            _note_vote(connection, event.case_id, event.judge, guilty=event.guilty, revealed_in=transaction)
            data = {"case": event.case_id, "judge": event.judge, "guilty": event.guilty}
            _record_event(connection, "voted", data, event.at)
        case AbsenceReported():
            _note_vote(connection, event.case_id, event.judge, absent=True)
            data = {"case": event.case_id, "judge": event.judge, "expelled": event.expelled}
            _record_event(connection, "absent", data, event.at)


def _note_vote(connection: Connection, case_id: int, judge: str, **what: bool | str) -> None:
    """Add what a judge did to what it did before."""
    upsert(connection, votes, {"case_id": case_id, "judge": judge, **what})


def _pay(connection: Connection, at: Place, times: Mapping[int, int], node: str, kind: str, amount: int) -> None:
    row = {"block": at.block, "log_index": at.log_index, "node": node, "kind": kind, "amount": str(amount)}
    transaction = "0x" + at.transaction.hex()
    tallies.pay(connection, {**row, "time": times[at.block], "transaction": transaction})


def _settle(connection: Connection, node: str, through: int) -> None:
    """Note that commitments up to this one are settled; an event that is delivered again takes nothing back."""
    earlier = update(nodes).where(nodes.c.address == node, nodes.c.settled <= through)
    connection.execute(earlier.values(settled=through + 1))


def _record_event(connection: Connection, kind: str, data: Mapping[str, Any], at: Place) -> None:
    record_event(connection, kind, data, f"{_SOURCE}{at.block}:{at.log_index}")
