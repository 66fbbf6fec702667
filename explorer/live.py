"""Read how the run is now, for everybody who watches: what a page shows of it, and what happened since."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from pydantic import Field
from sqlalchemy import Connection

from explorer import series
from explorer.boards import Boards
from explorer.feed import FeedLine, state_sentence
from explorer.feed_log import read_feed
from explorer.overview import RunNow, RunState, commitment_counts, convicted_nodes, newest_report, open_cases
from explorer.render import number
from muster.protocol.metric_names import HELD_OUT, REWARD, UNENDED
from muster.protocol.terms import Terms
from muster.protocol.work_rules import run_blocking_reason

MAX_LINES: Final = 100
"""Lines of the feed in one message."""


class LiveState(RunNow):
    """What a watcher gets: all of it at first, and again whenever something changed."""

    stale_since: float | None = None
    """Unix second since which the chain is not read; None while it is."""
    wanted: bool
    waiting_groups: int
    workers: int
    validators: int
    accepted: int
    pending: int
    rejected: int
    open_cases: int
    convicted: int
    tokens_per_second: float
    metrics: dict[str, float | None] = Field(default_factory=dict)
    """Of the newest report, unless the watcher has them."""
    metrics_step: int | None = None
    """Step of that report; None where the watcher has its numbers, and before the first."""
    shown: dict[str, str] = Field(default_factory=dict)
    """The same as the page writes it, by the places that show it."""
    tone: str = ""
    """Of the sentence on what the swarm does: done, wait or go."""
    events: list[FeedLine] = Field(default_factory=list)
    """Notable ones that are new since the last message, oldest first; at first the newest ones."""
    skipped: int = 0
    """Events that were too many to send: about so many, as their numbers have gaps."""


@dataclass(frozen=True)
class Snapshot:
    """The state of the run at a moment."""

    state: LiveState
    """Without events."""
    lines: list[FeedLine]
    """Notable events, oldest first: those after the one that was asked for, or the newest of them."""
    last: int
    """Id of the newest event, notable or not."""
    is_whole: bool
    """Whether these are all the lines after the one that was asked for."""


class LiveSource:
    """Reads snapshots of one run."""

    def __init__(self, boards: Boards) -> None:
        self._boards = boards
        self._database = boards.source.database
        self.identity = self._database.identity

    async def mark(self) -> Hashable:
        """Return what changes with everything that a snapshot says, at little cost."""
        follower, version = self._boards.follower, await self._database.current_version()
        return version, follower.head_number, follower.head_time, self._boards.stale_since

    async def read(self, after: int, limit: int) -> Snapshot:
        """Read a snapshot, with at most `limit` events after an id."""
        now, speed = await self._boards.state(), (await self._boards.members()).sums.tokens_per_second
        terms = self._boards.known.terms

        def read(connection: Connection) -> Snapshot:
            lines, last = read_feed(connection, after, limit + 1)
            return Snapshot(live_state(connection, terms, now, speed), lines[-limit:], last, len(lines) <= limit)

        return await self._database.read(read)


def live_state(connection: Connection, terms: Terms, now: RunState, speed: float) -> LiveState:
    """Return what a watcher gets, without events. `speed`: tokens per second."""
    # 1. What the database says, and in words what follows from it.
    facts, made, report = now.facts, commitment_counts(connection), newest_report(connection)
    cases, reason = open_cases(connection), run_blocking_reason(facts)
    sentence, tone = state_sentence(
        step=facts.step,
        finished=facts.finished,
        blocked=reason,
        demand=now.demand,
        unended=series.newest_number(connection, UNENDED),
        stale=now.stale_since is not None,
    )
    # 2. What the page writes into its places.
    shown = {
        "blocked": sentence,
        "step": number(facts.step),
        "held_out": number(series.newest_number(connection, HELD_OUT), 3),
        "reward": number(series.newest_number(connection, REWARD), 3),
        "tokens_per_second": number(speed, 3),
        "workers": number(len(facts.workers)),
        "validators": number(facts.validators),
        "accepted_groups": number(made.accepted * terms.groups_per_commitment),
        "open_cases": number(cases),
        "block": number(now.block),
    }
    # 3. All of it.
    return LiveState.of(
        now,
        facts,
        now.demand,
        made,
        time=time.time(),
        blocked=reason,
        workers=len(facts.workers),
        open_cases=cases,
        convicted=convicted_nodes(connection),
        tokens_per_second=speed,
        metrics=dict(report.metrics) if report else {},
        metrics_step=report.step if report else None,
        shown=shown,
        tone=tone,
    )
