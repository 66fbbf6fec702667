"""Look for what a validator's operator should know: gas, a case that it lost, a vote that it missed.

It follows the chain with its own cursor, so that nothing the validator does depends on it. The end is reported by
`muster.runtime.notify.notifying`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from muster.chain.client import Chain
from muster.chain.cursor import EventCursor
from muster.clients.gas_watch import watch_gas
from muster.clients.orchestrator import OrchestratorClient
from muster.contracts import court
from muster.contracts.court import AbsenceReported, CaseResolved, Outcome
from muster.runtime.loop import AGAIN, IDLE, Next
from muster.runtime.notify import FOR_GOOD, Notifier
from muster.runtime.units import Tokens

POLL_SECONDS: Final = 60.0
"""Pause between two looks."""

FILE_NAME: Final = "notifications-cursor.json"


class ValidatorWatch:
    """Looks for one validator. A new one reports nothing that was over before."""

    def __init__(self, chain: Chain, client: OrchestratorClient, notifier: Notifier, state_dir: Path, run: int) -> None:
        self._chain = chain
        self._client = client
        self._notifier = notifier
        path = state_dir / FILE_NAME
        self._cursor = EventCursor(chain, path, (AbsenceReported, CaseResolved), "notifications", run=run)
        self._past = not path.exists()
        """Whether the cursor still reads what happened before notifications were set up."""

    @property
    def _me(self) -> str:
        return self._chain.signer.address

    async def poll(self) -> Next:
        """Look once. Raises TRANSIENT errors."""
        await watch_gas(self._chain, self._client, self._notifier)
        batch = await self._cursor.poll()
        for event in batch:
            if isinstance(event, CaseResolved) and event.outcome == Outcome.NOT_GUILTY and not self._past:
                await self._lost(event)
            elif isinstance(event, AbsenceReported) and event.judge == self._me and not self._past:
                self._absent(event)
        await self._cursor.ack()
        self._past = self._past and batch.more
        return AGAIN if batch.more else IDLE

    async def _lost(self, event: CaseResolved) -> None:
        case = await self._chain.call(court.case_of(event.case_id))
        if case.challenger != self._me:
            return
        fee = str(Tokens(case.fee))
        text = (
            f"{self._notifier.name} lost case {event.case_id}, which it opened: {event.guilty_votes} of {event.reveals}"
            f" jurors found {event.node} guilty, and its fee of {fee} is theirs"
        )
        values = {"case": event.case_id, "reason": "lost_case", "fee": fee}
        self._notifier.tell("fined", f"case {event.case_id}", text, again=FOR_GOOD, **values)

    def _absent(self, event: AbsenceReported) -> None:
        seat = " and lost its seat" if event.expelled else ""
        text = (
            f"{self._notifier.name} was reported absent in case {event.case_id}: it did not reveal a vote in time. It"
            f" paid a deposit out of its lock{seat}. Next: keep its process running, with ether on its key"
        )
        values = {"case": event.case_id, "reason": "absent", "expelled": "yes" if event.expelled else "no"}
        self._notifier.tell("fined", f"absent {event.case_id}", text, again=FOR_GOOD, **values)
