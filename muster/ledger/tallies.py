"""Keep counts of commitments and of what nodes did, since counting them again takes too long once there are many.

Commitments come into the database by `put_commitments`, change by `set_statuses` and leave by `remove_commitments`, and
in no other way, so the tallies are at any time what counting the rows would give. A piece of the chain is counted in
Python and added once. Every function works in the caller's transaction.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from sqlalchemy import Connection, and_, bindparam, delete, exists, func, or_, select, update

from muster.ledger.statements import ANY_OF, add_all, insert_new, insert_once, rows_of_any
from muster.ledger.tables import (
    DEED,
    commitments,
    counts,
    hour_tallies,
    nodes,
    outcomes,
    payments,
    spent,
    summaries,
    uploads,
)

Kind = Literal["accepts", "rejections", "files", "updates"]
"""Of deeds that documents say."""

DAY_HOURS: Final = 24
"""Hours of a day whose work is closed together."""

_NO_CLASS: Final = 0
"""Work class of a node that is not known."""

MAX_BLOCK: Final = (1 << 63) - 1
"""Largest number of a block that a column can hold."""


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
    day: int | None = None
    """The day, counted from 1970, whose work is closed: nothing is taken about it any more. None for any other."""
    ended: str | None = None
    """The status that the summary of that day keeps; None while it follows from what validators say."""
    ended_by: str | None = None
    """The reason there."""
    drawn: str | None = None
    """As its row says."""


def find_commitment(connection: Connection, node: str, index: int) -> CommitmentState | None:
    """Return what the chain has at a node's index, and what became of it."""
    return next(iter(_states(connection, _FIND, {"node": node, "index": index})), None)


OUTCOME: Final = and_(
    outcomes.c.node == commitments.c.node,
    outcomes.c.last >= commitments.c.index,
    outcomes.c.first <= commitments.c.index,
)
"""The condition that an outcome is that of a commitment."""
STATES: Final = (
    select(
        *commitments.c["node", "index", "root", "step", "hour", "status", "reason"],
        func.coalesce(nodes.c.work_class, _NO_CLASS),
        func.coalesce(nodes.c.status, "") == "jailed",
        summaries.c.day,
        *outcomes.c["status", "reason"],
        commitments.c.drawn,
    )
    .outerjoin(nodes, nodes.c.address == commitments.c.node)
    .outerjoin(summaries, summaries.c.day == commitments.c.hour // DAY_HOURS)
    .outerjoin(outcomes, OUTCOME)
)
"""Of what a CommitmentState is made."""
_FIND: Final = STATES.where(commitments.c.node == bindparam("node"), commitments.c.index == bindparam("index"))
"""Made once, as others here: making a statement takes many times as long as running it."""
_WITHIN: Final = STATES.where(commitments.c.block.between(bindparam("first"), bindparam("last")))


def put_commitments(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> list[CommitmentState]:
    """Write commitments as the chain has them, as pending; return the new ones. One with another root is replaced."""
    numbers = [row["block"] for row in rows]
    blocks = {"first": min(numbers), "last": max(numbers)}
    there = set(_states(connection, _WITHIN, blocks))
    new = {_identity(row): {**row, "status": "pending", "reason": None, "spent": False, "drawn": None} for row in rows}
    for one in there:
        new.pop(_identity(one), None)
    insert_new(connection, commitments, list(new.values()))
    found = _states(connection, _WITHIN, blocks)
    replaced = new.keys() - {_identity(one) for one in found}
    for missing in replaced:
        _remove(connection, _states(connection, _FIND, {"node": missing[0], "index": missing[1]}))
        insert_new(connection, commitments, [new[missing]])
    connection.execute(_MARK_WITHIN, blocks)
    found = [one for one in (_states(connection, _WITHIN, blocks) if replaced else found) if _identity(one) in new]
    _count(connection, found, 1)
    return found


def remove_commitments(connection: Connection, block: int) -> None:
    """Delete the commitments that were made after a block, with what was counted and credited of them."""
    _remove(connection, _states(connection, _WITHIN, {"first": block + 1, "last": MAX_BLOCK}))


def _remove(connection: Connection, gone: Sequence[CommitmentState]) -> None:
    _count(connection, gone, -1)
    if keys := [{"of_node": one.node, "of_index": one.index} for one in gone]:
        connection.execute(_DELETE, keys)


def _states(connection: Connection, statement: Any, given: Mapping[str, Any]) -> list[CommitmentState]:
    return [CommitmentState(*row) for row in connection.execute(statement, given)]


def _identity(one: Any) -> tuple[str, int, str]:
    """Return node, index and root of a row or a state."""
    return (one["node"], one["index"], one["root"]) if isinstance(one, dict) else (one.node, one.index, one.root)


def set_statuses(connection: Connection, changes: Iterable[tuple[CommitmentState, str, str | None]]) -> None:
    """Change what became of commitments. Each: as it is now, its status, and the reason."""
    moved = [(one, replace(one, status=status, reason=reason)) for one, status, reason in changes]
    moved = [(earlier, new) for earlier, new in moved if new != earlier]
    if moved:
        rows = [
            {"of_node": new.node, "of_index": new.index, "status": new.status, "reason": new.reason} for _, new in moved
        ]
        connection.execute(_CHANGE, rows)
        _add(connection, [counted for earlier, new in moved for counted in ((earlier, -1), (new, 1))])


def credit(connection: Connection, drawn: Iterable[tuple[CommitmentState, Mapping[str, int]]]) -> None:
    """Note how many groups of commitments drew tasks of which part of the task set, once for each commitment."""
    noted = [replace(one, drawn=json.dumps(groups)) for one, groups in drawn]
    if rows := [{"of_node": one.node, "of_index": one.index, "drawn": one.drawn} for one in noted]:
        connection.execute(_CREDIT, rows)
    add_all(connection, counts, sum((Counter(_credits_of(one)) for one in noted), Counter()))


def pay(connection: Connection, row: Mapping[str, Any]) -> None:
    """Note a payment, once, and add it to what its node was paid of that kind."""
    if insert_once(connection, payments, row):
        _pay(connection, row["node"], row["kind"], int(row["amount"]))


def _pay(connection: Connection, node: str, kind: str, amount: int) -> None:
    column, where = nodes.c[kind], nodes.c.address == node
    earlier = connection.execute(select(column).where(where)).scalar()
    if earlier is not None:
        connection.execute(update(nodes).where(where).values({column: str(int(earlier) + amount)}))


def remove_payments(connection: Connection, block: int) -> None:
    """Delete the payments after a block, and take them from what their nodes were paid."""
    later = payments.c.block > block
    for row in connection.execute(select(payments).where(later)).all():
        _pay(connection, row.node, row.kind, -int(row.amount))
    connection.execute(delete(payments).where(later))


# What members did


def add(connection: Connection, numbers: Mapping[tuple[str, Kind], int]) -> None:
    """Add to what addresses did, so many of each kind."""
    add_all(connection, counts, {(DEED, 0, address, kind, ""): number for (address, kind), number in numbers.items()})


def spent_by(connection: Connection, step: int) -> list[Any]:
    """Return the uploads that a step has used or left out: node, index, and whether it has used the file."""
    query = select(*uploads.c["node", "index"], spent.c.used).join(spent, uploads.c.file_hash == spent.c.file_hash)
    return list(connection.execute(query.where(spent.c.step == step)))


def mark_spent(connection: Connection, node: str, first: int, last: int | None = None) -> None:
    """Note of a node's commitment, or of those up to the `last`, whether a report has used the file or left it out."""
    given = {"of_node": node, "first": first, "last": first if last is None else last}
    connection.execute(_MARK_SOME, given)


def has_batch(connection: Connection, step: int) -> bool:
    """Return whether a step was made of any file."""
    query = select(spent.c.file_hash).where(spent.c.step == step, spent.c.used).limit(1)
    return connection.execute(query).scalar() is not None


def is_used(connection: Connection, file_hash: str) -> bool:
    """Return whether a file went into a batch."""
    query = select(spent.c.used).where(spent.c.file_hash == file_hash)
    return bool(connection.execute(query).scalar())


# How a commitment is counted


def _counts_of(one: CommitmentState) -> dict[tuple[Any, ...], int]:
    """Return what a commitment counts for, by primary keys of `counts`."""
    return _credits_of(one) | {
        ("work", 0, one.node, one.status, one.reason or ""): 1,
        ("step", one.step, str(one.work_class), one.status, ""): 1,
        ("hour", one.hour, one.node, one.status, ""): 1,
    }


def _credits_of(one: CommitmentState) -> dict[tuple[Any, ...], int]:
    drawn = json.loads(one.drawn) if one.drawn else {}
    return {("part", 0, part, one.status, ""): groups for part, groups in drawn.items()}


_OURS: Final = commitments.c.node == bindparam("of_node"), commitments.c.index == bindparam("of_index")
_CHANGE: Final = update(commitments).where(*_OURS).values(status=bindparam("status"), reason=bindparam("reason"))
_DELETE: Final = delete(commitments).where(*_OURS)
_MARK: Final = update(commitments).values(
    spent=or_(
        exists()
        .where(uploads.c.node == commitments.c.node, uploads.c.index == commitments.c.index)
        .where(uploads.c.root == commitments.c.root, spent.c.file_hash == uploads.c.file_hash),
        exists().where(OUTCOME, outcomes.c.spent),
    )
)
_MARK_SOME: Final = _MARK.where(
    commitments.c.node == bindparam("of_node"), commitments.c.index.between(bindparam("first"), bindparam("last"))
)
_MARK_WITHIN: Final = _MARK.where(commitments.c.block.between(bindparam("first"), bindparam("last")))
_CREDIT: Final = update(commitments).where(*_OURS).values(drawn=bindparam("drawn"))
_BUSY: Final = (
    select(*hour_tallies.c["node", "hour"])
    .where(hour_tallies.c.node.in_(ANY_OF))
    .where(hour_tallies.c.hour.between(bindparam("first"), bindparam("last")))
)
_HOURS: Final = (
    update(nodes).where(nodes.c.address == bindparam("of_node")).values(hours=nodes.c.hours + bindparam("number"))
)


def _count(connection: Connection, work: Sequence[CommitmentState], sign: int) -> None:
    """Count commitments, or with a `sign` of -1 count them no more."""
    if not work:
        return
    before = _busy_hours(connection, work)
    _add(connection, [(one, sign) for one in work])
    after = _busy_hours(connection, work)
    hours = Counter(node for node, _ in after)
    hours.subtract(node for node, _ in before)
    if changes := [{"of_node": node, "number": number} for node, number in hours.items() if number]:
        connection.execute(_HOURS, changes)


def _add(connection: Connection, counted: Sequence[tuple[CommitmentState, int]]) -> None:
    """Count commitments, so many times each."""
    numbers = Counter[tuple[Any, ...]]()
    for one, number in counted:
        for key, each in _counts_of(one).items():
            numbers[key] += number * each
    add_all(connection, counts, numbers)


def _busy_hours(connection: Connection, work: Sequence[CommitmentState]) -> set[tuple[str, int]]:
    """Return the hours in which the nodes of this work have made any commitments, among those of this work."""
    hours, owners = [one.hour for one in work], {one.node for one in work}
    return {(node, hour) for node, hour in rows_of_any(connection, _BUSY, owners, first=min(hours), last=max(hours))}
