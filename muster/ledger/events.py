"""The log of a run's events: each event is kept once, however often it is received."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import PlainSerializer
from sqlalchemy import BigInteger, Connection, delete, func, literal, select

from muster.ledger.statements import insert_new
from muster.ledger.tables import MAX_SOURCE, events
from muster.protocol.messages import Message

MAX_EVENTS: Final = 5_000
MAX_EVENT_PAGE: Final = 500
_KEPT: Final = 19
"""Characters of a longer source that stay as they are."""
_SWEEP: Final = 256
"""Old rows are deleted when ids pass a multiple of this. Ids have gaps: an insert that is ignored uses one up."""


_MONEY: Final = ("amount", "slashed", "bounty")


def _in_json(data: dict[str, Any]) -> dict[str, Any]:
    return data | {name: str(data[name]) for name in _MONEY if name in data}


class EventLine(Message):
    id: int
    kind: str
    time: float
    """Unix seconds: of the chain, or when the orchestrator took the document."""
    data: Annotated[dict[str, Any], PlainSerializer(_in_json, when_used="json")]
    """Money as `Wei` has it."""


class EventPage(Message):
    events: list[EventLine]
    cursor: int
    """What to ask for after this."""


_NEWEST: Final = select(func.coalesce(func.max(events.c.id), 0))

Recorded = tuple[str, Mapping[str, Any], str, float]
"""Kind, data, source and Unix second of an event."""


def record_event(connection: Connection, kind: str, data: Mapping[str, Any], source: str, time: float) -> None:
    """Add an event, as `record_events`."""
    record_events(connection, [(kind, data, source, time)])


def record_events(connection: Connection, found: Sequence[Recorded]) -> None:
    """Add the newest events, unless ones from the same `source` are there. Delete the oldest beyond MAX_EVENTS."""
    before = connection.execute(_NEWEST).scalar_one()
    rows = [
        {"kind": kind, "time": time, "data": json.dumps(data), "source": _short(source)}
        for kind, data, source, time in found[-MAX_EVENTS:]
    ]
    insert_new(connection, events, rows)
    last = connection.execute(_NEWEST).scalar_one()
    if before // _SWEEP != last // _SWEEP:
        connection.execute(delete(events).where(events.c.id <= last - MAX_EVENTS))


def _short(source: str) -> str:
    """Return a source that fits into its column."""
    if len(source) <= MAX_SOURCE:
        return source
    return f"{source[:_KEPT]}:{hashlib.sha256(source.encode()).hexdigest()[: MAX_SOURCE - _KEPT - 1]}"


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
