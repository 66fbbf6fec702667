"""What waits to be sent to the orchestrator: signed verdicts, in a table of the journal.

A verdict is written before it is sent and stays until it is taken, so a crash in between loses nothing. One that
accuses is held back until a case against its node is on chain: who reads it could else open that case first. It is
sent without a case when the link of its hour is nearly due, since the seal that shows the link waits for it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from muster.constants import HOUR_SECONDS
from muster.contracts.court import Outcome
from muster.errors import TRANSIENT, RefusedError
from muster.protocol.looks import LINK_HOURS
from muster.protocol.messages import Verdict
from muster.runtime import telemetry
from muster.runtime.journal import Journal
from muster.runtime.loop import AGAIN, IDLE, Next
from muster.verification.rules import CommittedWork

AT_ONCE: Final = 16
"""Verdicts sent in one turn."""

MAX_REFUSALS: Final = 10
"""Times the orchestrator may refuse a verdict before it is sent no more."""

NOT_ITS_FAULT: Final = frozenset({401, 403, 404, 408, 425, 429})
"""Statuses that say nothing about a verdict: the orchestrator may not have read the chain as far as we have, so that
it knows neither this validator nor the commitment, clocks may differ, and it may be busy."""

RETRY_SECONDS: Final = 1.0
"""Pause before another try; it grows, up to a minute."""

MAX_RETRY_SECONDS: Final = 60.0

CLOSING_SECONDS: Final = 900
"""Time before the link of an hour is due from which on nothing is waited for: verdicts are sent, the hour is sealed."""

log = telemetry.logger("validator")


def closing_hour(now: int) -> int:
    """Return the last hour whose link is due in CLOSING_SECONDS or earlier. `now`: second of the chain."""
    return (now + CLOSING_SECONDS) // HOUR_SECONDS - LINK_HOURS - 1


@dataclass(frozen=True)
class Outgoing:
    """A verdict that waits to be sent."""

    commitment: CommittedWork
    document: Verdict
    refusals: int
    """Times the orchestrator refused it."""
    seen_at: float
    """Wall-clock second at which its commitment was first seen."""


class Outbox:
    """The journal's verdicts as they are sent. Their state: unsent, sent, or refused."""

    def __init__(self, journal: Journal, commitment: Callable[[sqlite3.Row], CommittedWork]) -> None:
        """Send from this journal. `commitment` reads a row of its table of commitments."""
        self._journal = journal
        self._commitment = commitment

    async def send(self, post: Callable[[Outgoing], Awaitable[None]], now: int) -> Next:
        """Post what is due; AGAIN: more may be. What is not taken is tried again later, and keeps no other waiting.

        `now`: second of the chain.
        """
        due = self.due(time.time(), AT_ONCE, closing_hour(now))
        for item in due:
            try:
                await post(item)
            except RefusedError as error:
                self._refused(item, error)
                continue
            except TRANSIENT:  # the next turn begins with another one
                self.put_off(item.commitment, time.time())
                raise
            self.sent(item.commitment)
        return AGAIN if len(due) == AT_ONCE else IDLE

    def due(self, now: float, limit: int, closing: int = 0) -> list[Outgoing]:
        """Return verdicts to send now, the longest waiting first; none about what a reorg took back.

        closing: the last hour of which none is held back.
        """
        rows = self._journal.rows(
            """SELECT v.*, c.step, c.hour, c.block, c.seen_at FROM verdicts v JOIN commitments c USING (node, idx, root)
               WHERE v.state = 'unsent' AND v.retry_at <= ? AND c.live = 1
                 AND (v.court IS NOT 'waiting' OR c.hour <= ?
                      OR EXISTS (SELECT 1 FROM cases k WHERE k.node = v.node AND k.outcome IN (?, ?)))
               ORDER BY v.retry_at, v.rowid LIMIT ?""",
            *(now, closing, int(Outcome.OPEN), int(Outcome.GUILTY), limit),
        )
        read = Verdict.model_validate_json
        return [Outgoing(self._commitment(row), read(row["document"]), row["refusals"], row["seen_at"]) for row in rows]

    def unsent(self, hour: int) -> int:
        """Return the number of verdicts about an hour's commitments that the orchestrator has not taken yet."""
        query = """SELECT COUNT(*) FROM verdicts v JOIN commitments c USING (node, idx, root)
                   WHERE v.state = 'unsent' AND c.live = 1 AND c.hour = ?"""
        return self._journal.value(query, hour)

    def sent(self, c: CommittedWork) -> None:
        """Note that the orchestrator has taken it."""
        self._set(c, "state = 'sent'")

    def put_off(self, c: CommittedWork, retry_at: float) -> None:
        """Send it later: that it was not taken says nothing about it."""
        self._set(c, "retry_at = ?", retry_at)

    def refused(self, c: CommittedWork, *, retry_at: float | None) -> None:
        """Note that the orchestrator found fault with it. Without a time to try again it is sent no more."""
        state = "refused" if retry_at is None else "unsent"
        self._set(c, "state = ?, refusals = refusals + 1, retry_at = ?", state, retry_at or 0)

    def _refused(self, item: Outgoing, error: RefusedError) -> None:
        """Send it again later: without end, unless the verdict itself is wrong."""
        c, now = item.commitment, time.time()
        its_fault = 400 <= error.status < 500 and error.status not in NOT_ITS_FAULT
        final = its_fault and item.refusals + 1 >= MAX_REFUSALS
        log.warning("a verdict was refused", node=c.node, index=c.index, final=final, error=str(error))
        if its_fault:
            wait = min(MAX_RETRY_SECONDS, RETRY_SECONDS * 2 ** (item.refusals + 1))
            self.refused(c, retry_at=None if final else now + wait)
        else:
            self.put_off(c, now + pause(now - item.seen_at))

    def _set(self, c: CommittedWork, columns: str, *values: object) -> None:
        where = "node = ? AND idx = ? AND root = ?"
        self._journal.execute(f"UPDATE verdicts SET {columns} WHERE {where}", *values, c.node, c.index, c.root)


def pause(age: float) -> float:
    """Return the seconds before the next try of something that was first seen `age` seconds ago."""
    return min(MAX_RETRY_SECONDS, RETRY_SECONDS + age / 8)
