"""Rank who takes part: workers, validators, trainers, relays, authors of tasks.

A board has all nodes of a role, as `members.py` read them; its pages, orders and searches are slices of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar

from explorer.current import ListedRelay
from muster.ledger.attribution import AuthorLine
from muster.protocol.messages import Message, Wei

MAX_LINES: Final = 200
"""Lines of one answer."""
WorkerOrder = Literal["accepted", "earned", "day", "uptime", "since", "name"]
ValidatorOrder = Literal["inspections", "wages", "won", "lost", "since", "name"]


class NodeHead(Message):
    """What is known of a node of any role."""

    address: str
    name: str
    """Set by the operator's signature; empty for none."""
    operator: str
    status: str
    since: int
    """The chain's seconds at which it joined."""
    device: str
    """As it said of its machine; empty where it said nothing."""


class WorkerHead(NodeHead):
    """What is known of a worker; of a validator the numbers are 0."""

    work_class: int
    uptime: float
    """Share of the hours since it joined in which it made a commitment."""
    devices: int
    tokens_per_second: float
    """As it said in the last minutes; 0 for one that said nothing."""


class WorkSums(Message):
    """What workers made and earned. Money is in token wei."""

    accepted_groups: int
    day: Wei
    """Pay of the commitments of the hour that has begun and the 23 before it that were not refuted."""
    earned: Wei
    """Claimed in all."""
    in_window: Wei


class WorkerLine(WorkerHead, WorkSums):
    rank: int
    """By the order that was asked for, from 1, before any search."""
    accepted: int
    """Commitments."""
    pending: int
    rejected: int
    void: int


class BoardPage(Message):
    run: int
    offset: int
    total: int
    """Nodes that the search found."""


class WorkerPage(BoardPage):
    order: WorkerOrder
    workers: list[WorkerLine]


class LookSums(Message):
    """What the run's newest list of looks says of a validator."""

    wages: Wei
    """Token wei that its looks were counted for, whether claimed or not."""
    checked: int
    """Rows of its looks that the trainer replayed."""
    found_false: int
    """Of these."""
    barred_until: int
    """Second until which it counts no more; 0: it counts."""


class ValidatorLine(NodeHead, LookSums):
    rank: int
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
    slashed: Wei
    fined: Wei
    """Token wei."""


class ValidatorPage(BoardPage):
    order: ValidatorOrder
    validators: list[ValidatorLine]


class TrainerLine(Message):
    address: str
    steps: int
    """Published on chain."""
    updates: int
    """Reports of steps with a batch."""
    last: float | None
    """When its newest report arrived."""


class Others(Message):
    """Everybody who is no node."""

    run: int
    trainers: list[TrainerLine]
    relays: list[ListedRelay]
    """The owner's first."""
    authors: list[AuthorLine]


# Boards

Line = TypeVar("Line", WorkerLine, ValidatorLine)


@dataclass
class Board(Generic[Line]):
    """All nodes of a role. Lines are made of `rows` when they are asked for."""

    line: type[Line]
    rows: list[dict[str, Any]]
    """What the lines have but for their rank, oldest member first."""
    _orders: dict[str, list[tuple[int, str, dict[str, Any]]]] = field(default_factory=dict)

    def page(self, order: str, offset: int, limit: int, search: str) -> tuple[int, list[Line]]:
        """Return how many nodes the search finds, and so many of them from `offset` on."""
        found = self._by(order)
        if wanted := search.strip().casefold():
            found = [one for one in found if wanted in one[1]]
        return len(found), [self.line(rank=rank, **row) for rank, _, row in found[offset : offset + limit]]

    def _by(self, order: str) -> list[tuple[int, str, dict[str, Any]]]:
        """Return all rows in this order, with their ranks and what a search looks into."""
        if order not in self._orders:
            rows = sorted(self.rows, key=_KEYS.get(order, _most(order)))
            words = (f"{row['name']}\n{row['address']}".casefold() for row in rows)
            self._orders[order] = list(zip(range(1, len(rows) + 1), words, rows, strict=True))
        return self._orders[order]


def _most(column: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda row: -row[column]


_KEYS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "since": lambda row: row["since"],
    "name": lambda row: (not row["name"], row["name"].casefold(), row["address"]),
}
"""Of orders in which the largest number is not first. Nodes without a name come last."""
