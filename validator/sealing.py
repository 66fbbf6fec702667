"""Sealing: once an hour has ended and everything in it is judged, say so on chain, and get paid for it.

Each hour with work is sealed by itself and in order, so that the validators' seals meet at the same hours and a quorum
moves the watermark. It begins with the hour in which this validator registered, and passes over one that can be sealed
no more. The vouch root commits to what this validator accepted: it is liable for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from muster import telemetry
from muster.chain.client import Chain
from muster.chain.contracts import runs
from muster.chain.types import Block
from muster.constants import HOUR_SECONDS
from muster.errors import RevertError
from muster.inspection import Commitment
from muster.merkle import LeafTree, leaf_of_words
from validator.journal import ValidatorJournal

NOTHING: bytes = bytes(32)
"""Vouch root of an hour in which nothing was accepted."""

_NEVER: Final = frozenset({"SealTooLate", "HourBeforeJoined"})
"""Answers of the contract to a seal that it will not take at any other time either."""

log = telemetry.logger("validator")
SEALS = telemetry.counter("validator_seals", "Hours sealed")


def vouch_leaf(c: Commitment, anchor: bytes) -> bytes:
    """The leaf of an accepted commitment: (node, index, step, anchor of the step, root), as SlashCourt.vouchLeaf.

    The anchor says under which draws it was looked at: after a reorg the same root may be wrong.
    """
    return leaf_of_words((int(c.node, 16), c.index, c.step, anchor, c.root))


def vouch_tree(accepted: Sequence[Commitment], anchors: Mapping[int, bytes]) -> LeafTree:
    """Over the accepted commitments of an hour, at least one; `anchors` by step."""
    return LeafTree.of([vouch_leaf(c, anchors[c.step]) for c in accepted])


def vouch_root(accepted: Sequence[Commitment], anchors: Mapping[int, bytes]) -> bytes:
    """What a seal commits to."""
    return vouch_tree(accepted, anchors).root if accepted else NOTHING


class Sealing:
    """Seals what can be sealed, one hour a turn."""

    def __init__(self, chain: Chain, journal: ValidatorJournal, run: int) -> None:
        self._chain = chain
        self._journal = journal
        self._run = run
        self._last: int | None = None
        """The hour that was sealed, or passed over, last."""
        self._window: int | None = None
        """Hours after its end in which an hour can be sealed."""
        self._said: object = None

    async def turn(self, head: Block) -> bool:
        """Seal the next hour if it is time; whether it was. `head`: the journal knows everything up to this block."""
        last = self._last
        if last is None:
            last = self._last = await self._chain.ask(runs.last_sealed(self._chain.signer.address))
        if self._window is None:
            self._window = await self._chain.ask(runs.unsealed_window_hours())
        hour = self._journal.open_hour(after=last, before=head.timestamp // HOUR_SECONDS)
        if hour is None:
            return False
        if head.timestamp >= (hour + 1 + self._window) * HOUR_SECONDS:  # as Runs._checkSealHour
            return self._pass_over(hour, f"its time was over {self._window} hours after it")
        if unjudged := self._journal.unjudged(hour):
            self._say("waiting", hour=hour, reason=f"{unjudged} commitments of this hour are not judged yet")
            return False
        accepted = self._journal.vouched(hour)
        steps = {c.step for c in accepted}
        anchors = {step: (await self._chain.checkpoint(self._run, step)).anchor for step in steps}
        root = vouch_root(accepted, anchors)
        self._journal.sealed(hour, root)
        try:
            mined = await self._chain.act(runs.seal(self._run, hour, root))
        except RevertError as error:
            return await self._refused(hour, error)
        SEALS.inc()
        self._last = hour
        log.info("sealed", hour=hour, vouched=len(accepted), tx=mined.hash)
        return True

    async def _refused(self, hour: int, error: RevertError) -> bool:
        if error.name in _NEVER:
            return self._pass_over(hour, str(error))
        if error.name == "SealNotRising":  # an earlier life of this process sealed it
            self._last = await self._chain.ask(runs.last_sealed(self._chain.signer.address))
            return True
        self._say("cannot seal yet", hour=hour, error=str(error))
        return False

    def _pass_over(self, hour: int, reason: str) -> bool:
        """Go on to the next hour: what could not be judged in time must not hold up what can."""
        log.warning("this hour stays unsealed", hour=hour, reason=reason)
        self._last = hour
        return True

    def _say(self, event: str, **values: object) -> None:
        """Log what is news."""
        if (event, values) != self._said:
            self._said = (event, values)
            log.info(event, **values)
