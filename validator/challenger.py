"""The challenger: takes this validator's rejections to court where they are beyond the accusing threshold.

Each poll brings what the journal says is due; a restart in between loses nothing. Several validators find the same
thing at once, so they accuse in turns, in an order that differs from node to node (`ruling.turn_of`).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import Final

from muster.chain.client import Chain, event_of
from muster.chain.types import Block
from muster.contracts import court, registry, runs
from muster.contracts.court import CaseOpened, Kind, Outcome
from muster.contracts.registry import Status
from muster.errors import CheckError, RevertError, UnreachableError
from muster.protocol.hashes import hash_bytes
from muster.rollouts.leaves import leaf_of
from muster.runtime import telemetry
from muster.runtime.failpoints import failpoint
from muster.verification.bundles import parse_bundle
from muster.verification.evidence import read_rows, verify_evidence
from validator.context import RunVerificationContext
from validator.journal import ValidatorJournal
from validator.juror import Juror
from validator.records import StoredVerdict
from validator.ruling import MAX_LOST_CASES, RETRY_SECONDS, Action, CaseSnapshot, ruling

SUSPECT_SECONDS: Final = 3600.0
"""Pause between two attempts at an accusation while that is so; each logs the reason."""

PROVABLE: Final = (Kind.WRONG_DRAW, Kind.OUT_OF_BOUNDS)
"""What the contract may see itself, in the first row of the evidence."""

TEMPORARY: Final = frozenset(
    {"FreeBalanceShort", "TooManyCases", "TooFewJudges", "ChallengerTooJunior", "CaseOpenAlready"}
)
"""Reverts of an opening that money or time may mend."""

log = telemetry.logger("validator")
CASES = telemetry.counter("validator_cases_opened", "Cases opened by this validator")


@dataclass
class Challenger:
    """Opens cases about rejected work of one run, or proves to the contract what it can check itself."""

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

    async def poll(self, head: Block) -> None:
        """Bring what is due. `head` is a block up to which the journal has every event."""
        charges = {case.charge for case in self.journal.cases() if case.outcome == Outcome.OPEN}
        self._opinions = {charge: guilty for charge, guilty in self._opinions.items() if charge in charges}
        for accusation in self.journal.accusations(time.time(), first=PROVABLE):
            c = accusation.commitment
            open_cases = await self._screen(accusation, head)
            if open_cases is None:
                continue
            try:
                if accusation.kind in PROVABLE and await self.prove(accusation):
                    self.journal.close_accusation(c, "proven")
                else:
                    await self.accuse(accusation, open_cases, head)
            except (UnreachableError, CheckError, RevertError) as error:  # others are accused meanwhile
                if isinstance(error, RevertError) and error.name not in TEMPORARY:
                    log.warning("no case", node=c.node, index=c.index, error=str(error))
                    self.journal.close_accusation(c, error.name or "refused")
                    continue
                log.warning("cannot accuse yet", node=c.node, index=c.index, error=str(error), hint=error.hint)
                self.journal.delay_accusations(c.node, time.time() + RETRY_SECONDS)

    async def _screen(self, accusation: StoredVerdict, head: Block) -> int | None:
        """Return the number of open cases against the node, or None where it cannot be accused, now or ever."""
        c = accusation.commitment
        node, work, until = await asyncio.gather(
            self.chain.call(registry.node(c.node)),
            self.chain.call(runs.work(c.node)),
            self.chain.call(runs.challengeable_until(c.node, c.index)),
        )
        if node.status in (Status.JAILED, Status.WITHDRAWN):
            self.journal.close_accusation(c, "moot")
        elif self.journal.cases_ended(Outcome.NOT_GUILTY) >= MAX_LOST_CASES:
            log.error("accusing nobody any more: too many cases were lost", node=c.node, lost=MAX_LOST_CASES)
            self.journal.delay_accusations(c.node, time.time() + SUSPECT_SECONDS)
        elif until < head.timestamp:
            self.journal.close_accusation(c, "late")
        else:
            return work.open_cases
        return None

    async def prove(self, accusation: StoredVerdict) -> bool:
        """Show the contract the row that is wrong. Return False where its leaf is good: tokens are not in it."""
        c, kind = accusation.commitment, accusation.kind
        bundle = parse_bundle(accusation.evidence or b"")
        [rollout, *_] = await read_rows(bundle, self.context)
        proof = [hash_bytes(text) for text in bundle.proofs[0]]
        try:
            target = court.Target(c.node, c.index, c.step, c.root)
            mined = await self.chain.send(court.prove(target, [court.Opening(leaf_of(rollout), proof)]))
        except RevertError as error:
            if error.name == "NothingRefuted":  # only a jury can see what is wrong with the row
                return False
            raise
        log.info("proven", node=c.node, index=c.index, kind=kind.name.lower(), tx=mined.hash)
        return True

    async def accuse(self, accusation: StoredVerdict, open_cases: int, head: Block) -> None:
        """Open a case, unless one of the `open_cases` makes it needless or the evidence does not hold."""
        c, kind, verdict = accusation.commitment, accusation.kind, accusation.verdict
        # 1. Wait while a case is open that makes this one needless.
        if open_cases and await self.is_needless(c.node, (kind, c.index), open_cases, head):
            return self.journal.delay_accusations(c.node, time.time() + max(1.0, self.stagger_seconds))

        # 2. Verify the evidence as a juror will, with a model loaded anew: a false accusation is the worst outcome.
        await self.context.model.reload()
        inspection = await verify_evidence(accusation.evidence or b"", kind, c, self.context)
        if not inspection.guilty:
            log.error("not accusing: a second inspection finds nothing", node=c.node, index=c.index, why=inspection.why)
            return self.journal.close_accusation(c, "withdrawn")

        # 3. Open the case.
        receipt = await self.chain.send(
            court.open_case(
                c.node, c.index, c.step, c.root, kind, verdict.position or 0, hash_bytes(verdict.evidence or "")
            )
        )
        failpoint("validator.accused")
        self.journal.close_accusation(c, "opened")
        CASES.inc()
        case_id = event_of(receipt, CaseOpened).case_id
        log.info("accused", node=c.node, index=c.index, kind=kind.name.lower(), case=case_id)
        return None

    async def is_needless(self, accused: str, charge: tuple[Kind, int], open_cases: int, head: Block) -> bool:
        """Return whether one of the open cases against a node makes one of this kind and index needless."""
        cases = self.journal.cases()
        cases = [case for case in cases if case.outcome == Outcome.OPEN and case.accused == accused]
        # The chain counts more than the journal has: their events are on the way, but not for ever.
        if len(cases) >= open_cases:
            self._unknown_since.pop(accused, None)
        elif time.monotonic() - self._unknown_since.setdefault(accused, time.monotonic()) < RETRY_SECONDS:
            return True
        for case in cases:
            state = CaseSnapshot(
                case,
                head.timestamp,
                mine=case.challenger == self.juror.me,
                same_charge=charge == (case.kind, case.commitment.index),
                tried=case.case_id in self.juror.not_before,
                opinion=self._opinions.get(case.charge),
            )
            if ruling(state, "challenger") is Action.VERIFY:
                guilty = await self.juror.verify(case) is True
                self._opinions[case.charge] = guilty
                state = replace(state, opinion=guilty)
            if ruling(state, "challenger") is Action.WAIT:
                return True
        return False
