"""Summarise a run in one bounded document, which live view, report and status page show."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, Final

from pydantic import Field
from sqlalchemy import BigInteger, Connection, literal, select

from muster.protocol.messages import Demand, Message, StepReport
from muster.protocol.work_rules import RunFacts, blocking_reason, run_blocking_reason
from orchestrator.attribution import Attribution, AuthorLine
from orchestrator.chain_follower import Follower
from orchestrator.database import Database
from orchestrator.kept import KeptAnswers
from orchestrator.queries import Queries
from orchestrator.run_facts import latest_step
from orchestrator.tables import cases, checkpoints, counts, events, nodes, steps, tallies
from orchestrator.tallies import paid_to

FRESH_SECONDS: Final = 0.5
"""A summary this young is given again instead of being rebuilt."""

MAX_NODES: Final = 1_000
MAX_STEPS: Final = 1_000
MAX_CASES: Final = 200
MAX_EVENTS: Final = 50
MAX_EVENT_PAGE: Final = 500


class StepLine(Message):
    """One policy step. A step can be on chain before its report is here, and the other way round."""

    step: int
    metrics: dict[str, float | None] = Field(default_factory=dict)
    """As the trainer reported them."""
    stages: dict[str, float] = Field(default_factory=dict)
    """Seconds by stage."""
    files: int = 0
    """Rollout files in the batch."""
    reported: float | None = None
    """Unix seconds (wall clock) at which the report arrived."""
    manifest_root: str | None = None
    batch_root: str | None = None
    transaction: str | None = None


class NodeLine(Message):
    """One node. Commitments are counted once, whatever the number of verdicts; money is an integer in token wei."""

    address: str
    operator: str
    role: str
    status: str
    work_class: int
    commitments: int
    rollouts: int
    accepted: int
    pending: int
    void: int
    """Commitments that were not rejected themselves, of a node that was convicted."""
    rejected: dict[str, int]
    """Commitments by reason."""
    used: int
    """Commitments that went into a batch."""
    accepts: int
    """Verdicts that a validator gave."""
    rejections: int
    earned: int
    """Claims paid."""
    voided: int
    slashed: int
    fined: int = 0
    """For a file that came only when it was missed, or for votes that were not revealed."""
    blocked: str = ""
    """Why the chain takes no work from this worker now, as a sentence; empty when it would."""


class CaseLine(Message):
    id: int
    node: str
    index: int
    challenger: str
    kind: str
    outcome: str
    """open, guilty, not_guilty and so on, as `muster.contracts.court.Outcome` names them."""
    evidence: str
    jury: int
    reveals: int
    guilty_votes: int
    opened_in: str
    resolved_in: str | None
    """Transactions."""


class EventLine(Message):
    id: int
    kind: str
    time: float
    """Unix seconds (wall clock) at which the orchestrator learned of it."""
    data: dict[str, Any]


class EventPage(Message):
    events: list[EventLine]
    cursor: int
    """What to ask for after this."""


class Summary(Message):
    run: int
    chain_id: int
    block: int
    """Newest block read."""
    block_time: int
    time: float
    """Unix seconds (wall clock) of this summary."""
    step: int | None
    """Newest policy step on chain."""
    demand: Demand
    finished: bool
    """The trainer said that it needs no more work."""
    blocked: str
    """Why no worker can commit now, as a sentence; empty when one could."""
    steps: list[StepLine]
    nodes: list[NodeLine]
    cases: list[CaseLine]
    authors: list[AuthorLine] = Field(default_factory=list)
    """Whose tasks were worked on, where the task set names authors."""
    events: list[EventLine]


@dataclass(eq=False)
class Summaries:
    """Makes summaries, at most one per FRESH_SECONDS however many ask."""

    database: Database
    queries: Queries
    follower: Follower
    chain_id: int
    attribution: Attribution | None = None

    def __post_init__(self) -> None:
        self._answers = KeptAnswers(FRESH_SECONDS)

    async def json(self) -> bytes:
        """Return the summary as JSON, at most FRESH_SECONDS old."""
        return await self._answers.get("json", self._json)

    async def _json(self) -> bytes:
        return (await self.make()).model_dump_json().encode()

    async def make(self) -> Summary:
        demand, facts = await self.queries.demand(), await self.queries.facts()
        return await self.database.read(lambda connection: self._make(connection, demand, facts))

    def _make(self, connection: Connection, demand: Demand, facts: RunFacts) -> Summary:
        return Summary(
            run=self.queries.run,
            chain_id=self.chain_id,
            block=self.follower.head_number,
            block_time=self.follower.head_time,
            time=time.time(),
            step=latest_step(connection),
            demand=demand,
            finished=facts.finished,
            blocked=run_blocking_reason(facts),
            steps=_steps(connection),
            nodes=self._nodes(connection, facts),
            cases=_cases(connection),
            authors=self.attribution.lines(connection) if self.attribution else [],
            events=_events(connection, None, MAX_EVENTS).events,
        )

    async def events_after(self, after: int) -> EventPage:
        """Return the events after `after`, oldest first."""
        return await self.database.read(lambda connection: _events(connection, after, MAX_EVENT_PAGE))

    def _nodes(self, connection: Connection, facts: RunFacts) -> list[NodeLine]:
        # 1. What is known of each node, by its address.
        blocked = {address: blocking_reason(worker, facts) for address, worker in facts.workers.items()}
        first = select(nodes).order_by(nodes.c.block, nodes.c.address).limit(MAX_NODES)
        named = select(first.subquery().c.address)
        statuses: dict[str, list[tuple]] = defaultdict(list)
        by_status = select(*tallies.c["node", "status", "reason", "count"]).where(tallies.c.node.in_(named))
        for node, *counted in connection.execute(by_status):
            statuses[node].append(tuple(counted))
        numbers: dict[str, Counter[str]] = defaultdict(Counter)
        by_kind = select(counts).where(counts.c.address.in_(named))
        for node, kind, number in connection.execute(by_kind):
            numbers[node][kind] = number
        # 2. A line for each.
        lines = []
        for node in connection.execute(first).mappings():
            address, paid = node["address"], paid_to(node)
            lines.append(
                NodeLine(
                    **{name: node[name] for name in ("address", "operator", "role", "status", "work_class")},
                    **self.queries.tally(statuses[address]),
                    used=numbers[address]["files"],
                    accepts=numbers[address]["accepts"],
                    rejections=numbers[address]["rejections"],
                    earned=paid["claim"],
                    voided=paid["void"],
                    slashed=paid["slash"],
                    fined=paid["fine"],
                    blocked=blocked.get(address, ""),
                )
            )
        return lines


def _steps(connection: Connection) -> list[StepLine]:
    """Return the newest MAX_STEPS steps, oldest first, from chain and reports."""
    published = select(*checkpoints.c["step", "manifest_root", "batch_root", "transaction"])
    published = published.order_by(checkpoints.c.step.desc()).limit(MAX_STEPS)
    reported = select(steps).order_by(steps.c.step.desc()).limit(MAX_STEPS)
    lines = {row["step"]: dict(row) for row in connection.execute(published).mappings()}
    for row in connection.execute(reported):
        report = StepReport.model_validate_json(row.document)
        line = lines.setdefault(row.step, {"step": row.step})
        line |= {"metrics": report.metrics, "stages": report.stages}
        line |= {"files": len(report.batch), "reported": row.received}
    return [StepLine(**lines[step]) for step in sorted(lines)[-MAX_STEPS:]]


def _cases(connection: Connection) -> list[CaseLine]:
    columns = cases.c[tuple(CaseLine.model_fields)]
    rows = connection.execute(select(*columns).order_by(cases.c.id.desc()).limit(MAX_CASES)).mappings().all()
    return [CaseLine(**row) for row in reversed(rows)]


def _events(connection: Connection, after: int | None, limit: int) -> EventPage:
    """Return the events after an id, oldest first; with None the newest ones."""
    query = select(events.c.id, events.c.kind, events.c.time, events.c.data).limit(limit)
    if after is None:
        rows = connection.execute(query.order_by(events.c.id.desc())).all()[::-1]
    else:
        rows = connection.execute(query.where(events.c.id > literal(after, BigInteger)).order_by(events.c.id)).all()
    lines = [EventLine.of(row, data=json.loads(row.data)) for row in rows]
    return EventPage(events=lines, cursor=lines[-1].id if lines else after or 0)
