"""Rank who takes part: workers, validators, trainers, relays, authors of tasks. Lists are made once in a while.

A board is read from the tallies in a few queries, whatever the number of commitments; its pages, orders and searches
are slices of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar

from sqlalchemy import Connection, and_, case, func, select

from muster.constants import HOUR_SECONDS
from muster.protocol.messages import Message
from muster.protocol.terms import Terms
from orchestrator.attribution import AuthorLine
from orchestrator.page.tallies import paid_to
from orchestrator.relay_directory import KnownRelay
from orchestrator.tables import (
    cases,
    checkpoints,
    counts,
    hour_tallies,
    machines,
    node_names,
    nodes,
    proofs,
    seals,
    served,
    steps,
    tallies,
    votes,
)

MAX_LINES: Final = 200
"""Lines of one answer."""
DAY_HOURS: Final = 24
SAID_SECONDS: Final = 900.0
"""How long what a machine said of its speed counts."""

_STATUSES: Final = ("accepted", "pending", "rejected", "void")

WorkerOrder = Literal["accepted", "tokens", "earned", "day", "uptime", "since", "name"]
ValidatorOrder = Literal["inspections", "won", "lost", "since", "name"]


class WorkerLine(Message):
    """Money is in token wei."""

    rank: int
    """By the order that was asked for, from 1, before any search."""
    address: str
    name: str
    """Set by the operator's signature; empty for none."""
    operator: str
    status: str
    work_class: int
    since: int
    """The chain's seconds at which it joined."""
    accepted_groups: int
    accepted: int
    """Commitments."""
    pending: int
    rejected: int
    void: int
    tokens: int
    earned: int
    """Claimed in all."""
    in_window: int
    day: int
    """Pay of the commitments of the last 24 hours that nobody refuted."""
    uptime: float
    """Share of the hours since it joined in which it made a commitment."""
    device: str
    devices: int
    tokens_per_second: float
    """As it said in the last minutes; 0 for one that said nothing."""


class WorkerPage(Message):
    run: int
    order: WorkerOrder
    offset: int
    total: int
    """Workers that the search found."""
    workers: list[WorkerLine]


class ValidatorLine(Message):
    rank: int
    address: str
    name: str
    operator: str
    status: str
    since: int
    inspections: int
    """Verdicts."""
    accepts: int
    rejections: int
    won: int
    """Cases that it opened and that ended guilty, and proofs."""
    lost: int
    """Cases that it opened and that ended not guilty."""
    open: int
    votes: int
    """Votes revealed as a judge."""
    absences: int
    seals: int
    slashed: int
    fined: int
    """Token wei."""
    device: str


class ValidatorPage(Message):
    run: int
    order: ValidatorOrder
    offset: int
    total: int
    validators: list[ValidatorLine]


class TrainerLine(Message):
    address: str
    steps: int
    """Published on chain."""
    updates: int
    """Reports of steps with a batch."""
    last: float | None
    """When its newest report arrived."""


class RelayLine(Message):
    url: str
    operator: str
    """Empty for one of the run's owner."""
    listed: bool
    """Whether the directory names it now."""
    bytes: int
    """That nodes of other operators say they received from it."""
    nodes: int
    """How many say so."""


class Others(Message):
    """Everybody who is no node."""

    run: int
    trainers: list[TrainerLine]
    relays: list[RelayLine]
    authors: list[AuthorLine]


# Boards

Line = TypeVar("Line", WorkerLine, ValidatorLine)


@dataclass
class Board(Generic[Line]):
    """All nodes of a role. Lines are made of `rows` when they are asked for."""

    line: type[Line]
    rows: list[dict[str, Any]]
    """What the lines have but for their rank, oldest member first."""
    _orders: dict[str, list[tuple[int, dict[str, Any]]]] = field(default_factory=dict)

    def page(self, order: str, offset: int, limit: int, search: str) -> tuple[int, list[Line]]:
        """Return how many nodes the search finds, and so many of them from `offset` on."""
        found = self._by(order)
        if wanted := search.strip().casefold():
            found = [one for one in found if wanted in one[1]["name"].casefold() or wanted in one[1]["address"].lower()]
        return len(found), [self.line(rank=rank, **row) for rank, row in found[offset : offset + limit]]

    def _by(self, order: str) -> list[tuple[int, dict[str, Any]]]:
        """Return all rows in this order, with their ranks."""
        if order not in self._orders:
            self._orders[order] = list(enumerate(sorted(self.rows, key=_KEYS.get(order, _most(order))), 1))
        return self._orders[order]


def _most(column: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda row: -row[column]


_KEYS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "since": lambda row: row["since"],
    "name": lambda row: (not row["name"], row["name"].casefold(), row["address"]),
}
"""Of orders in which the largest number is not first. Nodes without a name come last."""


@dataclass(frozen=True)
class Members:
    """Everybody who is registered, and sums over them."""

    workers: Board[WorkerLine]
    validators: Board[ValidatorLine]
    claimed: int
    in_window: int
    slashed: int
    """Token wei."""
    tokens: int
    counted: int
    """Files whose tokens were counted."""
    tokens_per_second: float
    """Of active workers."""


def read_members(connection: Connection, terms: Terms, now: int) -> Members:
    """Read all nodes. `now`: the chain's second."""
    workers, validators = [], []
    numbers, claimed, slashed = _numbers(connection), 0, 0
    courts = _court(connection)
    since = time.time() - SAID_SECONDS
    for row in connection.execute(_nodes(now // HOUR_SECONDS - DAY_HOURS)).mappings():
        paid, done = paid_to(row), numbers.get(row["address"], {})
        claimed, slashed = claimed + paid["claim"], slashed + paid["slash"]
        shared = {key: row[key] for key in ("address", "operator", "status")}
        shared |= {"name": row["name"] or "", "since": row["joined"], "device": row["device"] or ""}
        if row["role"] == "worker":
            said = row["status"] == "active" and (row["received"] or 0.0) >= since
            speed = float(row["tokens_per_second"]) if said else 0.0
            workers.append(shared | _of_worker(row, terms, now) | {
                "earned": paid["claim"], "tokens": done.get("tokens", 0), "tokens_per_second": speed
            })  # fmt: skip
        else:
            validators.append(shared | courts.get(row["address"], _NOTHING) | {
                "accepts": done.get("accepts", 0),
                "rejections": done.get("rejections", 0),
                "inspections": done.get("accepts", 0) + done.get("rejections", 0),
                "slashed": paid["slash"],
                "fined": paid["fine"],
            })  # fmt: skip
    return Members(
        workers=Board(WorkerLine, workers),
        validators=Board(ValidatorLine, validators),
        claimed=claimed,
        in_window=sum(worker["in_window"] for worker in workers),
        slashed=slashed,
        tokens=sum(worker["tokens"] for worker in workers),
        counted=sum(done.get("counted", 0) for done in numbers.values()),
        tokens_per_second=sum(worker["tokens_per_second"] for worker in workers),
    )


def _nodes(first_hour: int) -> Any:
    """Return the query for all nodes with what is counted of their work, of that since `first_hour` too."""

    def number_of(*statuses: str) -> Any:
        return func.sum(case((tallies.c.status.in_(statuses), tallies.c["count"]), else_=0))

    kinds = {status: number_of(status).label(status) for status in _STATUSES}
    work = select(tallies.c.node, *kinds.values()).group_by(tallies.c.node).subquery()
    lately = select(hour_tallies.c.node, func.sum(hour_tallies.c["count"]).label("lately"))
    unrefuted = hour_tallies.c.status.in_(("accepted", "pending"))
    lately = lately.where(hour_tallies.c.hour >= first_hour, unrefuted).group_by(hour_tallies.c.node).subquery()
    columns = [func.coalesce(work.c[status], 0).label(f"{status}_work") for status in kinds]
    return (
        select(
            nodes,
            *columns,
            func.coalesce(lately.c.lately, 0).label("lately"),
            node_names.c.name,
            *machines.c["device", "devices", "tokens_per_second", "received"],
        )
        .outerjoin(work, work.c.node == nodes.c.address)
        .outerjoin(lately, lately.c.node == nodes.c.address)
        .outerjoin(node_names, node_names.c.node == nodes.c.address)
        .outerjoin(machines, machines.c.node == nodes.c.address)
        .order_by(nodes.c.block, nodes.c.address)
    )


def _of_worker(row: Mapping[Any, Any], terms: Terms, now: int) -> dict[str, Any]:
    """Return the columns of a worker's line that follow from its commitments."""
    found = {status: int(row[f"{status}_work"]) for status in _STATUSES}
    pay, made = terms.pay_of(row["work_class"]), sum(found.values())
    return found | {
        "work_class": row["work_class"],
        "accepted_groups": found["accepted"] * terms.groups_per_commitment,
        "in_window": max(0, made - row["settled"]) * pay,
        "day": int(row["lately"]) * pay,
        "uptime": uptime(row["hours"], row["joined"], now),
        "devices": row["devices"] or 0,
    }


def uptime(hours: int, joined: int, now: int) -> float:
    """Return the share of the chain's hours since a node joined in which it made a commitment. Pure."""
    return min(1.0, hours / max(1, now // HOUR_SECONDS - joined // HOUR_SECONDS + 1))


def _numbers(connection: Connection) -> dict[str, dict[str, int]]:
    """Return what is counted of each address, by kind."""
    found: dict[str, dict[str, int]] = {}
    for address, kind, number in connection.execute(select(counts)):
        found.setdefault(address, {})[kind] = number
    return found


_NOTHING: Final[dict[str, int]] = dict.fromkeys(("won", "lost", "open", "votes", "absences", "seals"), 0)


def _court(connection: Connection) -> dict[str, dict[str, int]]:
    """Return what validators did in court, and how many hours they sealed."""
    found: dict[str, dict[str, int]] = {}

    def add(rows: Iterable[Any]) -> None:
        for address, kind, number in rows:
            if kind in _NOTHING:
                mine = found.setdefault(address, dict(_NOTHING))
                mine[kind] += number

    kinds = {"guilty": "won", "not_guilty": "lost", "open": "open"}
    opened = select(cases.c.challenger, cases.c.outcome, func.count()).group_by(cases.c.challenger, cases.c.outcome)
    add((address, kinds.get(outcome), number) for address, outcome, number in connection.execute(opened))
    queries = {
        "won": select(proofs.c.prover, func.count()).group_by(proofs.c.prover),
        "votes": select(votes.c.judge, func.count()).where(votes.c.guilty.is_not(None)).group_by(votes.c.judge),
        "absences": select(votes.c.judge, func.count()).where(votes.c.absent).group_by(votes.c.judge),
        "seals": select(seals.c.validator, func.count()).group_by(seals.c.validator),
    }
    for kind, query in queries.items():
        add((address, kind, number) for address, number in connection.execute(query))
    return found


# Everybody else


def read_others(
    connection: Connection, run: int, terms: Terms, relays: Sequence[KnownRelay], authors: list[AuthorLine]
) -> Others:
    """Read who takes part without being a node."""
    newest = select(steps.c.received).order_by(steps.c.step.desc()).limit(1)
    updates = and_(counts.c.address == terms.trainer, counts.c.kind == "updates")
    trainer = TrainerLine(
        address=terms.trainer,
        steps=connection.execute(select(func.count()).select_from(checkpoints)).scalar_one(),
        updates=connection.execute(select(counts.c["count"]).where(updates)).scalar() or 0,
        last=connection.execute(newest).scalar(),
    )
    lines = sorted(_relays(connection, relays), key=lambda line: (-line.bytes, line.url))
    return Others(run=run, trainers=[trainer], relays=lines[:MAX_LINES], authors=authors[:MAX_LINES])


def _relays(connection: Connection, relays: Sequence[KnownRelay]) -> list[RelayLine]:
    """Return what nodes of others say that they received from each relay."""
    columns = served.c.url, nodes.c.operator
    query = select(*columns, func.sum(served.c.bytes), func.count()).join(nodes, nodes.c.address == served.c.node)
    query = query.where(served.c.url.in_([relay.url for relay in relays])).group_by(*columns)
    by_url: dict[str, list[tuple[str, int, int]]] = {relay.url: [] for relay in relays}
    for url, operator, received, sayers in connection.execute(query):
        by_url[url].append((operator, int(received), sayers))
    lines = []
    for relay in relays:
        others = [said for said in by_url[relay.url] if said[0] != relay.operator]
        received, sayers = sum(said[1] for said in others), sum(said[2] for said in others)
        lines.append(
            RelayLine(url=relay.url, operator=relay.operator, listed=relay.listed, bytes=received, nodes=sayers)
        )
    return lines
