"""Say what workers made in the last day, for who thinks of joining."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, and_, func, select

from explorer.hours import DAY_HOURS, first_hour_of_day
from explorer.source import PageSource
from muster.constants import HOUR_SECONDS
from muster.ledger.tables import hour_tallies, nodes
from muster.protocol.acceptance import UNREFUTED
from muster.protocol.announcements import DayEarnings

DAY_SECONDS: Final = DAY_HOURS * HOUR_SECONDS
ESTIMATE_SECONDS: Final = 300
"""That a worker must have been there for the first estimate."""


@dataclass(frozen=True)
class WorkerDay:
    """What one worker made in the hours that count."""

    joined: int
    """The chain's seconds."""
    made: int
    """Token wei: pay of commitments that were not refuted."""


def earnings_of(connection: Connection, source: PageSource) -> DayEarnings:
    """Return what the workers that are active now made in the last day."""
    counted = and_(
        hour_tallies.c.node == nodes.c.address,
        hour_tallies.c.hour >= first_hour_of_day(source.chain.now),
        hour_tallies.c.status.in_(UNREFUTED),
    )
    query = (
        select(nodes.c.joined, nodes.c.work_class, func.sum(hour_tallies.c.count))
        .join(hour_tallies, counted)
        .where(nodes.c.role == "worker", nodes.c.status == "active")
        .group_by(nodes.c.address, nodes.c.joined, nodes.c.work_class)
    )
    days = [
        WorkerDay(joined, int(count) * source.terms.pay_of(work_class))
        for joined, work_class, count in connection.execute(query)
    ]
    return day_earnings(source.run, days, source.chain.now)


def day_earnings(run: int, days: Iterable[WorkerDay], now: int) -> DayEarnings:
    """Return the quartiles of what workers make in a day. Pure.

    `now`: the chain's seconds. Counted are the hour that has begun and the 23 before it; of who joined in between, the
    time since. What was made in less than a day is extended to one. While no worker has been there for an hour, it is
    an estimate by those who have been there for ESTIMATE_SECONDS.
    """
    begin = first_hour_of_day(now) * HOUR_SECONDS
    shares = [(now - max(begin, day.joined), day.made) for day in days if day.made]
    longest = max((seconds for seconds, _ in shares), default=0)
    least = HOUR_SECONDS if longest >= HOUR_SECONDS else ESTIMATE_SECONDS
    amounts = sorted(made * DAY_SECONDS // seconds for seconds, made in shares if seconds >= least)
    if not amounts:
        return DayEarnings(run=run, workers=0, low=0, median=0, high=0)
    low, median, high = (amounts[(len(amounts) - 1) * quarter // 4] for quarter in (1, 2, 3))
    estimated = longest < HOUR_SECONDS
    return DayEarnings(run=run, workers=len(amounts), low=low, median=median, high=high, estimated=estimated)
