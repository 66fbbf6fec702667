"""Read the log of events as a feed: the newest notable ones, with the names of their nodes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import BigInteger, Connection, func, literal, select

from orchestrator.page.feed import NOTABLE, FeedLine, Names, feed_lines
from orchestrator.summary import EventLine
from orchestrator.tables import events, node_names


def read_feed(connection: Connection, after: int, limit: int) -> tuple[list[FeedLine], int]:
    """Return the newest notable events after an id, oldest first, and the id of the newest event of all."""
    last = connection.execute(select(func.max(events.c.id))).scalar() or 0
    query = select(*events.c["id", "kind", "time", "data"])
    query = query.where(events.c.id > literal(after, BigInteger), events.c.id <= last, events.c.kind.in_(NOTABLE))
    rows = connection.execute(query.order_by(events.c.id.desc()).limit(limit)).all()[::-1]
    found = [EventLine(id=row.id, kind=row.kind, time=row.time, data=json.loads(row.data)) for row in rows]
    return feed_lines(found, _names(connection, found)), last


def _names(connection: Connection, found: Iterable[EventLine]) -> Names:
    """Return the names of the nodes that events are about."""
    values: set[Any] = {value for event in found for value in event.data.values() if isinstance(value, str)}
    addresses = [value for value in values if value.startswith("0x") and len(value) == 42]
    query = select(node_names.c.node, node_names.c.name).where(node_names.c.node.in_(addresses))
    return {row.node: row.name for row in connection.execute(query)}
