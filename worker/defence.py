"""Defending a node: whoever says that its data is missing is shown the storage's receipt, which ends the case.

Nothing else that a node is accused of can be answered by the node itself: jurors re-run the evidence.
"""

from __future__ import annotations

import asyncio
from typing import Final

from muster import telemetry
from muster.chain.contracts import court, runs
from muster.chain.contracts.court import Kind, Outcome
from muster.errors import TRANSIENT
from worker.workplace import Workplace

LOOK_SECONDS: Final = 5.0
"""Pause between two looks; the shortest commit phase of a public run is 13 hours."""

log = telemetry.logger("worker")


class Defender:
    """Looks for open cases against this node, and dismisses those it can."""

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self._helpless: set[int] = set()
        """Cases without a receipt, which the log has named."""

    async def watch(self) -> None:
        """Look for ever."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Dismiss every open case about missing data that there is a receipt against.

        What goes wrong is said in the log and left to the next look: a node that cannot defend itself yet can work.
        """
        try:
            await self._dismiss_open()
        except TRANSIENT as error:
            log.error("a case about missing data is not dismissed yet", error=str(error))

    async def _dismiss_open(self) -> None:
        chain, node = self._place.chain, self._place.node
        left = (await chain.ask(runs.work(node))).open_cases
        number = await chain.ask(court.case_count()) if left else 0
        while left and number:  # newest first, until all that are open have been seen
            case = await chain.ask(court.case_of(number))
            if case.node == node and case.outcome == Outcome.OPEN:
                left -= 1
                if case.kind == Kind.DATA_MISSING:
                    await self._dismiss(number, case.index)
            number -= 1

    async def _dismiss(self, case_id: int, index: int) -> None:
        journal = self._place.journal
        entry, receipt = journal.entry(index), journal.receipt(index)
        if entry is None or receipt is None:
            if case_id not in self._helpless:
                log.error("this journal has no receipt for a case about missing data", case=case_id, index=index)
                self._helpless.add(case_id)
            return
        mined = await self._place.chain.dismiss(case_id, entry.step, receipt)
        log.info("dismissed a case by the storage's receipt", case=case_id, index=index, tx=mined.hash)
