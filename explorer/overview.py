"""Read what a run trains, how far it is, who works for it and what it waits for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from pydantic import Field
from sqlalchemy import Connection, and_, func, select

from explorer import series
from explorer.documents import MAX_BENCHMARKS
from explorer.members import Members, MemberSums
from muster.ledger.read_model import Counts, counts_of
from muster.ledger.tables import OPEN, cases, machines, nodes, scores, step_tallies, steps, tallies
from muster.protocol.acceptance import UNREFUTED
from muster.protocol.announcements import BenchmarkScore
from muster.protocol.keys import RunKeys
from muster.protocol.messages import Demand, Message, Wei
from muster.protocol.terms import Terms
from muster.protocol.work_rules import RunFacts, run_blocking_reason

COST_STEPS: Final = 16
"""Newest steps that the cost of a step is the median of."""
MAX_KINDS: Final = 50
"""Kinds of machines in the answer, those with the most devices."""


class MachineKind(Message):
    """Machines of one kind, as the active nodes that have them say."""

    device: str
    devices: int
    nodes: int


class BenchmarkLine(Message):
    """The newest score on a published benchmark, and the first one."""

    benchmark: str
    step: int
    score: float
    low: float
    high: float
    tasks: int
    first_step: int
    first_score: float


class KeysLine(Message):
    """Keys of the run."""

    trainer: str
    storage_key: str
    admitter: str
    """The zero address: anyone who locks a stake may validate."""
    since: int
    """Second of the chain's clock from which they are in force, or will be."""


class RunNow(Message):
    """How far a run is."""

    time: float
    """Unix seconds (wall clock) of this document."""
    block: int
    """Newest block read."""
    block_time: int
    """Of the chain."""
    step: int | None
    """Newest policy step on chain."""
    finished: bool
    """The trainer said that it needs no more work."""
    blocked: str
    """Why no worker can commit now, as a sentence; empty when one could."""


class RunHead(RunNow):
    """Which run it is, and how far it is."""

    run: int
    chain_id: int
    keys: list[KeysLine]
    """In force, and then those that the owner has announced."""
    demand: Demand


class Overview(RunHead, MemberSums):
    """Money is in token wei, times are Unix seconds of the wall clock unless they are said to be the chain's."""

    title: str
    about: str
    """The owner's own words; text, never markup."""
    owner: str
    addresses: dict[str, str]
    """Contracts: token, registry, runs, court."""
    reported: float | None
    """When the trainer's newest report arrived."""
    step_seconds: float | None
    """Recent time from one step to the next."""
    workers: int
    validators: int
    """Active ones."""
    groups_per_commitment: int
    rollouts_per_commitment: int
    commitments: Counts
    machines: list[MachineKind]
    pay: list[Wei]
    """Of one commitment, by work class."""
    step_cost: Wei | None
    """Pay that a step binds at present: of commitments that were not refuted, the median of the newest steps."""
    escrow_free: Wei | None
    open_cases: int
    convicted: int
    """Nodes."""
    metrics: dict[str, float | None] = Field(default_factory=dict)
    """Newest number of each metric, by the trainer's names."""
    metrics_step: int | None = None
    """Step of the newest report."""
    benchmarks: list[BenchmarkLine] = Field(default_factory=list)


# Making it


def key_lines(keys: RunKeys, now: int) -> list[KeysLine]:
    """Return the keys in force, and then those that are announced."""
    return [KeysLine.of(one.keys, since=one.from_) for one in keys.since(now)]


@dataclass(frozen=True)
class RunIdentity:
    """What of an overview never changes."""

    run: int
    chain_id: int
    title: str
    about: str
    owner: str
    addresses: Mapping[str, str]
    """Contracts."""
    terms: Terms


@dataclass(frozen=True)
class RunState:
    """What changes without a write to the database, or is read by others already."""

    block: int
    block_time: int
    stale_since: float | None
    """Unix second since which the chain is not read; None while it is."""
    escrow_free: int | None
    facts: RunFacts
    demand: Demand
    keys: Sequence[KeysLine]


@dataclass(frozen=True)
class NewestReport:
    """The numbers of the trainer's newest report that charts show."""

    step: int
    received: float
    metrics: Mapping[str, float]


def read_overview(connection: Connection, known: RunIdentity, state: RunState, members: Members) -> Overview:
    """Return the overview. `known`, `state` and `members`: what it says without the database."""
    facts, terms = state.facts, known.terms
    report = newest_report(connection)
    return Overview.of(
        known,
        state,
        terms,
        members.sums,
        facts,
        time=time.time(),
        reported=report.received if report else None,
        blocked=run_blocking_reason(facts),
        workers=len(facts.workers),
        validators=facts.validators,
        rollouts_per_commitment=terms.positions,
        commitments=commitment_counts(connection),
        machines=_machines(connection),
        pay=[terms.pay_of(number) for number in range(len(terms.classes))],
        step_cost=_step_cost(connection, terms, facts.step),
        open_cases=open_cases(connection),
        convicted=convicted_nodes(connection),
        metrics=dict(series.newest_numbers(connection)),
        metrics_step=report.step if report else None,
        benchmarks=_benchmarks(connection),
    )


def commitment_counts(connection: Connection) -> Counts:
    """Count all commitments by what became of them."""
    query = select(tallies.c.status, func.sum(tallies.c["count"])).group_by(tallies.c.status)
    return counts_of((status, int(number)) for status, number in connection.execute(query))


def open_cases(connection: Connection) -> int:
    return connection.execute(select(func.count()).select_from(cases).where(OPEN)).scalar_one()


def convicted_nodes(connection: Connection) -> int:
    return connection.execute(select(func.count()).select_from(nodes).where(nodes.c.status == "jailed")).scalar_one()


def newest_report(connection: Connection) -> NewestReport | None:
    """Return the newest report; None before the first."""
    row = connection.execute(select(steps.c.step, steps.c.received).order_by(steps.c.step.desc()).limit(1)).first()
    return NewestReport(row.step, row.received, series.numbers_at(connection, row.step)) if row else None


def _machines(connection: Connection) -> list[MachineKind]:
    devices = func.sum(machines.c.devices)
    query = select(machines.c.device, devices, func.count()).join(nodes, nodes.c.address == machines.c.node)
    query = query.where(nodes.c.status == "active").group_by(machines.c.device)
    rows = connection.execute(query.order_by(devices.desc(), machines.c.device).limit(MAX_KINDS))
    return [MachineKind(device=device, devices=int(number), nodes=many) for device, number, many in rows]


def _step_cost(connection: Connection, terms: Terms, latest: int | None) -> int | None:
    """Return the median pay of the newest steps that work was done at, without the one that is under way."""
    if not latest:
        return None
    query = select(step_tallies.c.step, step_tallies.c.work_class, step_tallies.c["count"])
    recent = step_tallies.c.step.between(latest - COST_STEPS, latest - 1)
    costs: dict[int, int] = {}
    rows = connection.execute(query.where(recent, step_tallies.c.status.in_(UNREFUTED)))
    for step, work_class, number in rows:
        costs[step] = costs.get(step, 0) + number * terms.pay_of(work_class)
    return round(median(costs.values())) if costs else None


def _benchmarks(connection: Connection) -> list[BenchmarkLine]:
    names = series.names_in(scores.c.benchmark).subquery()
    first, last = (
        select(end(scores.c.step)).where(scores.c.benchmark == names.c.name).scalar_subquery().label(name)
        for name, end in (("first", func.min), ("last", func.max))
    )
    of_all = select(names.c.name.label("benchmark"), first, last).order_by(names.c.name)
    of_all = of_all.limit(MAX_BENCHMARKS).subquery()
    first, last = scores.alias(), scores.alias()
    query = (
        select(first.c.step, first.c.score, last.c.document)
        .join(of_all, and_(first.c.benchmark == of_all.c.benchmark, first.c.step == of_all.c.first))
        .join(last, and_(last.c.benchmark == of_all.c.benchmark, last.c.step == of_all.c.last))
        .order_by(of_all.c.benchmark)
    )
    lines = []
    for first_step, first_score, document in connection.execute(query):
        newest = BenchmarkScore.model_validate_json(document)
        lines.append(BenchmarkLine.of(newest, first_step=first_step, first_score=first_score))
    return lines
