"""Answer cases about missing data with the storage's receipt, which ends them.

A node can answer no other charge itself: jurors re-run the evidence.
"""

from __future__ import annotations

from typing import Final

from muster.contracts import court, runs
from muster.contracts.court import Case, Outcome
from muster.protocol.kinds import kind_of, reason_of
from muster.runtime import telemetry
from muster.runtime.loop import IDLE, Next
from muster.runtime.notify import FOR_GOOD
from worker.context import WorkerContext

POLL_SECONDS: Final = 5.0
"""Pause between two polls; the shortest commit phase of a public run is 13 hours."""

log = telemetry.logger("worker")


class Defender:
    """Polls for open cases against this node, and dismisses those it can."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._without_receipt: set[int] = set()
        """Cases that the log has named."""

    async def dismiss_open(self) -> Next:
        """Dismiss every open case that the journal's receipts answer. Raises TRANSIENT errors."""
        chain, node = self._context.chain, self._context.node
        left = (await chain.call(runs.work(node))).open_cases
        number = await chain.call(court.case_count()) if left else 0
        while left and number:  # newest first, until all that are open have been seen
            case = await chain.call(court.case_of(number))
            if case.node == node and case.outcome == Outcome.OPEN:
                left -= 1
                self._tell(number, case)
                if case.kind == kind_of("data_missing"):
                    await self._dismiss(number, case.index)
            number -= 1
        return IDLE

    def _tell(self, number: int, case: Case) -> None:
        notifier, kind = self._context.notifier, reason_of(case.kind)
        text = (
            f"{notifier.name} is accused of {kind} in commitment {case.index}: case {number} is open against it."
            f" muster slash verify {number} runs the evidence again"
        )
        values = {"case": number, "commitment": case.index, "reason": kind, "challenger": case.challenger}
        notifier.tell("accused", f"case {number}", text, again=FOR_GOOD, **values)

    async def _dismiss(self, case_id: int, index: int) -> None:
        journal = self._context.journal
        entry, receipt = journal.entry(index), journal.receipt(index)
        if entry is None or receipt is None:
            if case_id not in self._without_receipt:
                log.error("this journal has no receipt for a case about missing data", case=case_id, index=index)
                self._without_receipt.add(case_id)
            return
        mined = await self._context.chain.dismiss(case_id, entry.step, receipt)
        log.info("dismissed a case by the storage's receipt", case=case_id, index=index, tx=mined.hash)
