"""Claim pay that has matured, for the operator, while the worker runs.

When that is due follows from the chain alone, so a restart changes nothing: as soon as the oldest commitment that is
not settled has been payable for `worker.auto_claim_hours`. After a claim the next is due that many hours later at the
earliest. The committer claims besides when the stake covers no more commitments.
"""

from __future__ import annotations

import asyncio
from typing import Final

from muster.constants import HOUR_SECONDS
from muster.contracts import runs
from muster.errors import RevertError, UnfundedError
from muster.runtime import telemetry
from muster.runtime.loop import IDLE, PollOutcome, Waiting
from muster.runtime.units import Tokens
from worker.context import WorkerContext

POLL_SECONDS: Final = 60.0
"""Pause between two looks at what is payable."""

PAID_OTHERWISE: Final = frozenset({"AlreadySettled", "PayFrozen"})
"""Reverts of claim that mean: somebody else claimed, or accused this node, in the meantime."""

log = telemetry.logger("worker")


def is_due(payable_at: int, now: int, hours: float) -> bool:
    """Return whether to claim at second `now` what could be claimed from `payable_at` on; 0 hours: never."""
    return hours > 0 and now >= payable_at + hours * HOUR_SECONDS


class Claimer:
    """Claims for one worker, one claim at a time."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._one_at_a_time = asyncio.Lock()

    async def poll(self) -> PollOutcome:
        """Claim if that is due. Raises TRANSIENT errors, and no other."""
        try:
            if await self._is_due():
                await self.claim()
        except (RevertError, UnfundedError) as error:  # work goes on: what has matured can be claimed later
            return Waiting(f"the claim failed: {error}")
        return IDLE

    async def _is_due(self) -> bool:
        """Return whether to claim now.

        Raises TRANSIENT errors, and RevertError where a server that lags does not know the commitment yet.
        """
        chain, node = self._context.chain, self._context.node
        work, head = await asyncio.gather(chain.call(runs.work(node)), chain.head())
        if work.settled == work.next:
            return False
        payable_at = await chain.call(runs.payable_at(node, work.settled))
        return is_due(payable_at, head.timestamp, self._context.settings.worker.auto_claim_hours)

    async def claim(self) -> bool:
        """Claim what has matured. Return whether there was anything. Raises RevertError and TRANSIENT errors."""
        chain, node = self._context.chain, self._context.node
        async with self._one_at_a_time:
            (through, amount), work = await asyncio.gather(
                chain.call(runs.claimable(node)), chain.call(runs.work(node))
            )
            if not amount:
                return False
            try:
                mined = await chain.send(runs.claim(node, through))
            except RevertError as error:
                if error.name not in PAID_OTHERWISE:
                    raise
                return False
        count = through + 1 - work.settled
        paid = str(Tokens(amount))
        log.info("claimed", paid=paid, to=work.operator, commitments=count, tx=mined.hash, gas=mined.gas_used)
        self._tell(paid, count, through, "0x" + mined.hash.hex())
        return True

    def _tell(self, paid: str, count: int, through: int, transaction: str) -> None:
        notifier = self._context.notifier
        text = f"{notifier.name} claimed {paid} for {count} commitment{'s' if count > 1 else ''} for its operator"
        notifier.forget("claimable", "pay")
        notifier.tell("claimed", f"through {through}", text, paid=paid, commitments=count, transaction=transaction)
