"""What the documents about single things are made from, and what several of them show alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, select

from muster.ledger.attribution import Attribution
from muster.ledger.database import Database
from muster.ledger.queries import Queries
from muster.ledger.run_facts import ChainState
from muster.ledger.tables import node_names
from muster.protocol.terms import Terms

MAX_NAMED: Final = 500
"""Values in one condition of a query: databases limit them."""

T = TypeVar("T")


@dataclass(frozen=True)
class PageSource:
    """One run, as its documents read it."""

    database: Database
    queries: Queries
    attribution: Attribution
    url: str = ""
    """Where visitors find the run's page: what the commands that they are shown begin with."""

    @property
    def run(self) -> int:
        return self.queries.run

    @property
    def terms(self) -> Terms:
        return self.queries.terms

    @property
    def chain(self) -> ChainState:
        """Return what the follower read last."""
        return self.queries.chain


def pieces(values: Iterable[T], size: int = MAX_NAMED) -> Iterator[Sequence[T]]:
    """Yield values in order, at most `size` at a time."""
    left = iter(values)
    while piece := list(islice(left, size)):
        yield piece


def rows_of(connection: Connection, query: Any, column: Any, values: Iterable[Any]) -> list[Any]:
    """Return the rows of a query whose `column` is one of `values`, however many these are."""
    rows = []
    for piece in pieces(dict.fromkeys(values)):
        rows.extend(connection.execute(query.where(column.in_(piece))).all())
    return rows


def names_of(connection: Connection, addresses: Iterable[str]) -> dict[str, str]:
    """Return what operators call these nodes; those without a name are left out."""
    query = select(node_names.c.node, node_names.c.name).where(node_names.c.name != "")
    return {row.node: row.name for row in rows_of(connection, query, node_names.c.node, addresses)}
