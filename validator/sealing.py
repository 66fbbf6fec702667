"""Sealing: once an hour has ended, state on chain what this validator vouches for, and show the hour's link.

It seals each hour in which it gave a verdict, in order. It waits until all of its work there is judged and the
orchestrator has taken its verdicts, for a look that comes after its link is not paid; but no longer than its link
can wait. It begins with the hour in which this validator registered, and skips one that can no longer be sealed.
The vouch root commits to what this validator accepted: it is liable for that. The link of its hash chain that it shows
lets anyone draw which rows it replayed, and check the numbers of its looks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from muster.chain.client import Chain
from muster.chain.types import Block
from muster.constants import HOUR_SECONDS
from muster.contracts import runs
from muster.errors import RevertError
from muster.protocol.looks import link_due_at
from muster.protocol.merkle import LeafTree, leaf_of_words
from muster.runtime import telemetry
from muster.runtime.loop import AGAIN, IDLE, Next
from muster.runtime.retries import Repeats
from muster.verification.rules import CommittedWork
from validator.journal import ValidatorJournal
from validator.outbox import closing_hour

EMPTY_ROOT: bytes = bytes(32)
"""Vouch root of an hour in which nothing was accepted."""

SEALING_SECONDS: Final = 300
"""Time before its link is due from which on an hour's seal does not wait for verdicts that are not taken: a link that
comes late would take all looks of the hour."""

log = telemetry.logger("validator")
SEALS = telemetry.counter("validator_seals", "Hours sealed")


def vouch_leaf(c: CommittedWork, anchor: bytes) -> bytes:
    """Return the leaf of an accepted commitment: (node, index, step, anchor, root), as SlashCourt.vouchLeaf.

    The step's anchor says under which draws it was inspected: after a reorg the same root may be wrong.
    """
    return leaf_of_words((int(c.node, 16), c.index, c.step, anchor, c.root))


def vouch_tree(accepted: Sequence[CommittedWork], anchors: Mapping[int, bytes]) -> LeafTree:
    """Return the tree over the accepted commitments of an hour, at least one; `anchors` by step."""
    return LeafTree.from_hashes([vouch_leaf(c, anchors[c.step]) for c in accepted])


def vouch_root(accepted: Sequence[CommittedWork], anchors: Mapping[int, bytes]) -> bytes:
    """Return what a seal commits to."""
    return vouch_tree(accepted, anchors).root if accepted else EMPTY_ROOT


class HourSealer:
    """Seals what can be sealed, one hour a poll."""

    def __init__(self, chain: Chain, journal: ValidatorJournal, run: int, link_of: Callable[[int], bytes]) -> None:
        """`link_of`: returns the link of this validator's hash chain for an hour."""
        self._chain = chain
        self._link_of = link_of
        self._journal = journal
        self._run = run
        self._skipped = 0
        """The last hour that was skipped. What was sealed the chain says: a reorg may take a seal back."""
        self._window: int | None = None
        """Hours after its end in which an hour can be sealed."""
        self._repeats = Repeats(HOUR_SECONDS)

    async def poll(self, head: Block) -> Next:
        """Seal the next hour if it is time. `head`: a block up to which the journal has every event."""
        last = max(await self._last_sealed(), self._skipped)
        if self._window is None:
            self._window = await self._chain.call(runs.unsealed_window_hours())
        hour = self._journal.open_hour(after=last, before=head.timestamp // HOUR_SECONDS)
        if hour is None:
            return IDLE
        if head.timestamp >= (hour + 1 + self._window) * HOUR_SECONDS:  # as Runs._checkSealHour
            return self._skip(hour, f"its time was over {self._window} hours after it")
        if why := self._waits_for(hour, head.timestamp):
            self._log_once("waiting", hour, why)
            return IDLE
        if not self._journal.count(hour, "judged"):
            return self._skip(hour, "nothing in it was judged in time")
        accepted = self._journal.vouched(hour)
        steps = {c.step for c in accepted}
        anchors = {step: (await self._chain.checkpoint(self._run, step)).anchor for step in steps}
        try:
            sealed = runs.seal(self._run, hour, vouch_root(accepted, anchors), self._link_of(hour))
            mined = await self._chain.send(sealed)
        except RevertError as error:
            return await self._refused(hour, error)
        SEALS.inc()
        log.info("sealed", hour=hour, vouched=len(accepted), tx=mined.hash)
        return AGAIN

    def _waits_for(self, hour: int, now: int) -> str:
        """Return why an hour is not sealed yet, or ""."""
        if (pending := self._journal.count(hour, "pending")) and hour > closing_hour(now):
            return f"{pending} commitments of this hour are not judged yet"
        if (unsent := self._journal.verdicts.unsent(hour)) and now < link_due_at(hour) - SEALING_SECONDS:
            return f"the orchestrator has not taken {unsent} verdicts of this hour yet"
        return ""

    async def _refused(self, hour: int, error: RevertError) -> Next:
        if error.name == "SealTooLate":
            return self._skip(hour, str(error))
        if error.name == "SealNotRising" and await self._last_sealed() >= hour:  # an earlier process did
            return AGAIN
        self._log_once("cannot seal yet", hour, str(error))
        return IDLE

    async def _last_sealed(self) -> int:
        return (await self._chain.call(runs.sealer_of(self._chain.signer.address))).last_sealed

    def _skip(self, hour: int, reason: str) -> Next:
        """Go on to the next hour: what could not be judged in time must not hold up what can."""
        log.warning("this hour stays unsealed", hour=hour, reason=reason)
        self._skipped = hour
        return AGAIN

    def _log_once(self, event: str, hour: int, reason: str) -> None:
        if self._repeats.count((f"{event} {hour}", reason), time.monotonic()):
            log.info(event, hour=hour, reason=reason)
