"""What waits to be sent to the orchestrator: signed documents about commitments, in a table of the journal.

A document is written before it is sent and stays until it is taken, so a crash in between loses nothing.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from muster.errors import TRANSIENT, RefusedError
from muster.protocol.messages import Message
from muster.runtime import telemetry
from muster.runtime.journal import Journal
from muster.runtime.loop import AGAIN, IDLE, Next
from muster.verification.rules import CommittedWork

AT_ONCE: Final = 16
"""Documents sent in one turn."""

MAX_REFUSALS: Final = 10
"""Times the orchestrator may refuse a document before it is sent no more."""

TOO_EARLY: Final = 425
"""Status of grades while too few validators have accepted."""

NOT_ITS_FAULT: Final = frozenset({401, 403, 404, 408, TOO_EARLY, 429})
"""Statuses that say nothing about a document: the orchestrator may not have read the chain as far as we have, so that
it knows neither this validator nor the commitment, clocks may differ, and it may be busy."""

RETRY_SECONDS: Final = 1.0
"""Pause before another try; it grows, up to a minute."""

MAX_RETRY_SECONDS: Final = 60.0

log = telemetry.logger("validator")
M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Outgoing(Generic[M]):
    """A document that waits to be sent."""

    commitment: CommittedWork
    document: M
    refusals: int
    """Times the orchestrator refused it."""
    seen_at: float
    """Wall-clock second at which its commitment was first seen."""


class Outbox(Generic[M]):
    """A table of documents. Its columns: node, idx, root, document, state, refusals, retry_at.

    state: unsent, sent, or refused.
    """

    def __init__(
        self,
        journal: Journal,
        table: str,
        document: type[M],
        commitment: Callable[[sqlite3.Row], CommittedWork],
        *,
        after: str = "",
    ) -> None:
        """Send from this table. `commitment` reads a row of the table of commitments.

        Where `after` names another table, a document waits until that one's about the same commitment is sent.
        """
        self._journal = journal
        self._table = table
        self._document = document
        self._commitment = commitment
        first = f"JOIN (SELECT node, idx, root FROM {after} WHERE state = 'sent') USING (node, idx, root)"
        self._tables = f"{table} o JOIN commitments c USING (node, idx, root) {first if after else ''}"

    async def send(self, post: Callable[[Outgoing[M]], Awaitable[None]]) -> Next:
        """Post what is due; AGAIN: more may be. What is not taken is tried again later, and keeps no other waiting."""
        due = self.due(time.time(), AT_ONCE)
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

    def due(self, now: float, limit: int) -> list[Outgoing[M]]:
        """Return documents to send now, the longest waiting first; none about what a reorg took back."""
        rows = self._journal.rows(
            f"""SELECT o.*, c.step, c.hour, c.block, c.seen_at FROM {self._tables}
                WHERE o.state = 'unsent' AND o.retry_at <= ? AND c.live = 1 ORDER BY o.retry_at, o.rowid LIMIT ?""",
            *(now, limit),
        )
        read = self._document.model_validate_json
        return [Outgoing(self._commitment(row), read(row["document"]), row["refusals"], row["seen_at"]) for row in rows]

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

    def _refused(self, item: Outgoing[M], error: RefusedError) -> None:
        """Send it again later: without end, unless the document itself is wrong."""
        c, now = item.commitment, time.time()
        its_fault = 400 <= error.status < 500 and error.status not in NOT_ITS_FAULT
        final = its_fault and item.refusals + 1 >= MAX_REFUSALS
        level = log.debug if error.status == TOO_EARLY else log.warning
        level("a document was refused", what=self._table, node=c.node, index=c.index, final=final, error=str(error))
        if its_fault:
            wait = min(MAX_RETRY_SECONDS, RETRY_SECONDS * 2 ** (item.refusals + 1))
            self.refused(c, retry_at=None if final else now + wait)
        else:
            self.put_off(c, now + pause(now - item.seen_at))

    def _set(self, c: CommittedWork, columns: str, *values: object) -> None:
        self._journal.execute(
            f"UPDATE {self._table} SET {columns} WHERE node = ? AND idx = ? AND root = ?",
            *(*values, c.node, c.index, c.root),
        )


def pause(age: float) -> float:
    """Return the seconds before the next try of something that was first seen `age` seconds ago."""
    return min(MAX_RETRY_SECONDS, RETRY_SECONDS + age / 8)
