"""Summarise a run in one bounded document, which report and status page show."""

from __future__ import annotations

import time
from typing import Final

from pydantic import Field
from sqlalchemy import Connection

from explorer.overview import RunHead, RunIdentity, RunState
from explorer.steps import StepHead
from muster.ledger.attribution import AuthorLine
from muster.ledger.events import EventLine, newest_events
from muster.ledger.read_model import NodeSums, StepRecord, oldest_nodes, read_cases, read_nodes, read_steps
from muster.protocol.messages import Message, NodeCounts, Wei
from muster.protocol.terms import Terms
from muster.protocol.work_rules import RunFacts, blocking_reason, run_blocking_reason

MAX_NODES: Final = 1_000
MAX_STEPS: Final = 1_000
MAX_CASES: Final = 200
MAX_EVENTS: Final = 50


class StepLine(StepHead):
    metrics: dict[str, float | None] = Field(default_factory=dict)
    """As the trainer reported them."""
    stages: dict[str, float] = Field(default_factory=dict)
    """Seconds by stage."""


class NodeLine(NodeCounts):
    """One node. Money is an integer in token wei."""

    operator: str
    role: str
    status: str
    work_class: int
    pending: int
    void: int
    """Commitments that were not rejected themselves, of a node that was convicted."""
    used: int
    """Commitments that went into a batch."""
    accepts: int
    """Verdicts that a validator gave."""
    rejections: int
    earned: Wei
    """Claims paid."""
    voided: Wei
    slashed: Wei
    fined: Wei = 0
    """For a file that came only when it was missed, or for votes that were not revealed."""


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


class Summary(RunHead):
    steps: list[StepLine]
    nodes: list[NodeLine]
    cases: list[CaseLine]
    authors: list[AuthorLine] = Field(default_factory=list)
    """Whose tasks were worked on, where the task set names authors."""
    events: list[EventLine]


def read_summary(connection: Connection, known: RunIdentity, state: RunState, authors: list[AuthorLine]) -> Summary:
    """Return the summary. `known`, `state` and `authors`: what it says without the database."""
    return Summary.of(
        known,
        state,
        state.facts,
        time=time.time(),
        blocked=run_blocking_reason(state.facts),
        steps=[_step_line(one) for one in reversed(read_steps(connection, MAX_STEPS))],
        nodes=node_lines(connection, known.terms, state.facts),
        cases=[CaseLine.of(row) for row in reversed(read_cases(connection, MAX_CASES))],
        authors=authors,
        events=newest_events(connection, MAX_EVENTS)[::-1],
    )


def node_lines(connection: Connection, terms: Terms, facts: RunFacts) -> list[NodeLine]:
    """Return a line for each of the first MAX_NODES nodes. `facts`: what limits workers now."""
    return [_node_line(one, terms, facts) for one in read_nodes(connection, oldest_nodes().limit(MAX_NODES))]


def _node_line(node: NodeSums, terms: Terms, facts: RunFacts) -> NodeLine:
    worker, made, paid = facts.workers.get(node.row["address"]), node.commitments, node.paid
    return NodeLine.of(
        made,
        **{name: node.row[name] for name in ("address", "operator", "role", "status", "work_class")},
        commitments=made.total,
        rollouts=made.total * terms.positions,
        rejected=node.rejected,
        used=node.done["files"],
        accepts=node.done["accepts"],
        rejections=node.done["rejections"],
        earned=paid["claim"],
        voided=paid["void"],
        slashed=paid["slash"],
        fined=paid["fine"],
        blocked=blocking_reason(worker, facts) if worker else "",
    )


def _step_line(one: StepRecord) -> StepLine:
    files = len(one.report.batch) if one.report else 0
    return StepLine.of(one, one.chain, one.report, files=files, reported=one.received)
