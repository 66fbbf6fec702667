"""Read what limits the workers of a run: facts that `muster.protocol.work_rules` judges by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any, Final

from sqlalchemy import Connection, func, select

from muster.ledger.tables import OPEN, cases, checkpoints, hour_tallies, meta, nodes, steps, tallies
from muster.protocol.messages import StepReport
from muster.protocol.terms import MAX_COVER, Terms
from muster.protocol.work_rules import RunFacts, WorkerFacts

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


@dataclass(frozen=True)
class KeptFacts:
    """What limits the workers of a run, as far as it follows from the database and the hour."""

    facts: RunFacts
    least_pay: int | None
    """Of the active workers' classes; None without any."""

    def at(self, chain: ChainState) -> RunFacts:
        """Return what limits them as the chain is now."""
        short = chain.free_escrow is not None and self.least_pay is not None and chain.free_escrow < self.least_pay
        return replace(
            self.facts,
            now=chain.now,
            min_validators=chain.min_validators,
            escrow_short=short,
            paused_until=chain.paused_until,
        )


def read_facts(connection: Connection, hour: int, terms: Terms) -> KeptFacts:
    """Read what limits the workers of this run in an hour, for `muster.protocol.work_rules` to judge."""
    active = select(func.count()).where(nodes.c.status == "active", nodes.c.role == "validator")
    classes = select(nodes.c.work_class).where(nodes.c.status == "active", nodes.c.role == "worker").distinct()
    pays = [terms.pay_of(number) for number in connection.execute(classes).scalars()]
    document = connection.execute(select(steps.c.document).order_by(steps.c.step.desc()).limit(1)).scalar_one_or_none()
    report = StepReport.model_validate_json(document) if document else None
    facts = RunFacts(
        now=0,
        step=latest_step(connection),
        commitments_per_hour=terms.commitments_per_hour,
        validators=connection.execute(active).scalar_one(),
        min_validators=0,
        workers=_workers(connection, hour, terms),
        closed=connection.execute(select(meta.c.value).where(meta.c.key == "closed")).scalar() is not None,
        finished=report is not None and report.finished,
        step_seconds=_step_seconds(connection, terms.min_step_interval),
    )
    return KeptFacts(facts, min(pays, default=None))


def latest_step(connection: Connection) -> int | None:
    """Return the newest policy step on chain."""
    return connection.execute(_LATEST).scalar()


_LATEST: Final = select(func.max(checkpoints.c.step))


def _workers(connection: Connection, hour: int, terms: Terms) -> dict[str, WorkerFacts]:
    """Return the active workers with their commitments in `hour`, oldest member first."""
    made = select(tallies.c.node, func.sum(tallies.c["count"])).group_by(tallies.c.node)
    in_hour = select(hour_tallies.c.node, func.sum(hour_tallies.c["count"]))
    in_hour = in_hour.where(hour_tallies.c.hour == hour).group_by(hour_tallies.c.node)
    all_made, made_now = _by_node(connection, made), _by_node(connection, in_hour)
    query = select(*nodes.c["address", "work_class", "first_step", "settled"])
    query = query.where(nodes.c.role == "worker", nodes.c.status == "active")
    rows: Any = connection.execute(query.order_by(nodes.c.block, nodes.c.address)).all()
    # What an accused worker has unsettled counts only until it matures: how much that is, its own process reads.
    accused = set(connection.execute(select(cases.c.node).where(OPEN)).scalars())
    covers = [terms.cover_of(work_class) for work_class in range(len(terms.classes))]
    return {
        address: WorkerFacts(
            first_step=first_step,
            in_hour=made_now.get(address, 0),
            unsettled=all_made.get(address, 0) - settled,
            cover=MAX_COVER if address in accused else covers[work_class],
        )
        for address, work_class, first_step, settled in rows
    }


def _by_node(connection: Connection, query: Any) -> dict[str, int]:
    rows: Any = connection.execute(query).all()
    return {node: int(number) for node, number in rows}


def _step_seconds(connection: Connection, least: int) -> float | None:
    """Return the median time between the newest reports, no less than the contract allows; None for fewer than two."""
    query = select(steps.c.received).order_by(steps.c.step.desc()).limit(PACE_STEPS)
    times = sorted(connection.execute(query).scalars())
    if len(times) < 2:
        return None
    return max(float(least), median(later - earlier for earlier, later in pairwise(times)))
