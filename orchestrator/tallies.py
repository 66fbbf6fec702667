"""Keep counts of commitments and of what nodes did, since counting them again takes too long once there are many.

Commitments come into the database by `put_commitment` and change by `set_status`, and in no other way, so the tallies
are at any time what counting the rows would give. Every function works in the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from sqlalchemy import Connection, Table, and_, bindparam, exists, func, select, update

from orchestrator.database import add_to, insert_once, upsert
from orchestrator.tables import (
    commitments,
    counts,
    credit_tallies,
    credits,
    file_tokens,
    hour_tallies,
    nodes,
    payments,
    spent,
    step_tallies,
    tallies,
    uploads,
)

Kind = Literal["accepts", "rejections", "files", "counted", "tokens", "updates"]
"""Of the table `counts`."""

_NO_CLASS: Final = 0
"""Work class of a node that is not known."""


@dataclass(frozen=True)
class CommitmentState:
    """A commitment as it is counted, and what its status is decided by."""

    node: str
    index: int
    root: str
    step: int
    hour: int
    status: str
    reason: str | None
    work_class: int
    """Of its node."""
    jailed: bool
    """Whether its node was convicted."""


def find_commitment(connection: Connection, node: str, index: int) -> CommitmentState | None:
    """Return what the chain has at a node's index, and what became of it."""
    row = connection.execute(_FIND, {"node": node, "index": index}).one_or_none()
    return CommitmentState(*row) if row else None


_FIND: Final = (
    select(
        *commitments.c["node", "index", "root", "step", "hour", "status", "reason"],
        func.coalesce(nodes.c.work_class, _NO_CLASS),
        func.coalesce(nodes.c.status, "") == "jailed",
    )
    .outerjoin(nodes, nodes.c.address == commitments.c.node)
    .where(commitments.c.node == bindparam("node"), commitments.c.index == bindparam("index"))
)
"""Made once, as others here: making a statement takes many times as long as running it."""


def put_commitment(connection: Connection, row: Mapping[str, Any]) -> None:
    """Write a commitment as the chain has it, as pending; one that is there is replaced."""
    earlier = find_commitment(connection, row["node"], row["index"])
    if earlier is not None:
        _count(connection, earlier, -1)
    upsert(connection, commitments, {**row, "status": "pending", "reason": None})
    mark_spent(connection, row["node"], row["index"])
    new = find_commitment(connection, row["node"], row["index"])
    assert new is not None
    _count(connection, new, 1)


def set_status(connection: Connection, earlier: CommitmentState, status: str, reason: str | None) -> None:
    """Change what became of a commitment. `earlier`: as it is now."""
    new = replace(earlier, status=status, reason=reason)
    if new == earlier:
        return
    changed = {"of_node": earlier.node, "of_index": earlier.index, "status": status, "reason": reason}
    connection.execute(_CHANGE, changed)
    _move(connection, tallies, _by_reason(earlier), _by_reason(new))
    if status != earlier.status:
        _move(connection, step_tallies, _by_step(earlier), _by_step(new))
        _move(connection, hour_tallies, _by_hour(earlier), _by_hour(new))
        for part, groups in _credits(connection, earlier):
            before, after = {"part": part, "status": earlier.status}, {"part": part, "status": status}
            _move(connection, credit_tallies, before, after, groups)


def credit(connection: Connection, node: str, index: int, part: str, groups: int) -> None:
    """Note, once, that so many groups of a commitment drew tasks of a part of the task set."""
    if insert_once(connection, credits, {"node": node, "index": index, "part": part, "groups": groups}):
        status = connection.execute(select(commitments.c.status).where(_is(node, index))).scalar_one()
        add_to(connection, credit_tallies, {"part": part, "status": status}, groups)


def pay(connection: Connection, row: Mapping[str, Any]) -> None:
    """Note a payment, once, and add it to what its node was paid of that kind."""
    if not insert_once(connection, payments, row):
        return
    column, where = nodes.c[row["kind"]], nodes.c.address == row["node"]
    earlier = connection.execute(select(column).where(where)).scalar()
    if earlier is not None:
        total = str(int(earlier) + int(row["amount"]))
        connection.execute(update(nodes).where(where).values({column: total}))


# What members did


def add(connection: Connection, address: str, kind: Kind, number: int) -> None:
    """Add to a count of an address."""
    if number:
        add_to(connection, counts, {"address": address, "kind": kind}, number)


def count_tokens(connection: Connection, file_hash: str, node: str, tokens: int) -> None:
    """Note, once, how many completion tokens the file of a node has."""
    if insert_once(connection, file_tokens, {"file_hash": file_hash, "node": node, "tokens": tokens}):
        add(connection, node, "counted", 1)
        add(connection, node, "tokens", tokens)


def spent_by(connection: Connection, step: int) -> list[Any]:
    """Return the uploads that a step has used or left out: node, index, and whether it has used the file."""
    query = select(*uploads.c["node", "index"], spent.c.used).join(spent, uploads.c.file_hash == spent.c.file_hash)
    return list(connection.execute(query.where(spent.c.step == step)))


def mark_spent(connection: Connection, node: str, index: int) -> None:
    """Note of a commitment whether a report has used its file or left it out."""
    connection.execute(_MARK, {"of_node": node, "of_index": index})


def has_batch(connection: Connection, step: int) -> bool:
    """Return whether a step was made of any file."""
    query = select(spent.c.file_hash).where(spent.c.step == step, spent.c.used).limit(1)
    return connection.execute(query).scalar() is not None


def is_used(connection: Connection, file_hash: str) -> bool:
    """Return whether a file went into a batch."""
    query = select(spent.c.used).where(spent.c.file_hash == file_hash)
    return bool(connection.execute(query).scalar())


# How a commitment is counted


def _is(node: str, index: int) -> Any:
    return and_(commitments.c.node == node, commitments.c.index == index)


def _by_reason(one: CommitmentState) -> dict[str, Any]:
    return {"node": one.node, "status": one.status, "reason": one.reason or ""}


def _by_step(one: CommitmentState) -> dict[str, Any]:
    return {"step": one.step, "work_class": one.work_class, "status": one.status}


def _by_hour(one: CommitmentState) -> dict[str, Any]:
    return {"hour": one.hour, "node": one.node, "status": one.status}


_CHANGE: Final = (
    update(commitments)
    .where(commitments.c.node == bindparam("of_node"), commitments.c.index == bindparam("of_index"))
    .values(status=bindparam("status"), reason=bindparam("reason"))
)
_MARK: Final = (
    update(commitments)
    .where(commitments.c.node == bindparam("of_node"), commitments.c.index == bindparam("of_index"))
    .values(
        spent=exists()
        .where(uploads.c.node == commitments.c.node, uploads.c.index == commitments.c.index)
        .where(uploads.c.root == commitments.c.root, spent.c.file_hash == uploads.c.file_hash)
    )
)
_CREDITS: Final = select(credits.c.part, credits.c.groups).where(
    credits.c.node == bindparam("node"), credits.c.index == bindparam("index")
)
_BUSY: Final = (
    select(func.count())
    .select_from(hour_tallies)
    .where(hour_tallies.c.node == bindparam("node"), hour_tallies.c.hour == bindparam("hour"))
)


def _credits(connection: Connection, one: CommitmentState) -> list[tuple[str, int]]:
    rows = connection.execute(_CREDITS, {"node": one.node, "index": one.index})
    return [(row.part, row.groups) for row in rows]


def _move(
    connection: Connection, table: Table, before: Mapping[str, Any], after: Mapping[str, Any], number: int = 1
) -> None:
    add_to(connection, table, before, -number)
    add_to(connection, table, after, number)


def _count(connection: Connection, one: CommitmentState, sign: int) -> None:
    """Count a commitment, or with a `sign` of -1 count it no more."""
    # 1. The hour: whether it is the node's first commitment in it, or was its last.
    here = {"node": one.node, "hour": one.hour}
    before = connection.execute(_BUSY, here).scalar_one()
    add_to(connection, hour_tallies, _by_hour(one), sign)
    after = connection.execute(_BUSY, here).scalar_one() if sign < 0 else 1
    if (before > 0) != (after > 0):
        hours = update(nodes).where(nodes.c.address == one.node)
        connection.execute(hours.values(hours=nodes.c.hours + sign))
    # 2. The other tallies.
    add_to(connection, tallies, _by_reason(one), sign)
    add_to(connection, step_tallies, _by_step(one), sign)
    for part, groups in _credits(connection, one):
        add_to(connection, credit_tallies, {"part": part, "status": one.status}, sign * groups)
