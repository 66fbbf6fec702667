"""Read from the database, and from what the follower last saw, the facts that `muster.protocol.work_rules` judges."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from sqlalchemy import Connection, and_, func, select

from muster.constants import HOUR_SECONDS
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
    min_validators: int = 0
    free_escrow: int | None = None
    """Token wei of the run's escrow that are not reserved; None before the first poll."""
    paused_until: int = 0


def read_run_facts(connection: Connection, terms: Terms, chain: ChainState, *, finished: bool) -> RunFacts:
    """Return what limits the workers of this run now."""
    roles = select(nodes.c.role, func.count().label("n")).where(nodes.c.status == "active").group_by(nodes.c.role)
    active = {row.role: row.n for row in connection.execute(roles)}
    classes = select(nodes.c.work_class).where(nodes.c.status == "active", nodes.c.role == "worker").distinct()
    pays = [terms.pay_of(number) for number in connection.execute(classes).scalars()]
    return RunFacts(
        now=chain.now,
        step=connection.execute(select(func.max(checkpoints.c.step))).scalar(),
        commitments_per_hour=terms.commitments_per_hour,
        validators=active.get("validator", 0),
        min_validators=chain.min_validators,
        workers=_workers(connection, chain.now // HOUR_SECONDS),
        closed=connection.execute(select(meta.c.value).where(meta.c.key == "closed")).scalar() is not None,
        finished=finished,
        escrow_short=chain.free_escrow is not None and bool(pays) and chain.free_escrow < min(pays),
        paused_until=chain.paused_until,
        step_seconds=_step_seconds(connection, terms.min_step_interval),
    )


def _workers(connection: Connection, hour: int) -> dict[str, WorkerFacts]:
    """Return the active workers with their commitments in `hour`, oldest member first."""
    query = (
        select(nodes.c.address, nodes.c.first_step, func.count(commitments.c.node))
        .outerjoin(commitments, and_(commitments.c.node == nodes.c.address, commitments.c.hour == hour))
        .where(nodes.c.role == "worker", nodes.c.status == "active")
        .group_by(nodes.c.address, nodes.c.first_step, nodes.c.block)
        .order_by(nodes.c.block, nodes.c.address)
    )
    return {address: WorkerFacts(*rest) for address, *rest in connection.execute(query)}


def _step_seconds(connection: Connection, least: int) -> float | None:
    """Return the median time between the newest reports, no less than the contract allows; None for fewer than two."""
    query = select(steps.c.received).order_by(steps.c.step.desc()).limit(PACE_STEPS)
    times = sorted(connection.execute(query).scalars())
    if len(times) < 2:
        return None
    return max(float(least), median(later - earlier for earlier, later in pairwise(times)))
