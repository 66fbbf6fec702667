"""Look for what the operator should know and no other loop of the worker sees: gas, pay to claim, rejections.

The defender reports cases, the claimer claims, and `muster.runtime.notify.notifying` the end.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from muster.clients.gas_watch import watch_gas
from muster.contracts import runs
from muster.runtime.loop import IDLE, Next
from muster.runtime.notify import FOR_GOOD
from muster.runtime.units import Tokens
from worker.context import WorkerContext

POLL_SECONDS: Final = 120.0
"""Pause between two looks, each of which asks the orchestrator for the node's report."""

NAMED: Final = 8
"""Commitments that a text names."""


class WorkerWatch:
    """Looks for one worker."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._first = context.notifier.history.fresh
        """Whether no notification was ever sent: what was rejected before the webhook was set is no news."""

    async def poll(self) -> Next:
        """Look once. Raises TRANSIENT errors."""
        await watch_gas(self._context.chain, self._context.client, self._context.notifier)
        await self._watch_pay()
        await self._watch_verdicts()
        return IDLE

    async def _watch_pay(self) -> None:
        """Notify of pay that is not claimed automatically, once until it is claimed."""
        context, notifier = self._context, self._context.notifier
        if context.settings.worker.auto_claim_hours > 0 or not notifier.wants("claimable"):
            return
        through, amount = await context.chain.call(runs.claimable(context.node))
        if not amount:
            notifier.forget("claimable", "pay")
            return
        pay = str(Tokens(amount))
        text = f"{notifier.name} has {pay} to claim. Next: muster worker claim"
        notifier.tell("claimable", "pay", text, again=FOR_GOOD, amount=pay, through=through)

    async def _watch_verdicts(self) -> None:
        """Tell of commitments that were rejected: for each reason once an hour at most, all new ones together."""
        context, notifier = self._context, self._context.notifier
        if not notifier.wants("rejected"):
            return
        report = await context.client.node(context.node)
        rejections: dict[str, set[int]] = defaultdict(set)
        for said in (one for one in report.verdicts if one.node == context.node and one.run == context.run):
            if not said.accepted and not notifier.is_known("rejected", f"commitment {said.index}"):
                rejections[said.reason or "unknown"].add(said.index)
        first, self._first = self._first, False
        if first:
            notifier.know("rejected", "before the first look")  # so that a restart is none
        for reason, indices in sorted(rejections.items()):
            if first:
                for index in indices:
                    notifier.know("rejected", f"commitment {index}")
            else:
                self._tell(reason, sorted(indices))

    def _tell(self, reason: str, indices: list[int]) -> None:
        notifier, count = self._context.notifier, len(indices)
        named = ", ".join(map(str, indices[:NAMED])) + (f" and {count - NAMED} more" if count > NAMED else "")
        what = f"commitment {named} was" if count == 1 else f"commitments {named} were"
        text = f"{notifier.name}: {what} rejected for {reason}. Next: muster worker why {indices[-1]}"
        covers = [f"commitment {index}" for index in indices]
        notifier.tell("rejected", reason, text, covers=covers, reason=reason, commitments=named, count=count)
