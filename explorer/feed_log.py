"""Read the log of events: the newest notable ones for the feed, and all of them page by page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, literal

from explorer.feed import KINDS, NOTABLE, PINNED, FeedLine, Names, feed_lines, folded
from explorer.source import names_of
from muster.ledger.events import EventLine, newest_events
from muster.ledger.tables import events
from muster.protocol.messages import Message

FOLDED_EVENTS: Final = 300
"""Newest notable events that the feed is folded from."""
FEED_LINES: Final = 14
"""Of the overview's feed."""
PINNED_LINES: Final = 6
PINNED_SECONDS: Final = 24 * 3600


class OverviewFeed(Message):
    """What the overview tells, newest first."""

    pinned: list[FeedLine]
    """Cases and convictions of the last day."""
    lines: list[FeedLine]


class EventFeed(Message):
    """All events of a run, or those of one kind, newest first, as sentences."""

    run: int
    kind: str
    """Empty for all."""
    kinds: list[str]
    """That can be asked for."""
    lines: list[FeedLine]
    before: int | None
    """What to ask for after this; None at the end."""


def read_feed(connection: Connection, limit: int) -> list[FeedLine]:
    """Return the newest notable events, oldest first."""
    found = newest_events(connection, limit, _of(NOTABLE))
    return feed_lines(found[::-1], _names(connection, found))


def read_overview_feed(connection: Connection, now: float) -> OverviewFeed:
    """Return the feed of the overview at this Unix second."""
    top = newest_events(connection, PINNED_LINES, _of(PINNED), events.c.time > now - PINNED_SECONDS)
    shown = {event.id for event in top}
    newest = [event for event in newest_events(connection, FOLDED_EVENTS, _of(NOTABLE)) if event.id not in shown]
    names = _names(connection, [*top, *newest])
    return OverviewFeed(pinned=feed_lines(top, names), lines=folded(feed_lines(newest, names))[:FEED_LINES])


def read_events(connection: Connection, run: int, kind: str, before: int | None, limit: int) -> EventFeed:
    """Return all events before an id, newest first; of one kind where `kind` names one."""
    conditions = [_of([kind] if kind else KINDS)]
    if before is not None:
        conditions.append(events.c.id < literal(before, BigInteger))
    found = newest_events(connection, limit + 1, *conditions)
    lines = feed_lines(found[:limit], _names(connection, found), routine=True)
    return EventFeed(
        run=run, kind=kind, kinds=list(KINDS), lines=lines, before=lines[-1].id if len(found) > limit else None
    )


def _of(kinds: Iterable[str]) -> Any:
    return events.c.kind.in_(sorted(kinds))


def _names(connection: Connection, found: Sequence[EventLine]) -> Names:
    """Return the names of the nodes that events are about."""
    values: set[Any] = {value for event in found for value in event.data.values() if isinstance(value, str)}
    addresses = [value for value in values if value.startswith("0x") and len(value) == 42]
    return names_of(connection, addresses)
