"""Read how the run is now, for everybody who watches: what a page shows of it, and what happened since."""

from __future__ import annotations

import time
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

MAX_LINES: Final = 50
"""Lines of the feed in one answer."""


class LiveState(RunNow):
    """What a page that is open asks for every two seconds."""

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
    """Of the newest report."""
    metrics_step: int | None = None
    """Step of that report; None before the first."""
    shown: dict[str, str] = Field(default_factory=dict)
    """The same as the page writes it, by the places that show it."""
    tone: str = ""
    """Of the sentence on what the swarm does: done, wait or go."""
    events: list[FeedLine] = Field(default_factory=list)
    """The newest notable ones, oldest first."""


async def read_live(boards: Boards) -> LiveState:
    """Read the state of the run, with the newest notable events."""
    now, speed = await boards.state(), (await boards.members()).sums.tokens_per_second

    def read(connection: Connection) -> LiveState:
        events = read_feed(connection, MAX_LINES)
        return live_state(connection, boards.known.terms, now, speed).model_copy(update={"events": events})

    return await boards.source.database.read(read)


def live_state(connection: Connection, terms: Terms, now: RunState, speed: float) -> LiveState:
    """Return the state of the run, without events. `speed`: tokens per second."""
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
