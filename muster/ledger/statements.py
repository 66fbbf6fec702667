"""Rows of the tables in statements of both dialects: made from objects, inserted, replaced, counted, many at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from itertools import islice
from typing import Any, Final

from sqlalchemy import Connection, Row, Table, bindparam, delete
from sqlalchemy.dialects import postgresql, sqlite


def row_of(table: Table, source: object, **others: Any) -> dict[str, Any]:
    """Return a row: what `source` has under the names of the columns, hashes as 0x-hex, enums by name; and `others`."""
    names = _shared_names.get(key := (table, type(source)))
    if names is None:
        names = _shared_names[key] = [name for name in table.columns.keys() if hasattr(source, name)]  # noqa: SIM118
    found = {name: getattr(source, name) for name in names} | others
    return {name: value if type(value) in _PLAIN else _plain(value) for name, value in found.items()}


_PLAIN: Final = frozenset({str, int, bool, float, type(None)})
_shared_names: dict[tuple[Table, type], list[str]] = {}
"""Columns of a table by which a type has something; looking for them takes longer than reading them."""


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return value.name.lower() if isinstance(value, Enum) else value


def insert_once(connection: Connection, table: Table, row: Mapping[str, Any]) -> bool:
    """Insert a row unless one of its unique keys exists; return whether it was inserted.

    The row itself comes back, since drivers need not count rows: psycopg's count of an insert is -1.
    """
    statement = _insertion(connection.dialect.name, table, tuple(_keys(table)))
    return connection.execute(statement, dict(row)).one_or_none() is not None


def upsert(connection: Connection, table: Table, row: Mapping[str, Any]) -> None:
    """Insert a row, or replace the other columns of the one that has its primary key."""
    connection.execute(_replacement(connection.dialect.name, table, tuple(row)), dict(row))


# Statements, made once: making one takes many times as long as running it


@cache
def _insertion(dialect: str, table: Table, returned: tuple[str, ...]) -> Any:
    return _insert(dialect, table).on_conflict_do_nothing().returning(*table.c[returned])


@cache
def _replacement(dialect: str, table: Table, columns: tuple[str, ...]) -> Any:
    statement, keys = _insert(dialect, table), _keys(table)
    changed = {name: statement.excluded[name] for name in columns if name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=changed)


@cache
def _addition(dialect: str, table: Table) -> tuple[Any, Any]:
    """Return what adds to a count, and what removes it where it is 0."""
    statement, keys = _insert(dialect, table), _keys(table)
    total = table.c["count"] + statement.excluded["count"]
    here = [table.c[name] == bindparam(name) for name in keys]
    removal = delete(table).where(*here, table.c["count"] == 0)
    return statement.on_conflict_do_update(index_elements=keys, set_={"count": total}), removal


def _keys(table: Table) -> list[str]:
    return [column.name for column in table.primary_key.columns]


def _insert(dialect: str, table: Table) -> Any:
    return (postgresql if dialect == "postgresql" else sqlite).insert(table)


# Many rows at once

ANY_OF: Final = bindparam("values", expanding=True)
"""In a statement for `rows_of_any`: the values."""
_AT_ONCE: Final = 500


def insert_new(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, without those whose unique keys exist."""
    if rows:
        connection.execute(_insert_quietly(connection.dialect.name, table), rows)


def insert_each(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *returned: str
) -> Sequence[Row[Any]]:
    """Insert rows as `insert_new`; return these columns of the new ones, in any order."""
    statement = _insertion(connection.dialect.name, table, returned)
    return connection.execute(statement, rows).all() if rows else []


def add_all(connection: Connection, table: Table, numbers: Mapping[tuple[Any, ...], int]) -> None:
    """Add to the `count` of rows, by the values of their primary keys; there is no row where it is 0."""
    keys, (addition, removal) = _keys(table), _addition(connection.dialect.name, table)
    rows = [(dict(zip(keys, key, strict=True)), number) for key, number in numbers.items() if number]
    if rows:
        connection.execute(addition, [{**key, "count": number} for key, number in rows])
    if lowered := [key for key, number in rows if number < 0]:
        connection.execute(removal, lowered)


def rows_of_any(connection: Connection, statement: Any, values: Iterable[str], **given: Any) -> Iterator[Any]:
    """Yield what a statement reads of any of ANY_OF; it is run for some of the values at a time."""
    left = iter(values)
    while some := list(islice(left, _AT_ONCE)):
        yield from connection.execute(statement, {**given, "values": some})


@cache
def _insert_quietly(dialect: str, table: Table) -> Any:
    return _insert(dialect, table).on_conflict_do_nothing()
