"""The line-by-line story of a run, for live views: what happened, kept once however often we hear of it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection, delete, func, select

from orchestrator.database import insert_once
from orchestrator.tables import MAX_SOURCE, events

MAX_EVENTS: Final = 5_000
_KEPT: Final = 19
"""Characters of a longer source that stay as they are."""
_SWEEP: Final = 256
"""Old rows are deleted when an id is a multiple of this."""


def tell(connection: Connection, kind: str, data: Mapping[str, Any], source: str) -> None:
    """Add a line to the story, unless one from the same `source` is there. The oldest beyond MAX_EVENTS go."""
    if len(source) > MAX_SOURCE:  # a database may refuse what is longer than its column
        source = f"{source[:_KEPT]}:{hashlib.sha256(source.encode()).hexdigest()[: MAX_SOURCE - _KEPT - 1]}"
    row = {"kind": kind, "time": time.time(), "data": json.dumps(data), "source": source}
    if not insert_once(connection, events, row):
        return
    last = connection.execute(select(func.max(events.c.id))).scalar() or 0
    if last % _SWEEP == 0:
        connection.execute(delete(events).where(events.c.id <= last - MAX_EVENTS))
