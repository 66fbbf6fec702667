"""The juror: this validator's part in every case of the run, from the evidence to its share of the fee.

Each poll reads the chain's time and the journal, and does what is due; a restart in between loses nothing. A
vote and its salt are in the journal before the vote is committed. A validator that cannot verify the evidence
abstains; its own failures never become votes. Evidence that the storage does not have until the last quarter of the
commit phase shows nothing, and is voted down: silence costs judges a part of their stakes. Validators resolve ended
cases in turns, and report who was silent.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Final

from muster.chain.client import Chain, vote_hash
from muster.chain.types import Block
from muster.contracts import court, runs
from muster.contracts.court import BallotState, Outcome
from muster.errors import CheckError, MusterError, NotFoundError, RevertError, UnreachableError
from muster.protocol.kinds import kind_of
from muster.runtime import telemetry
from muster.runtime.failpoints import failpoint
from muster.runtime.loop import AGAIN, IDLE, Next
from validator.context import RunVerificationContext
from validator.evidence import CannotVerifyError, verify_evidence
from validator.journal import ValidatorJournal
from validator.records import Ballot, CaseRecord
from validator.ruling import RETRY_SECONDS, Action, CaseSnapshot, juror_ruling, turn_of

VERIFY_RETRY_SECONDS: Final = 5.0
"""Pause before evidence that could not be verified is tried again."""

LAST_SHARE: Final = 4
"""A juror decides about missing data, or missing evidence, in the last quarter of the commit phase: until then both can
be shown."""

log = telemetry.logger("validator")
VOTES = telemetry.counter("validator_votes", "Votes committed", ("guilty",))


@dataclass
class Juror:
    """Votes in the cases of one run, resolves them, and collects what they owe this validator."""

    chain: Chain
    journal: ValidatorJournal
    context: RunVerificationContext
    stagger_seconds: float
    not_before: dict[int, float] = field(default_factory=dict, init=False)
    """Per case, the monotonic second before which nothing is tried again."""
    _without_evidence: set[int] = field(default_factory=set, init=False)
    """Cases whose evidence the storage says it does not have."""
    _over_since: dict[int, float] = field(default_factory=dict, init=False)
    """Per case, the monotonic second at which it could first be resolved."""

    @property
    def me(self) -> str:
        return self.chain.signer.address

    async def poll(self, head: Block) -> None:
        """Do what is due about cases that are decided or over. `head` is a block up to which the journal has all."""
        for case in self.journal.cases():
            if case.outcome != Outcome.OPEN:
                await self._collect(case, head)
                continue
            if case.ballot != "none":
                await self._advance(case, head)
            await self._resolve(case)

    async def decide(self, head: Block) -> Next:
        """Verify the evidence of the case whose votes are due first; AGAIN: others may wait. `head` as in `poll`.

        That may take a replay, so it is a loop beside that of votes.
        """
        cases = [case for case in self.journal.cases() if case.outcome == Outcome.OPEN and case.ballot == "none"]
        for case in sorted(cases, key=lambda case: case.commit_ends):
            if await self._advance(case, head) is Action.VERIFY:
                return AGAIN
        return IDLE

    async def verify(self, case: CaseRecord) -> bool | None:
        """Return whether the evidence of a case shows guilt by this validator's own measurements.

        None: it cannot verify it, and abstains. The challenger chose the evidence; what it breaks stays in its case.
        """
        try:
            try:
                data = await self.context.client.get_evidence(case.evidence)
            except (UnreachableError, CheckError) as error:
                if isinstance(error, NotFoundError):
                    self._without_evidence.add(case.case_id)
                raise CannotVerifyError(f"the evidence cannot be fetched: {error}") from error
            opened_in = await self.chain.block_hash(case.block)
            inspection = await verify_evidence(data, case.kind, case.commitment, self.context, opened_in)
        except CannotVerifyError as error:
            log.warning("evidence cannot be verified yet", case=case.case_id, reason=str(error))
            return None
        except MusterError:
            raise
        except Exception:
            log.exception("the evidence of a case breaks its verification", case=case.case_id)
            return None
        log.info("evidence verified", case=case.case_id, guilty=inspection.guilty, why=inspection.why)
        return inspection.guilty

    # Voting

    async def _advance(self, case: CaseRecord, head: Block) -> Action | Ballot:
        """Take the next step in a case, if one is due, and return which."""
        action: Action | Ballot = Action.WAIT
        try:
            action = juror_ruling(await self._state(case, head))
            if action is Action.VERIFY:
                await self._decide(case, head)
            elif action is Action.COMMIT:
                await self._commit(case)
            elif action is Action.REVEAL:
                await self._reveal(case)
            elif isinstance(action, str):
                if action == "late" and case.ballot == "committed":
                    log.error("did not reveal in time, the deposit is lost", case=case.case_id)
                elif action == "late":
                    log.error("did not vote in time", case=case.case_id)
                self.journal.set_ballot(case, action)
        except RevertError as error:
            if error.name != "CaseEnded":  # the event that says so is on its way
                log.warning("a vote was refused", case=case.case_id, error=str(error), hint=error.hint)
                self.not_before[case.case_id] = time.monotonic() + RETRY_SECONDS
        return action

    async def _state(self, case: CaseRecord, head: Block) -> CaseSnapshot:
        """Read from the chain what the next step depends on."""
        mine, judge, ballot, commits = case.challenger == self.me, False, BallotState.NONE, 0
        if case.ballot == "none" and not mine:
            judge = await self.chain.call(court.is_judge(case.case_id, self.me))
        elif case.ballot in ("sealed", "committed", "revealed"):
            ballot = (await self.chain.call(court.ballot(case.case_id, self.me))).state
        if case.ballot == "committed" and head.timestamp < case.commit_ends:
            commits = (await self.chain.call(court.case_of(case.case_id))).commits
        return CaseSnapshot(
            case,
            head.timestamp,
            mine=mine,
            paused=time.monotonic() < self.not_before.get(case.case_id, 0),
            judge=judge,
            ballot=ballot,
            commits=commits,
            cure_seconds=self.context.rules.terms.commit_phase // LAST_SHARE,
        )

    async def _decide(self, case: CaseRecord, head: Block) -> None:
        """Verify the evidence and write the vote down, unless the storage's receipt ends the case."""
        if case.kind == kind_of("data_missing") and await self._dismiss(case):
            self.not_before[case.case_id] = time.monotonic() + RETRY_SECONDS  # the event that says so is on its way
            return
        self._without_evidence.discard(case.case_id)
        guilty = await self.verify(case)
        phase = self.context.rules.terms.commit_phase // LAST_SHARE
        if case.case_id in self._without_evidence and head.timestamp >= case.commit_ends - phase:
            log.warning("voting not guilty: the storage has no evidence", case=case.case_id)
            guilty = False
        if guilty is None:
            self.not_before[case.case_id] = time.monotonic() + VERIFY_RETRY_SECONDS
            return
        self.journal.seal_ballot(case, guilty, secrets.token_bytes(32))

    async def _dismiss(self, case: CaseRecord) -> bool:
        """Dismiss a case about a file that was there before the commitment, which its worker did not do itself.

        Return whether it was dismissed. A file that came later is no reason: the case ends cured, at its node's cost.
        """
        c = case.commitment
        try:
            upload = await self.context.upload(c)
        except (UnreachableError, CheckError):
            return False
        made = await self.chain.call(runs.commitment(c.node, c.index))
        if upload.receipt.stored_at > made.committed_at:
            return False
        mined = await self.chain.dismiss(case.case_id, c.step, upload.receipt)
        log.info("dismissed by the storage's receipt", case=case.case_id, tx=mined.hash)
        return True

    async def _commit(self, case: CaseRecord) -> None:
        guilty, salt = case.vote
        digest = vote_hash(case.case_id, self.me, guilty, salt)
        await self.chain.send(court.commit_vote(case.case_id, case.charge, digest))
        failpoint("validator.voted")
        VOTES.labels(guilty=str(guilty).lower()).inc()
        log.info("voted", case=case.case_id)
        self.journal.set_ballot(case, "committed")

    async def _reveal(self, case: CaseRecord) -> None:
        guilty, salt = case.vote
        await self.chain.send(court.reveal_vote(case.case_id, guilty, salt))
        log.info("revealed", case=case.case_id, guilty=guilty)
        self.journal.set_ballot(case, "revealed")

    # Ending

    async def _resolve(self, case: CaseRecord) -> None:
        """Resolve a case that is over, when it is this validator's turn."""
        if not await self.chain.call(court.is_resolvable(case.case_id)):
            return
        since = self._over_since.setdefault(case.case_id, time.monotonic())
        rank = turn_of(self.me, await self.chain.validators(self.context.rules.run), f"resolve {case.case_id}")
        if time.monotonic() - since < rank * self.stagger_seconds:
            return
        try:
            mined = await self.chain.send(court.resolve(case.case_id))
        except RevertError as error:
            log.info("not resolved", case=case.case_id, error=str(error))
            return
        log.info("resolved", case=case.case_id, tx=mined.hash)

    async def _collect(self, case: CaseRecord, head: Block) -> None:
        """Collect what an ended case owes this validator as a judge, until nothing is left where it is confirmed."""
        owed = court.collectable(case.case_id, self.me)
        if case.ballot != "sealed" and await self.chain.call(owed):
            mined = await self.chain.send(court.collect(case.case_id, self.me))
            log.info("collected", case=case.case_id, tx=mined.hash)
            return
        if any(await self.chain.call_all([owed], head.number - self.chain.settings.confirmations)):
            return
        if case.ballot == "revealed":
            await self._report_absent(case)
        self.journal.set_ballot(case, "done")

    async def _report_absent(self, case: CaseRecord) -> None:
        """Report the judges that did not reveal in a case in which this validator did. The first to do so is paid."""
        if case.outcome not in (Outcome.GUILTY, Outcome.NOT_GUILTY, Outcome.NO_QUORUM, Outcome.CURED):
            return
        for judge in await self.chain.validators(self.context.rules.run):
            state = (await self.chain.call(court.ballot(case.case_id, judge))).state
            if state not in (BallotState.NONE, BallotState.COMMITTED):
                continue
            if not await self.chain.call(court.is_judge(case.case_id, judge)):
                continue
            try:
                mined = await self.chain.send(court.report_absence(case.case_id, judge))
            except RevertError as error:  # reported by another, or for another case of the day
                log.info("not reported", case=case.case_id, judge=judge, error=str(error))
                continue
            log.info("reported an absent judge", case=case.case_id, judge=judge, tx=mined.hash)
