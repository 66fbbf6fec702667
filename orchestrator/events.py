"""The log of a run's events: each event is kept once, however often it is received."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, delete, literal, select

from muster.protocol.messages import Message
from orchestrator.database import insert_once
from orchestrator.tables import MAX_SOURCE, events

MAX_EVENTS: Final = 5_000
MAX_EVENT_PAGE: Final = 500
_KEPT: Final = 19
"""Characters of a longer source that stay as they are."""
_SWEEP: Final = 256
"""Old rows are deleted when ids pass a multiple of this. Ids have gaps: an insert that is ignored uses one up."""


class EventLine(Message):
    id: int
    kind: str
    time: float
    """Unix seconds (wall clock) at which the orchestrator learned of it."""
    data: dict[str, Any]


class EventPage(Message):
    events: list[EventLine]
    cursor: int
    """What to ask for after this."""


_NEWEST: Final = select(events.c.id).order_by(events.c.id.desc()).limit(2)


def record_event(connection: Connection, kind: str, data: Mapping[str, Any], source: str) -> None:
    """Add an event, unless one from the same `source` is there. Delete the oldest beyond MAX_EVENTS."""
    if len(source) > MAX_SOURCE:  # a database may refuse what is longer than its column
        source = f"{source[:_KEPT]}:{hashlib.sha256(source.encode()).hexdigest()[: MAX_SOURCE - _KEPT - 1]}"
    row = {"kind": kind, "time": time.time(), "data": json.dumps(data), "source": source}
    if not insert_once(connection, events, row):
        return
    last, *before = connection.execute(_NEWEST).scalars()
    if before and before[0] // _SWEEP != last // _SWEEP:
        connection.execute(delete(events).where(events.c.id <= last - MAX_EVENTS))


def newest_events(connection: Connection, limit: int, *conditions: Any) -> list[EventLine]:
    """Return the newest events that meet conditions, newest first."""
    rows = connection.execute(select(events).where(*conditions).order_by(events.c.id.desc()).limit(limit))
    return [EventLine.of(row, data=json.loads(row.data)) for row in rows]


def events_after(connection: Connection, after: int) -> EventPage:
    """Return the events after an id, oldest first."""
    query = select(events).where(after_event(after)).order_by(events.c.id).limit(MAX_EVENT_PAGE)
    lines = [EventLine.of(row, data=json.loads(row.data)) for row in connection.execute(query)]
    return EventPage(events=lines, cursor=lines[-1].id if lines else after)


def after_event(number: int) -> Any:
    """Return the condition that an event comes after one; a number may be larger than any that a column holds."""
    return events.c.id > literal(number, BigInteger)
