"""The log of a run's events, for live views: each event is kept once, however often it is received."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection, delete, select

from orchestrator.database import insert_once
from orchestrator.tables import MAX_SOURCE, events

MAX_EVENTS: Final = 5_000
_KEPT: Final = 19
"""Characters of a longer source that stay as they are."""
_SWEEP: Final = 256
"""Old rows are deleted when ids pass a multiple of this. Ids have gaps: an insert that is ignored uses one up."""

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
