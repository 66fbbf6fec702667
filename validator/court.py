"""Going to court and sitting in it: accusations of this validator, and its part in every case of the run.

Each turn looks at the chain's time and at the journal, and does whatever is due; a restart in between loses nothing.
A vote and its salt are in the journal before the vote is committed. Who cannot tell abstains: no vote is cast for
reasons of one's own trouble. Several validators see the same thing at once, so they take turns in opening a case and
in ending one, in an order that differs from case to case.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Final

from eth_utils.crypto import keccak

from muster import telemetry
from muster.chain.client import Chain, event_of, vote_hash
from muster.chain.contracts import court, registry, runs
from muster.chain.contracts.court import BallotState, CaseOpened, Kind, Outcome
from muster.chain.contracts.registry import Status
from muster.chain.types import Block, kind_of
from muster.errors import CheckError, MalformedError, MusterError, RevertError, UnreachableError
from muster.evidence import EvidenceBundle, Ruling, parse_bundle, read_rows, verify_evidence
from muster.failpoints import failpoint
from muster.http import OrchestratorClient
from muster.inspection import Commitment
from muster.rollouts.leaves import leaf_of
from validator.bench import RunBench
from validator.journal import ValidatorJournal
from validator.records import Accusation, CaseFile

MAX_LOST_CASES: Final = 3
"""Cases that may end not guilty before this validator accuses nobody any more: its own machine is suspect."""

SUSPECT_SECONDS: Final = 3600.0
"""Pause between two looks at an accusation while that is so; each says so in the log."""

RETRY_SECONDS: Final = 30.0
"""Pause after something that money or time may mend."""

CURE_SHARE: Final = 4
"""About missing data a judge makes up its mind in the last quarter of the commit phase: until then it can be cured."""

PROOFS: Final = {Kind.WRONG_DRAW: court.prove_wrong_draw, Kind.OUT_OF_BOUNDS: court.prove_out_of_bounds}
"""What the contract may see itself, from the first row of the evidence."""

_AS_IT_SHOULD_BE: Final = frozenset({"LeafIsAsDrawn", "LeafInBounds"})
"""Answers of the contract to a proof whose leaf shows nothing: what is wrong with the row is for a jury to see."""

_PASSING: Final = frozenset({"FreeBalanceShort", "TooManyCases", "TooFewJudges"})

log = telemetry.logger("validator")
CASES = telemetry.counter("validator_cases_opened", "Cases opened by this validator")
VOTES = telemetry.counter("validator_votes", "Votes committed", ("guilty",))


class Court:
    """This validator's business in court."""

    def __init__(
        self,
        chain: Chain,
        client: OrchestratorClient,
        journal: ValidatorJournal,
        bench: RunBench,
        stagger_seconds: float,
    ) -> None:
        self.chain = chain
        self.client = client
        self.journal = journal
        self.rules = bench.rules
        self.bench = bench
        self.stagger_seconds = stagger_seconds
        self.me = chain.signer.address
        self._not_before: dict[int, float] = {}
        """Per case, the monotonic second before which nothing is tried again."""
        self._over_since: dict[int, float] = {}
        """Per case, the monotonic second at which it could first be resolved."""
        self._opinions: dict[bytes, bool] = {}
        """By charge of an open case in which this validator has no vote: whether its evidence shows guilt."""
        self._unknown_since: dict[str, float] = {}
        """Per accused node, the monotonic second since which the chain counts cases that the journal does not know."""

    async def turn(self, head: Block) -> None:
        """Do what is due. `head` is a block up to which the journal knows everything."""
        cases = self.journal.cases()
        undecided = [case for case in cases if case.outcome == Outcome.OPEN and case.ballot == "none"]
        charges = {case.charge for case in cases if case.outcome == Outcome.OPEN}
        self._opinions = {charge: guilty for charge, guilty in self._opinions.items() if charge in charges}
        # What has a deadline comes first: to decide may take a replay.
        for case in cases:
            if case.outcome != Outcome.OPEN:
                await self._collect(case)
                continue
            if case.ballot != "none":
                await self._judge(case, head)
            await self._end(case)
        for case in undecided:
            await self._judge(case, head)
        for accusation in self.journal.accusations(time.time(), before=PROOFS.keys()):
            await self._accuse(accusation, head)

    # Accusing

    async def _accuse(self, accusation: Accusation, head: Block) -> None:
        c = accusation.commitment
        node, work = await self.chain.ask(registry.node(c.node)), await self.chain.ask(runs.work(c.node))
        if node.status in (Status.JAILED, Status.WITHDRAWN):
            return self._close(accusation, "moot")
        if self.journal.cases_ended(Outcome.NOT_GUILTY) >= MAX_LOST_CASES:
            log.error("accusing nobody any more: too many cases were lost", node=c.node, lost=MAX_LOST_CASES)
            return self.journal.delay_accusations(c.node, time.time() + SUSPECT_SECONDS)
        if await self.chain.ask(runs.challengeable_until(c.node, c.index)) < head.timestamp:
            return self._close(accusation, "late")
        try:
            await self._bring(accusation, work.open_cases, head)
        except (UnreachableError, CheckError) as error:  # others are accused meanwhile
            log.warning("cannot accuse yet", node=c.node, index=c.index, error=str(error))
            return self.journal.delay_accusations(c.node, time.time() + RETRY_SECONDS)
        except RevertError as error:
            if error.name in _PASSING:
                log.warning("cannot accuse yet", node=c.node, index=c.index, error=str(error), hint=error.hint)
                return self.journal.delay_accusations(c.node, time.time() + RETRY_SECONDS)
            log.warning("no case", node=c.node, index=c.index, error=str(error))
            self._close(accusation, error.name or "refused")
        return None

    async def _bring(self, accusation: Accusation, open_cases: int, head: Block) -> None:
        """Prove it to the contract, or open a case, unless one that will do is under way. `open_cases`: against the
        node, as the chain counts them."""
        c = accusation.commitment
        bundle = parse_bundle(self.journal.evidence(c) or b"")
        if accusation.kind in PROOFS and await self._prove(accusation, bundle):
            self._close(accusation, "proven")
        elif open_cases and await self._is_tried(accusation, open_cases, head):
            self.journal.delay_accusations(c.node, time.time() + max(1.0, self.stagger_seconds))
        elif await self._still_convinced(accusation, bundle):
            await self._open(accusation)

    async def _is_tried(self, accusation: Accusation, open_cases: int, head: Block) -> bool:
        """Whether a case is under way that makes one of this accusation needless.

        Any other is no reason to wait: an accomplice could open one after the other, on evidence that nobody can have,
        until it is too late to accuse. A second case beside a good one costs little: when the node is convicted, it is
        moot, and its fee comes back.
        """
        node = accusation.commitment.node
        cases = [case for case in self.journal.cases() if case.outcome == Outcome.OPEN and case.commitment.node == node]
        if len(cases) >= open_cases:
            self._unknown_since.pop(node, None)
        elif time.monotonic() - self._unknown_since.setdefault(node, time.monotonic()) < RETRY_SECONDS:
            return True
        for case in cases:
            if await self._makes_needless(case, accusation, head):
                return True
        return False

    async def _makes_needless(self, case: CaseFile, accusation: Accusation, head: Block) -> bool:
        """Whether an open case is this validator's own, or one in which it thinks the node guilty."""
        if head.timestamp >= case.reveal_ends + RETRY_SECONDS:
            return False  # a reorg took it, or nobody ends it
        same = (accusation.kind, accusation.commitment.index) == (case.kind, case.commitment.index)
        if case.kind == Kind.DATA_MISSING and not same:
            return False  # it may end as soon as the data is shown, whatever else the node did
        if case.challenger == self.me:
            return True
        if case.guilty is not None:
            return case.guilty
        if case.ballot == "none" and case.kind != Kind.DATA_MISSING:
            return case.case_id not in self._not_before  # the next turn begins with looking at it
        return await self._opinion(case)

    async def _opinion(self, case: CaseFile) -> bool:
        """Whether the evidence of a case shows guilt to a validator that has no vote, or none yet; looked at once."""
        if case.charge not in self._opinions:
            self._opinions[case.charge] = (await self._look(case)).guilty is True
        return self._opinions[case.charge]

    async def _open(self, accusation: Accusation) -> None:
        c = accusation.commitment
        receipt = await self.chain.act(
            court.open_case(
                c.node,
                c.index,
                c.step,
                c.root,
                accusation.kind,
                accusation.position,
                bytes.fromhex(accusation.evidence[2:]),
            )
        )
        failpoint("validator.accused")
        self._close(accusation, "opened")
        CASES.inc()
        case_id = event_of(receipt, CaseOpened).case_id
        log.info("accused", node=c.node, index=c.index, kind=accusation.kind.name.lower(), case=case_id)

    async def _still_convinced(self, accusation: Accusation, bundle: EvidenceBundle) -> bool:
        """Look at the evidence as a juror will, with a model loaded anew: a false accusation is the worst outcome."""
        c = accusation.commitment
        await self.bench.model.reload()
        ruling = await self._verify(bundle, c)
        if ruling.guilty is None:
            raise UnreachableError(f"the evidence against {c.node} cannot be checked again: {ruling.why}")
        if not ruling.guilty:
            log.error("not accusing: a second look finds nothing", node=c.node, index=c.index, why=ruling.why)
            self._close(accusation, "withdrawn")
        return ruling.guilty

    async def _prove(self, accusation: Accusation, bundle: EvidenceBundle) -> bool:
        """Show the contract the row that is wrong; whether it saw it. A token or a logprob it cannot see."""
        c = accusation.commitment
        [rollout, *_] = await read_rows(bundle, self.rules, self.bench)
        proof = [bytes.fromhex(text[2:]) for text in bundle.proofs[0]]
        try:
            mined = await self.chain.act(
                PROOFS[accusation.kind](c.node, c.index, c.step, c.root, leaf_of(rollout), proof)
            )
        except RevertError as error:
            if error.name in _AS_IT_SHOULD_BE:
                return False
            raise
        log.info("proven", node=c.node, index=c.index, kind=accusation.kind.name.lower(), tx=mined.hash)
        return True

    def _close(self, accusation: Accusation, why: str) -> None:
        """Nothing is left to do about an accusation: it was opened or proven, or `why` there will be no case."""
        c = accusation.commitment
        self.journal.close_accusation(c.node, c.index, c.root, why)

    # Judging

    async def _judge(self, case: CaseFile, head: Block) -> None:
        try:
            if case.ballot == "none":
                await self._decide(case, head)
            elif case.ballot == "sealed":
                await self._commit(case, head)
            elif case.ballot == "committed":
                await self._reveal(case, head)
        except RevertError as error:
            if error.name == "CaseEnded":
                return  # the event that says so is on its way
            log.warning("a vote was refused", case=case.case_id, error=str(error), hint=error.hint)
            self._not_before[case.case_id] = time.monotonic() + RETRY_SECONDS

    async def _decide(self, case: CaseFile, head: Block) -> None:
        """Check the evidence and make up one's mind."""
        if case.challenger == self.me or not await self.chain.ask(court.is_judge(case.case_id, self.me)):
            return self.journal.set_ballot(case, "no judge")
        if head.timestamp >= case.commit_ends:
            log.error("did not vote in time", case=case.case_id)
            return self.journal.set_ballot(case, "late")
        cure = self.rules.terms.commit_phase // CURE_SHARE if case.kind == Kind.DATA_MISSING else case.commit_ends
        if head.timestamp < case.commit_ends - cure or time.monotonic() < self._not_before.get(case.case_id, 0):
            return None
        ruling = await self._look(case)
        if ruling.guilty is None:
            log.warning("cannot tell yet", case=case.case_id, why=ruling.why)
            self._not_before[case.case_id] = time.monotonic() + RETRY_SECONDS / 6
            return None
        log.info("decided", case=case.case_id, guilty=ruling.guilty, why=ruling.why)
        self.journal.seal_ballot(case, ruling.guilty, secrets.token_bytes(32))
        return None

    async def _look(self, case: CaseFile) -> Ruling:
        """`rule`, whatever the evidence does: whoever brings it chooses it, and it concerns no other case."""
        try:
            return await self.rule(case)
        except MusterError:
            raise
        except Exception as error:
            log.exception("the evidence of a case cannot be looked at", case=case.case_id)
            return Ruling(None, f"{type(error).__name__}: {error}")

    async def rule(self, case: CaseFile) -> Ruling:
        """What the evidence of a case comes to, by this validator's own measurements."""
        try:
            data = await self.client.get_evidence(case.evidence)
        except (UnreachableError, CheckError) as error:
            return Ruling(None, f"the evidence cannot be had: {error}")
        try:
            bundle = parse_bundle(data)
        except MalformedError as error:
            return Ruling(False, str(error))
        if kind_of(bundle.reason) != case.kind:
            return Ruling(False, f"the evidence is of {bundle.reason}, the case of {case.kind.name.lower()}")
        return await self._verify(bundle, case.commitment)

    async def _verify(self, bundle: EvidenceBundle, commitment: Commitment) -> Ruling:
        draw = await self.bench.draw(commitment)
        return await verify_evidence(bundle, commitment, draw, self.rules, self.client.domain, self.bench)

    async def _commit(self, case: CaseFile, head: Block) -> None:
        assert case.guilty is not None
        assert case.salt is not None
        ballot = await self.chain.ask(court.ballot(case.case_id, self.me))
        if ballot.state == BallotState.NONE:
            if head.timestamp >= case.commit_ends:
                log.error("did not vote in time", case=case.case_id)
                return self.journal.set_ballot(case, "late")
            if time.monotonic() < self._not_before.get(case.case_id, 0):
                return None
            digest = vote_hash(case.case_id, self.me, case.guilty, case.salt)
            await self.chain.act(court.commit_vote(case.case_id, case.charge, digest))
            failpoint("validator.voted")
            VOTES.labels(guilty=str(case.guilty).lower()).inc()
            log.info("voted", case=case.case_id)
        return self.journal.set_ballot(case, "committed")

    async def _reveal(self, case: CaseFile, head: Block) -> None:
        assert case.guilty is not None
        assert case.salt is not None
        if head.timestamp >= case.reveal_ends:
            log.error("did not reveal in time, the deposit is lost", case=case.case_id)
            return self.journal.set_ballot(case, "late")
        if head.timestamp < case.commit_ends and not await self._all_committed(case):
            return None
        ballot = await self.chain.ask(court.ballot(case.case_id, self.me))
        if ballot.state == BallotState.NONE:  # a reorg took the vote back
            return self.journal.set_ballot(case, "sealed")
        if ballot.state == BallotState.COMMITTED:
            await self.chain.act(court.reveal_vote(case.case_id, case.guilty, case.salt))
            log.info("revealed", case=case.case_id, guilty=case.guilty)
        return self.journal.set_ballot(case, "revealed")

    async def _all_committed(self, case: CaseFile) -> bool:
        if case.kind == Kind.DATA_MISSING:
            return False
        return (await self.chain.ask(court.case_of(case.case_id))).commits >= case.jury

    # Ending

    async def _end(self, case: CaseFile) -> None:
        """Resolve a case that is over, when it is this validator's turn."""
        if not await self.chain.ask(court.is_resolvable(case.case_id)):
            return
        since = self._over_since.setdefault(case.case_id, time.monotonic())
        rank = turn_of(self.me, await self.chain.validators(self.rules.run), f"resolve {case.case_id}")
        if time.monotonic() - since < rank * self.stagger_seconds:
            return
        try:
            mined = await self.chain.act(court.resolve(case.case_id))
        except RevertError as error:
            log.info("not resolved", case=case.case_id, error=str(error))
            return
        log.info("resolved", case=case.case_id, tx=mined.hash)

    async def _collect(self, case: CaseFile) -> None:
        """Take what an ended case owes this validator as a judge."""
        if case.ballot != "sealed" and await self.chain.ask(court.collectable(case.case_id, self.me)):
            mined = await self.chain.act(court.collect(case.case_id, self.me))
            log.info("collected", case=case.case_id, tx=mined.hash)
        self.journal.set_ballot(case, "done")


def turn_of(me: str, validators: Sequence[str], matter: str) -> int:
    """This validator's place in the order in which they take turns in a matter, from 0."""
    order = sorted({*validators, me}, key=lambda address: keccak(text=f"{matter} {address}"))
    return order.index(me)
