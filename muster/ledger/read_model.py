"""Read what a run is made of: nodes with what they did, steps and cases. Every document shows some of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, select, true

from muster.ledger.tables import PAYMENTS, cases, checkpoints, deeds, nodes, steps, tallies
from muster.protocol.acceptance import STATES
from muster.protocol.messages import Message, StepReport


class Counts(Message):
    """Commitments by what became of them."""

    total: int = 0
    accepted: int = 0
    pending: int = 0
    rejected: int = 0
    void: int = 0


def counts_of(rows: Iterable[tuple[str, int]]) -> Counts:
    """Add up commitments by their status. Pure."""
    found: Counter[str] = Counter()
    for status, count in rows:
        found[status] += count
    return Counts(total=found.total(), **{state: found[state] for state in STATES})


@dataclass(frozen=True)
class NodeSums:
    """A node as the chain has it, and sums of what it did."""

    row: RowMapping
    """Of the table `nodes`."""
    work: Mapping[tuple[str, str], int]
    """Commitments by status and reason."""
    done: Mapping[str, int]
    """By the kinds of `deeds`; 0 for others."""

    @property
    def commitments(self) -> Counts:
        return counts_of((status, number) for (status, _), number in self.work.items())

    @property
    def rejected(self) -> dict[str, int]:
        """Return the rejected commitments by reason."""
        return {reason or "unknown": number for (status, reason), number in self.work.items() if status == "rejected"}

    @property
    def paid(self) -> dict[str, int]:
        """Return what it was paid and lost in token wei, by the kinds of PAYMENTS."""
        return {kind: int(self.row[kind]) for kind in PAYMENTS}


@dataclass(frozen=True)
class StepRecord:
    """A policy step. A step can be on chain before its report is here, and the other way round."""

    step: int
    chain: Any
    """Row of the table `checkpoints`, or None."""
    report: StepReport | None
    received: float | None
    """Unix seconds (wall clock) at which the report arrived."""


def read_nodes(connection: Connection, chosen: Select[Any]) -> list[NodeSums]:
    """Return the nodes that a query of the table `nodes` chooses, in its order."""
    named = select(chosen.subquery().c.address)
    work: dict[str, dict[tuple[str, str], int]] = defaultdict(dict)
    done: dict[str, Counter[str]] = defaultdict(Counter)
    by_status = select(*tallies.c["node", "status", "reason", "count"]).where(tallies.c.node.in_(named))
    rows: Any = connection.execute(by_status)
    for node, status, reason, number in rows:
        work[node][status, reason] = number
    rows = connection.execute(select(deeds).where(deeds.c.address.in_(named)))
    for node, kind, number in rows:
        done[node][kind] = number
    found = connection.execute(chosen).mappings()
    return [NodeSums(row, work[row["address"]], done[row["address"]]) for row in found]


def oldest_nodes() -> Select[Any]:
    """Return the query for all nodes, oldest member first."""
    return select(nodes).order_by(nodes.c.block, nodes.c.address)


def read_steps(connection: Connection, limit: int, where: Callable[[Any], Any] = lambda _: true()) -> list[StepRecord]:
    """Return the newest steps that chain or trainer know, newest first. `where`: condition on the column of steps."""
    published, reported = (
        {
            row.step: row
            for row in connection.execute(
                select(table).where(where(table.c.step)).order_by(table.c.step.desc()).limit(limit)
            )
        }
        for table in (checkpoints, steps)
    )
    found = []
    for step in sorted(published.keys() | reported.keys(), reverse=True)[:limit]:
        kept: Any = reported.get(step)
        report = StepReport.model_validate_json(kept.document) if kept else None
        found.append(StepRecord(step, published.get(step), report, kept.received if kept else None))
    return found


def read_cases(connection: Connection, limit: int, *conditions: Any) -> list[Any]:
    """Return rows of the newest cases that meet conditions, newest first."""
    return list(connection.execute(select(cases).where(*conditions).order_by(cases.c.id.desc()).limit(limit)))
