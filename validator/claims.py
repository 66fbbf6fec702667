"""Claim what looking earned, once the masters of traps are shown, by what this validator sealed.

An hour goes through these times (`muster.protocol.seals`). Its seals close; the master of each trap epoch in it is
shown, or counts as withheld; prizes are claimed; claims are over, and what is left is settled. Each act is done once:
the contract refuses a second one, and the journal remembers both. What the orchestrator says of tickets and maps is
checked against both signatures, the master and the chain (`OpenedTraps`).

Accusations for rows that may be planted wait here too: until their traps are opened, or ACCUSE_HOURS. The bounty of a
conviction waits a day in court, while validators that had rejected the work ask for their shares.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from muster.chain.client import Chain, event_of
from muster.chain.types import Block
from muster.clients.opened_traps import OpenedTraps
from muster.constants import HOUR_SECONDS
from muster.contracts import court, masters, registry, runs, traps
from muster.contracts.codec import Call, Transaction
from muster.contracts.court import Case, Target
from muster.contracts.masters import Master
from muster.contracts.registry import Status
from muster.contracts.run_terms import Series
from muster.contracts.traps import Withdrawn
from muster.errors import TRANSIENT, MismatchError, RevertError
from muster.protocol.calls import call_hash, is_called
from muster.protocol.masters import epoch_of
from muster.protocol.messages import OpenedTrap
from muster.protocol.seals import claims_end_at, closes_at, masters_due_at
from muster.protocol.terms import Terms
from muster.protocol.traps import is_picked, shown_row, ticket_call
from muster.protocol.windows import end_of
from muster.runtime import telemetry
from muster.runtime.loop import IDLE, Next
from muster.verification.rules import CommittedWork
from validator.journal import ValidatorJournal
from validator.trap_journal import SealedHour, SealedLeaf, TrapCall
from validator.turns import Turns

POLL_SECONDS: Final = 30.0
"""Pause between two looks at what can be claimed."""

ACCUSE_HOURS: Final = 8
"""Full hours after an hour's end until which accusations wait for its traps. A case can be opened for 72."""

ASK_AGAIN_SECONDS: Final = 24 * HOUR_SECONDS
"""Pause before a validator that waits for the pot asks again: it may have lost its place in a reorg."""

FINAL_HOURS: Final = 73
"""Full hours after an hour's end from which nothing about it is tried any more: no case can be opened."""

NOT_YET: Final = frozenset({"TooEarly", "FinesOwed", "NothingToExcuse"})
"""Reverts that time mends: this machine's clock, or its node of the chain, is ahead; prizes will cover the fines."""

HINTS: Final[Mapping[str, str]] = {
    "NextLeafMissing": "a prize needs the next commitment that the validator was called for to be judged in time too",
    "NotSealed": "a seal counts until two hours after its hour: keep the process running, with ether on its key",
    "NotCalled": "who was neither called for the work nor stood by for it has a share only if it opened the case",
    "ClaimsOver": "prizes are claimed until two days after their hour: keep the process running",
}

log = telemetry.logger("validator")
CLAIMS = telemetry.counter("validator_trap_acts", "What was claimed for looking", ("act",))


class _LeafMissingError(MismatchError):
    """The next commitment that this validator was called for is in neither list of the hour."""


@dataclass
class TrapClaimer:
    """Claims for one validator of a run with traps."""

    chain: Chain
    journal: ValidatorJournal
    terms: Terms
    turns: Turns
    opened: OpenedTraps
    run: int
    _not_before: dict[int, int] = field(default_factory=dict, init=False)
    """By hour, the second before which there is nothing to do about it."""

    _ask_again: int = field(default=0, init=False)
    """The second from which it asks for what it is owed although it would not be paid yet."""

    @property
    def me(self) -> str:
        return self.chain.signer.address

    async def poll(self, head: Block) -> Next:
        """Do what is due, in every hour that this validator sealed. `head`: as the journal has every event of."""
        now = head.timestamp
        for hour in self.journal.traps.unclaimed():
            if now < max(closes_at(hour), self._not_before.get(hour, 0)):
                continue
            try:
                if await self._claim_hour(hour, now):
                    self.journal.traps.claimed(hour)
                    self._not_before.pop(hour, None)
            except TRANSIENT as error:  # what is due in other hours does not wait for it
                log.warning("cannot claim yet", hour=hour, error=str(error), hint=error.hint)
        await self._share_bounties(now)
        await self._withdraw(now)
        await self._release_accusations(now)
        return IDLE

    # One hour

    async def _claim_hour(self, hour: int, now: int) -> bool:
        """Do what is due about an hour; return whether nothing is left to do. Raises TRANSIENT errors."""
        sealed, work = self.journal.traps.sealed(hour), self.journal.traps.work_of(hour)
        if sealed is None or not work or now >= end_of(hour) + FINAL_HOURS * HOUR_SECONDS:
            return True
        on_chain = (
            await self.chain.call(runs.vouch_root(self.me, hour)),
            await self.chain.call(runs.rejections(self.me, hour)),
        )
        if on_chain != (sealed.vouch_root, sealed.rejections):
            log.warning("nothing to claim: this journal's seal is not the chain's", hour=hour, hint=HINTS["NotSealed"])
            return True

        finished = True
        for epoch, of_epoch in self._by_epoch(work):
            master = await self.chain.call(masters.master_of(self.run, Series.TRAPS, epoch))
            if 0 < master.shown_at < masters_due_at(hour):
                finished &= await self._claim_shown(sealed, of_epoch, epoch, master, now)
            elif now >= masters_due_at(hour):
                await self._claim_withheld(of_epoch)
            else:
                finished = False
        return await self._excuse(sealed, work) and finished

    def _by_epoch(self, work: Iterable[CommittedWork]) -> list[tuple[int, list[CommittedWork]]]:
        def epoch(c: CommittedWork) -> int:
            return epoch_of(self.terms.trap_series, c.step)

        return [(number, list(some)) for number, some in groupby(sorted(work, key=epoch), key=epoch)]

    async def _claim_shown(
        self, sealed: SealedHour, work: Sequence[CommittedWork], epoch: int, master: Master, now: int
    ) -> bool:
        """Claim for the picked commitments of an epoch; return whether nothing is left to do."""
        ended, finished, waits, every = claims_end_at(sealed.hour), True, False, self.terms.trap_every
        for c in work:
            source = await self.chain.draw_source(c.node)
            given = {"entropy": source.entropy, "node": c.node, "index": c.index, "every": every}
            if not is_picked(master=master.master, **given):
                continue
            trap = await self.opened.get(c, source.entropy, epoch, master.master)
            if now >= ended:
                await self._after_claims(c, trap)
                continue
            finished = False
            leaf = sealed.leaf_of(c.node, c.index)
            rejected = leaf is not None and leaf.root == c.root and leaf.position is not None
            if leaf is None or not rejected or self.journal.traps.done(c.node, c.index, "claim"):
                continue
            if trap is not None and leaf.position in trap.rows:
                await self._claim(sealed, leaf, c, trap, source.entropy)
            elif trap is None:
                waits = True  # its ticket may be here at the next look
        if not finished and not waits:
            self._not_before[sealed.hour] = ended
        return finished

    async def _claim(
        self, sealed: SealedHour, leaf: SealedLeaf, c: CommittedWork, trap: OpenedTrap, entropy: bytes
    ) -> None:
        """Claim the prize of a trap that was found, and show its ticket first if that is left to do."""
        assert leaf.position is not None
        if await self.chain.call(traps.map_root(c.node, c.index)) == bytes(32):
            await self._show(c, trap)
        try:
            following = await self._next_leaf(sealed, c, entropy)
        except _LeafMissingError as error:
            self.journal.traps.did(c.node, c.index, "claim", "NextLeafMissing")
            log.warning("no prize", node=c.node, index=c.index, error=str(error), hint=HINTS["NextLeafMissing"])
            return
        row = shown_row(trap.map, leaf.position)
        await self._act(c, "claim", traps.claim(self.me, finding_of(sealed, leaf, c), row, following))

    async def _show(self, c: CommittedWork, trap: OpenedTrap) -> None:
        try:
            await self.chain.send(ticket_call(c.step, trap.ticket, trap.consent))
        except RevertError as error:
            if error.name != "TicketKnown":  # another finder was faster
                raise

    async def _next_leaf(self, sealed: SealedHour, c: CommittedWork, entropy: bytes) -> traps.Other:
        """Return the leaf about the next commitment of a node and hour that this validator was called for.

        Where there is none, it is one about nothing, which the contract does not read. Raises _LeafMissingError.
        """
        committed_at = (await self.chain.call(runs.commitment(c.node, c.index))).committed_at
        validators = await self.chain.call(registry.validators_at(self.run, committed_at))
        link = self.turns.link_of(c.hour)
        for one in self.journal.traps.work_of(c.hour):
            if one.node != c.node or one.index <= c.index:
                continue
            call = call_hash(link=link, entropy=entropy, node=one.node, index=one.index)
            if not is_called(call, validators, self.terms.accepts_required):
                continue
            leaf = sealed.leaf_of(one.node, one.index)
            if leaf is None or leaf.root != one.root:
                raise _LeafMissingError(f"commitment {one.index} of {one.node} was neither vouched for nor rejected")
            vouched = leaf.position is None
            proof = sealed.vouch_tree.proof(leaf.place) if vouched else []
            return traps.Other(target_of(one), vouched, leaf.position or 0, leaf.salt, leaf.place, proof)
        return traps.Other(target_of(c), False, 0, bytes(32), 0, [])

    async def _after_claims(self, c: CommittedWork, trap: OpenedTrap | None) -> None:
        """Settle what stood by, when claims are over; be paid for a look at a pick without a ticket."""
        _, _, called = await self.turns.call_of(c)
        if self.journal.traps.why(c.node, c.index, "claim") == "done" and not called:
            await self._act(c, "settle", traps.settle(c.node, c.index))
        elif trap is None and called and await self.chain.call(traps.map_root(c.node, c.index)) == bytes(32):
            await self._act(c, "unticketed", traps.claim_unticketed(self.me, target_of(c)))

    async def _claim_withheld(self, work: Sequence[CommittedWork]) -> None:
        """Be paid an equal part of what the commitments of an epoch reserved whose master was not shown in time."""
        for _, some in groupby(work, key=lambda c: c.node):
            first, *more = some
            last = more[-1] if more else first
            await self._act(first, "withheld", traps.claim_withheld(self.me, target_of(first), target_of(last)))

    async def _excuse(self, sealed: SealedHour, work: Sequence[CommittedWork]) -> bool:
        """Take back the fines of rejections that were right; return whether none is left that still may be.

        A rejection is right where a ticket was shown, a case opened, or the node convicted.
        """
        finished, made = True, {(c.node, c.index, c.root): c for c in work}
        for leaf in sealed.rejected:
            c = made.get((leaf.node, leaf.index, leaf.root))
            if c is None or self.journal.traps.done(c.node, c.index, "excuse"):
                continue
            if self.journal.traps.why(c.node, c.index, "claim") == "done":  # it excused; a refused one did not
                continue
            case_id = next(iter(self.journal.traps.cases_about(c.node, c.index)), 0)
            ticket = await self.chain.call(traps.map_root(c.node, c.index)) != bytes(32)
            if case_id or ticket or (await self.chain.call(registry.node(c.node))).status == Status.JAILED:
                await self._act(c, "excuse", traps.excuse(self.me, finding_of(sealed, leaf, c), case_id))
            else:
                finished = False
        return finished

    async def _act(self, c: CommittedWork | Case, act: TrapCall, transaction: Transaction[object]) -> bool:
        """Do something once about a commitment; return whether it was done now."""
        kept = self.journal.traps
        if kept.done(c.node, c.index, act):
            return False
        try:
            mined = await self.chain.send(transaction)
        except RevertError as error:
            if error.name not in NOT_YET:
                kept.did(c.node, c.index, act, error.name or "refused")
                hint = HINTS.get(error.name or "", "")
                log.warning("cannot be claimed", act=act, node=c.node, index=c.index, error=str(error), hint=hint)
            return False
        kept.did(c.node, c.index, act, "done")
        if act in ("unticketed", "withheld"):  # what pays for it may not be in the pot yet
            await self.chain.send(traps.collect(c.node))
        CLAIMS.labels(act=act).inc()
        log.info("claimed for looking", act=act, node=c.node, index=c.index, tx=mined.hash, gas=mined.gas_used)
        return True

    # All hours

    async def _share_bounties(self, now: int) -> None:
        """Ask for a share of each bounty for work that this validator had rejected, and take it a day later."""
        for case_id, rejected in self.journal.traps.bounties(self.me):
            try:
                closes_at = (await self.chain.call(court.bounty_of(case_id))).closes_at
                if rejected and now < closes_at:
                    await self._share_bounty(case_id, rejected)
                elif 0 < closes_at <= now:
                    case = await self.chain.call(court.case_of(case_id))
                    await self._act(case, "bounty", traps.take_bounty(self.me, case_id))
            except TRANSIENT as error:
                log.warning("cannot take a bounty yet", case=case_id, error=str(error), hint=error.hint)

    async def _share_bounty(self, case_id: int, c: CommittedWork) -> None:
        """Ask for a share by what was sealed; a fine that is not excused yet would withhold it."""
        sealed = self.journal.traps.sealed(c.hour)
        leaf = sealed.leaf_of(c.node, c.index) if sealed else None
        if sealed and leaf:
            finding = finding_of(sealed, leaf, c)
            await self._act(c, "excuse", traps.excuse(self.me, finding, case_id))
            await self._act(c, "share", traps.share_bounty(self.me, finding, case_id))

    async def _withdraw(self, now: int) -> None:
        """Ask for what is worth a transaction: half a prize, or all that is left. Where the pot is empty it waits.

        While it waits it asks again when it would be paid as much, or after ASK_AGAIN_SECONDS.
        """
        least = self.terms.trap_prize // 2 if self.journal.traps.unclaimed() else 1
        if await self.chain.call(traps.owed(self.me)) < least:
            return
        asked = traps.withdraw(self.me)
        paid = await self.chain.call(Call(asked.function, asked.arguments))
        if paid < least and now < self._ask_again:
            return
        mined = await self.chain.send(asked)
        paid = event_of(mined, Withdrawn).amount
        self._ask_again = 0 if paid else now + ASK_AGAIN_SECONDS
        log.info("withdrawn" if paid else "waiting for a prize: the pot is empty", amount=paid, tx=mined.hash)

    async def _release_accusations(self, now: int) -> None:
        """Drop accusations for planted rows; let the others go to court once their traps are opened, or late."""
        for c, position in self.journal.traps.held():
            epoch = epoch_of(self.terms.trap_series, c.step)
            master = await self.chain.call(masters.master_of(self.run, Series.TRAPS, epoch))
            ruling, late = "waiting", now >= end_of(c.hour) + ACCUSE_HOURS * HOUR_SECONDS
            if master.shown_at:
                try:
                    source = await self.chain.draw_source(c.node)
                    trap = await self.opened.get(c, source.entropy, epoch, master.master)
                except TRANSIENT as error:
                    if not late:
                        log.warning("cannot tell yet whether to accuse", node=c.node, index=c.index, error=str(error))
                        continue
                else:
                    ruling = "trap" if trap is not None and position in trap.rows else "waiting"
            elif not late:
                continue
            self.journal.traps.release(c, ruling, time.time())
            log.info("a trap was opened" if ruling == "trap" else "no trap: accusing", node=c.node, index=c.index)


def target_of(c: CommittedWork) -> Target:
    return Target(c.node, c.index, c.step, c.root)


def finding_of(sealed: SealedHour, leaf: SealedLeaf, c: CommittedWork) -> traps.Finding:
    """Return a rejection as the contract takes it: with the whole list of its hour."""
    leaves = [one.leaf for one in sealed.rejected]
    return traps.Finding(target_of(c), leaf.position or 0, leaf.salt, leaves, leaf.place)
