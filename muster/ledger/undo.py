"""Remember rows as they were before the chain changed them, so that a reorg costs what it undoes.

Commitments, payments, proofs and recorded events carry their block, and are removed by it. The rows of other tables are
remembered here, in the transaction that changes them, and restored in reverse. Counts that follow from other rows are
not remembered: `tallies` keeps them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, Table, bindparam, delete, insert, select, update

from muster.ledger.tables import metadata, nodes, undo

PRUNED_AT_ONCE: Final = 2_000
"""Most rows that one transaction forgets."""

Key = Mapping[str, Any]


def remember(connection: Connection, block: int, table: Table, key: Key) -> None:
    """Keep the row with this primary key, or that there is none, before an event of a block changes it."""
    row = connection.execute(by_key(table), key).mappings().one_or_none()
    before = None if row is None else json.dumps(dict(row))
    connection.execute(_KEEP, {"block": block, "table": table.name, "key": json.dumps(dict(key)), "before": before})


def changed_after(connection: Connection, block: int, table: Table) -> list[Key]:
    """Return the keys of a table's rows that were changed after a block."""
    keys = select(undo.c.key).where(undo.c.block > block, undo.c.table == table.name).distinct()
    return [json.loads(key) for key in connection.execute(keys).scalars()]


def restore(connection: Connection, block: int) -> None:
    """Make all rows as they were at the end of a block."""
    later = undo.c.block > block
    for row in connection.execute(select(undo).where(later).order_by(undo.c.id.desc())).all():
        table = metadata.tables[row.table]
        here = [table.c[name] == value for name, value in json.loads(row.key).items()]
        change = delete(table) if row.before is None else update(table).values(json.loads(row.before))
        connection.execute(change.where(*here))
    connection.execute(delete(undo).where(later))


def prune(connection: Connection, block: int) -> None:
    """Forget the oldest rows of this block and earlier ones."""
    oldest = select(undo.c.id).where(undo.c.block <= block).order_by(undo.c.id).limit(PRUNED_AT_ONCE)
    connection.execute(delete(undo).where(undo.c.id.in_(oldest)))


_KEEP: Final = insert(undo)


@cache
def by_key(table: Table) -> Any:
    """Return the query for what is remembered of a row, by its primary key."""
    columns = table.c["status", "settled", "withdrawn"] if table is nodes else table.c
    return select(*columns).where(*(column == bindparam(column.name) for column in table.primary_key.columns))
