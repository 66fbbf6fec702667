"""The challenger: takes to court what this validator rejected beyond the accusing threshold.

Each poll brings what the journal says is due; a restart in between loses nothing. Several validators find the same
thing at once, so they accuse in turns, in an order that differs from node to node (`ruling.turn_of`). Evidence goes to
the orchestrator right before its case: no other node reads it until a case on chain names it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import Final

from muster.chain.client import Chain, event_of
from muster.chain.types import Block
from muster.contracts import court, refutations, registry, runs
from muster.contracts.court import CaseOpened, Outcome
from muster.contracts.registry import Status
from muster.errors import CheckError, RevertError, UnreachableError
from muster.protocol.hashes import content_hash, hash_bytes
from muster.protocol.kinds import kind_of
from muster.rollouts.leaves import leaf_of
from muster.runtime import telemetry
from muster.runtime.failpoints import failpoint
from muster.runtime.loop import IDLE, Next
from muster.verification.bundles import parse_bundle
from validator.context import RunVerificationContext
from validator.evidence import read_rows, verify_evidence
from validator.journal import ValidatorJournal
from validator.juror import Juror
from validator.records import PendingCase
from validator.ruling import MAX_LOST_CASES, RETRY_SECONDS, Action, CaseSnapshot, challenger_ruling

SUSPECT_SECONDS: Final = 3600.0
"""Pause between two attempts at an accusation while that is so; each logs the reason."""

UNSEEN_SECONDS: Final = 3600.0
"""After which it is accused again if no event says that it was: a reorg took the transaction."""

PROVABLE: Final = (kind_of("wrong_draw"), kind_of("out_of_bounds"))
"""What the contract may see itself, in the first row of the evidence."""

TEMPORARY: Final = frozenset(
    {"FreeBalanceShort", "TooManyCases", "TooFewJudges", "ChallengerTooJunior", "CaseOpenAlready"}
)
"""Reverts of an opening that money or time may mend."""

log = telemetry.logger("validator")
CASES = telemetry.counter("validator_cases_opened", "Cases opened by this validator")


@dataclass
class Challenger:
    """Opens the cases of one run, or proves to the contract what it can check itself."""

    chain: Chain
    journal: ValidatorJournal
    context: RunVerificationContext
    juror: Juror
    """Of the same validator: it verifies the evidence of others' cases."""
    stagger_seconds: float
    _opinions: dict[bytes, bool] = field(default_factory=dict, init=False)
    """By charge of an open case in which this validator has no vote: whether its evidence shows guilt."""
    _unknown_since: dict[str, float] = field(default_factory=dict, init=False)
    """Per accused node, the monotonic second since which the chain counts cases that the journal does not have."""

    async def poll(self, head: Block) -> Next:
        """Bring what is due. `head` is a block up to which the journal has every event."""
        charges = {case.charge for case in self.journal.cases() if case.outcome == Outcome.OPEN}
        self._opinions = {charge: guilty for charge, guilty in self._opinions.items() if charge in charges}
        for case in self.journal.accusations(time.time(), first=PROVABLE):
            await self._bring(case, head)
        return IDLE

    async def _bring(self, case: PendingCase, head: Block) -> None:
        """Accuse, unless the accused cannot be accused, now or ever."""
        c = case.commitment
        node, work, until = await asyncio.gather(
            self.chain.call(registry.node(c.node)),
            self.chain.call(runs.work(c.node)),
            self.chain.call(runs.challengeable_until(c.node, c.index)),
        )
        if node.status in (Status.JAILED, Status.WITHDRAWN):
            return self.journal.close_accusation(case, "moot")
        if self.journal.cases_ended(Outcome.NOT_GUILTY) >= MAX_LOST_CASES:
            log.error("no more accusations: too many cases were lost", node=c.node, lost=MAX_LOST_CASES)
            return self._delay(case, SUSPECT_SECONDS)
        if until < head.timestamp:
            return self.journal.close_accusation(case, "late")
        try:
            await self._accuse(case, work.open_cases, head)
        except (UnreachableError, CheckError, RevertError) as error:  # others are accused meanwhile
            if isinstance(error, RevertError) and error.name not in TEMPORARY:
                log.warning("no case", **case.about, error=str(error))
                return self.journal.close_accusation(case, error.name or "refused")
            log.warning("cannot accuse yet", **case.about, error=str(error), hint=error.hint)
            self._delay(case, RETRY_SECONDS)
        return None

    def _delay(self, case: PendingCase, seconds: float) -> None:
        self.journal.delay_accusations(case.commitment.node, time.time() + seconds)

    async def _accuse(self, case: PendingCase, open_cases: int, head: Block) -> None:
        """Prove it, or open a case, unless one of the `open_cases` makes it needless or the evidence does not hold."""
        if case.kind in PROVABLE and await self._prove(case):
            return self.journal.expect_event(case, time.time() + UNSEEN_SECONDS)

        # 1. Wait while a case is open that makes this one needless.
        if open_cases and await self._is_needless(case, open_cases, head):
            return self._delay(case, max(1.0, self.stagger_seconds))

        # 2. Verify the evidence as a juror will, with a freshly loaded model: a false accusation is the worst outcome.
        c = case.commitment
        await self.context.model.reload()
        inspection = await verify_evidence(case.evidence, case.kind, c, self.context)
        if not inspection.guilty:
            log.error("not accusing: a second inspection finds nothing", **case.about, why=inspection.why)
            return self.journal.close_accusation(case, "withdrawn")

        # 3. Open the case.
        await self.context.client.put_evidence(case.evidence)
        target, evidence = court.Target(c.node, c.index, c.step, c.root), hash_bytes(content_hash(case.evidence))
        receipt = await self.chain.send(court.open_case(target, case.kind, case.position, evidence))
        failpoint("validator.accused")
        self.journal.expect_event(case, time.time() + UNSEEN_SECONDS)
        CASES.inc()
        log.info("accused", **case.about, case=event_of(receipt, CaseOpened).case_id)
        return None

    async def _prove(self, case: PendingCase) -> bool:
        """Show the contract the row that is wrong. Return False where its leaf is good: tokens are not in it."""
        c = case.commitment
        bundle = parse_bundle(case.evidence)
        [rollout, *_] = await read_rows(bundle, self.context)
        proof = [hash_bytes(text) for text in bundle.proofs[0]]
        try:
            target = court.Target(c.node, c.index, c.step, c.root)
            mined = await self.chain.send(refutations.prove(target, [refutations.Opening(leaf_of(rollout), proof)]))
        except RevertError as error:
            if error.name == "NothingRefuted":  # only a jury can see what is wrong with the row
                return False
            raise
        log.info("proven", **case.about, tx=mined.hash)
        return True

    async def _is_needless(self, case: PendingCase, open_cases: int, head: Block) -> bool:
        """Return whether one of the open cases against the accused makes this one needless."""
        accused, charge = case.commitment.node, (case.kind, case.commitment.index)
        cases = [one for one in self.journal.cases() if one.outcome == Outcome.OPEN and one.commitment.node == accused]
        # The chain counts more than the journal has: their events are on the way, but not for ever.
        if len(cases) >= open_cases:
            self._unknown_since.pop(accused, None)
        elif time.monotonic() - self._unknown_since.setdefault(accused, time.monotonic()) < RETRY_SECONDS:
            return True
        for one in cases:
            state = CaseSnapshot(
                one,
                head.timestamp,
                mine=one.challenger == self.juror.me,
                same_charge=charge == (one.kind, one.commitment.index),
                tried=one.case_id in self.juror.not_before,
                opinion=self._opinions.get(one.charge),
            )
            if challenger_ruling(state) is Action.VERIFY:
                guilty = await self.juror.verify(one) is True
                self._opinions[one.charge] = guilty
                state = replace(state, opinion=guilty)
            if challenger_ruling(state) is Action.WAIT:
                return True
        return False
