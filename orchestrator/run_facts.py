"""Read what limits the workers of a run: facts that `muster.protocol.work_rules` judges by."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from sqlalchemy import Connection, and_, func, select

from muster.constants import HOUR_SECONDS
from muster.protocol.messages import StepReport
from muster.protocol.terms import Terms
from muster.protocol.work_rules import RunFacts, WorkerFacts
from orchestrator.tables import checkpoints, commitments, meta, nodes, steps

PACE_STEPS: Final = 8
"""Newest step reports that the pace of a run is taken from."""


@dataclass(frozen=True)
class ChainState:
    """Values that the follower reads beside events, since they change without one."""

    now: int = 0
    """Timestamp of the newest block read."""
    read_at: float = float("-inf")
    """Monotonic second at which it was read."""
    min_validators: int = 0
    free_escrow: int | None = None
    """Token wei of the run's escrow that are not reserved; None before the first poll."""
    paused_until: int = 0
    sealed_through: int = 0
    """The hour up to which a quorum has sealed."""


def run_facts(connection: Connection, chain: ChainState, terms: Terms) -> RunFacts:
    """Return what limits the workers of this run now, for `muster.protocol.work_rules` to judge."""
    # 1. How many nodes are active, by role, and what the cheapest of the workers is paid.
    roles = select(nodes.c.role, func.count().label("n")).where(nodes.c.status == "active").group_by(nodes.c.role)
    active = {row.role: row.n for row in connection.execute(roles)}
    classes = select(nodes.c.work_class).where(nodes.c.status == "active", nodes.c.role == "worker").distinct()
    pays = [terms.pay_of(number) for number in connection.execute(classes).scalars()]
    # 2. What the trainer reported last, and what the follower saw last.
    report = last_report(connection)
    return RunFacts(
        now=chain.now,
        step=latest_step(connection),
        commitments_per_hour=terms.commitments_per_hour,
        validators=active.get("validator", 0),
        min_validators=chain.min_validators,
        workers=_workers(connection, chain.now // HOUR_SECONDS, terms),
        closed=connection.execute(select(meta.c.value).where(meta.c.key == "closed")).scalar() is not None,
        finished=report is not None and report.finished,
        escrow_short=chain.free_escrow is not None and bool(pays) and chain.free_escrow < min(pays),
        paused_until=chain.paused_until,
        step_seconds=_step_seconds(connection, terms.min_step_interval),
    )


def latest_step(connection: Connection) -> int | None:
    """Return the newest policy step on chain."""
    return connection.execute(select(func.max(checkpoints.c.step))).scalar()


def last_report(connection: Connection) -> StepReport | None:
    """Return the trainer's report of its newest update."""
    document = connection.execute(select(steps.c.document).order_by(steps.c.step.desc()).limit(1)).scalar_one_or_none()
    return StepReport.model_validate_json(document) if document else None


def _workers(connection: Connection, hour: int, terms: Terms) -> dict[str, WorkerFacts]:
    """Return the active workers with their commitments in `hour`, oldest member first."""
    made = select(func.coalesce(func.max(commitments.c.index) + 1, 0)).where(commitments.c.node == nodes.c.address)
    unsettled = made.correlate(nodes).scalar_subquery() - nodes.c.settled
    query = (
        select(nodes.c.address, nodes.c.work_class, nodes.c.first_step, func.count(commitments.c.node), unsettled)
        .outerjoin(commitments, and_(commitments.c.node == nodes.c.address, commitments.c.hour == hour))
        .where(nodes.c.role == "worker", nodes.c.status == "active")
        .group_by(nodes.c.address, nodes.c.work_class, nodes.c.first_step, nodes.c.settled, nodes.c.block)
        .order_by(nodes.c.block, nodes.c.address)
    )
    rows = connection.execute(query)
    return {row[0]: WorkerFacts(*row[2:], cover=terms.cover_of(row.work_class)) for row in rows}


def _step_seconds(connection: Connection, least: int) -> float | None:
    """Return the median time between the newest reports, no less than the contract allows; None for fewer than two."""
    query = select(steps.c.received).order_by(steps.c.step.desc()).limit(PACE_STEPS)
    times = sorted(connection.execute(query).scalars())
    if len(times) < 2:
        return None
    return max(float(least), median(later - earlier for earlier, later in pairwise(times)))
