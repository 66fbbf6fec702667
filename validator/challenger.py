"""The challenger: takes this validator's rejections to court where they are beyond the accusing threshold.

Each poll brings what the journal says is due; a restart in between loses nothing. Several validators find the same
thing at once, so they accuse in turns, in an order that differs from node to node (`ruling.turn_of`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from muster.chain.client import Chain, event_of
from muster.chain.types import Block
from muster.contracts import court, registry, runs
from muster.contracts.codec import Transaction
from muster.contracts.court import CaseOpened, Kind, Outcome
from muster.contracts.registry import Status
from muster.errors import CheckError, RevertError, UnreachableError
from muster.protocol.hashes import hash_bytes
from muster.rollouts.leaves import leaf_of
from muster.runtime import telemetry
from muster.runtime.failpoints import failpoint
from muster.verification.bundles import parse_bundle
from muster.verification.evidence import verify_evidence
from muster.verification.rules import CommittedWork
from muster.verification.shown_rows import read_rows
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


@dataclass(frozen=True)
class PendingCase:
    """A case that this validator may open."""

    accused: dict[str, str]
    """Its address, by what the log calls it."""
    commitment: CommittedWork
    close: Callable[[str], None]
    """Notes that a case was opened, or why there will be none."""
    delay: Callable[[float], None]
    """Lets the accused be accused of nothing before this second."""


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
        for judged in self.journal.accusations(time.time(), first=PROVABLE):
            c = judged.commitment
            close = partial(self.journal.close_accusation, c)
            case = PendingCase({"node": c.node}, c, close, partial(self.journal.delay_accusations, c.node))
            await self.bring(case, head, partial(self._accuse, judged, case, head))

    async def bring(self, case: PendingCase, head: Block, accuse: Callable[[int], Awaitable[None]]) -> None:
        """Call `accuse` with the number of open cases against the accused, unless it cannot be accused, now or ever."""
        c, [accused] = case.commitment, case.accused.values()
        node, work, until = await asyncio.gather(
            self.chain.call(registry.node(accused)),
            self.chain.call(runs.work(accused)),
            self.chain.call(runs.challengeable_until(c.node, c.index)),
        )
        if node.status in (Status.JAILED, Status.WITHDRAWN):
            return case.close("moot")
        if self.journal.cases_ended(Outcome.NOT_GUILTY) >= MAX_LOST_CASES:
            log.error("no more accusations: too many cases were lost", node=accused, lost=MAX_LOST_CASES)
            return case.delay(time.time() + SUSPECT_SECONDS)
        if until < head.timestamp:
            return case.close("late")
        try:
            await accuse(work.open_cases)
        except (UnreachableError, CheckError, RevertError) as error:  # others are accused meanwhile
            about = {**case.accused, "index": c.index, "error": str(error)}
            if isinstance(error, RevertError) and error.name not in TEMPORARY:
                log.warning("no case", **about)
                return case.close(error.name or "refused")
            log.warning("cannot accuse yet", **about, hint=error.hint)
            case.delay(time.time() + RETRY_SECONDS)
        return None

    async def open_case(self, case: PendingCase, call: Transaction, **about: object) -> None:
        """Open a case by this call. `about` is what the log says of it."""
        receipt = await self.chain.send(call)
        failpoint("validator.accused")
        case.close("opened")
        CASES.inc()
        log.info("accused", **case.accused, **about, case=event_of(receipt, CaseOpened).case_id)

    def wait(self, case: PendingCase) -> None:
        """Accuse later, since an open case makes this one needless."""
        case.delay(time.time() + max(1.0, self.stagger_seconds))

    async def prove(self, judged: StoredVerdict) -> bool:
        """Show the contract the row that is wrong. Return False where its leaf is good: tokens are not in it."""
        c, kind = judged.commitment, judged.kind
        bundle = parse_bundle(judged.evidence or b"")
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

    async def _accuse(self, judged: StoredVerdict, case: PendingCase, head: Block, open_cases: int) -> None:
        """Prove it, or open a case, unless one of the `open_cases` makes it needless or the evidence does not hold."""
        c, kind, verdict = judged.commitment, judged.kind, judged.verdict
        if kind in PROVABLE and await self.prove(judged):
            return case.close("proven")

        # 1. Wait while a case is open that makes this one needless.
        if open_cases and await self.is_needless(c.node, (kind, c.index), open_cases, head):
            return self.wait(case)

        # 2. Verify the evidence as a juror will, with a freshly loaded model: a false accusation is the worst outcome.
        await self.context.model.reload()
        inspection = await verify_evidence(judged.evidence or b"", kind, c, self.context)
        if not inspection.guilty:
            log.error("not accusing: a second inspection finds nothing", node=c.node, index=c.index, why=inspection.why)
            return case.close("withdrawn")

        # 3. Open the case.
        evidence = hash_bytes(verdict.evidence or "")
        call = court.open_case(c.node, c.index, c.step, c.root, kind, verdict.position or 0, evidence)
        return await self.open_case(case, call, index=c.index, kind=kind.name.lower())

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
