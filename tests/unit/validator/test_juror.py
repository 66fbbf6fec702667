"""A juror's steps through a case: their order, the journal entries and the transactions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.chain.types import Block
from muster.contracts.court import BallotState, CaseResolved, Outcome
from muster.errors import UnreachableError
from muster.protocol.hashes import content_hash, hash_bytes
from muster.protocol.kinds import kind_of
from muster.protocol.reasons import REASONS
from muster.runtime.loop import AGAIN
from muster.verification.rules import CommittedWork
from testbed.samples.court import BAD, COMMITTED_AT, EVIDENCE, HEAD, CourtChain, CourtContext, case_of, take_turn
from testbed.samples.validator import ME, OTHER, Clock, opened, place, receive
from testbed.waiting import until
from validator import juror as juror_room
from validator.journal import ValidatorJournal
from validator.juror import VERIFY_RETRY_SECONDS, Juror


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[ValidatorJournal]:
    made = ValidatorJournal(tmp_path, "me", 1, ME)
    yield made
    made.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(juror_room, "time", made)
    return made


def juror_of(journal: ValidatorJournal, chain: CourtChain, context: Any) -> Juror:
    return Juror(chain, journal, context, stagger_seconds=0)  # type: ignore[arg-type]


async def test_deadlines_come_before_long_work(journal: ValidatorJournal, clock: Clock) -> None:
    chain = CourtChain()
    receive(journal, case_of(1), case_of(2, index=4))
    journal.seal_ballot(journal.cases()[1], True, bytes(32))
    await take_turn(juror_of(journal, chain, CourtContext(chain, EVIDENCE)), HEAD)
    assert chain.done == ["commitVote", "verify"]


async def test_a_vote_waits_for_no_replay(journal: ValidatorJournal) -> None:
    """While the evidence of one case is looked at, for hours maybe, the vote in another goes out."""
    chain, done = CourtChain(), asyncio.Event()
    receive(journal, case_of(1), case_of(2, index=4))
    journal.seal_ballot(journal.cases()[1], True, bytes(32))
    context = CourtContext(chain, EVIDENCE)
    replay = context.draw

    async def draw(commitment: CommittedWork) -> Any:
        await done.wait()
        return await replay(commitment)

    context.draw = draw  # type: ignore[method-assign]
    juror = juror_of(journal, chain, context)
    deciding = asyncio.create_task(juror.decide(HEAD))
    await until(lambda: "verify" in chain.done)
    await juror.poll(HEAD)
    assert [case.ballot for case in journal.cases()] == ["none", "committed"]
    done.set()
    assert await deciding is AGAIN
    assert [case.ballot for case in journal.cases()] == ["sealed", "committed"]


async def test_the_case_whose_votes_are_due_first_is_looked_at_first(journal: ValidatorJournal) -> None:
    chain = CourtChain()
    receive(journal, case_of(1, commit_ends=300, index=4), case_of(2, commit_ends=100), case_of(3, commit_ends=200))
    juror, sealed = juror_of(journal, chain, CourtContext(chain, EVIDENCE)), []
    while await juror.decide(HEAD) is AGAIN:
        sealed.append([case.case_id for case in journal.cases() if case.ballot == "sealed"])
    assert sealed == [[2], [2, 3], [1, 2, 3]]


async def test_a_vote_is_sealed_committed_revealed_and_collected_over_restarts(
    journal: ValidatorJournal, clock: Clock
) -> None:
    """Each turn uses a new juror, which resumes from the journal and the chain."""
    chain = CourtChain(collectable=7)
    receive(journal, case_of(1))
    votes = []
    for second, ballot in (
        (0, BallotState.NONE),
        (1, BallotState.NONE),
        (99, BallotState.COMMITTED),
        (100, BallotState.COMMITTED),
        (101, BallotState.VOTED_GUILTY),
    ):
        chain.ballot = ballot
        await take_turn(juror_of(journal, chain, CourtContext(chain, EVIDENCE)), Block(99, second, bytes(32)))
        (case,) = journal.cases()
        votes.append((case.ballot, case.guilty, case.salt))
    assert [ballot for ballot, _, _ in votes] == ["sealed", "committed", "committed", "revealed", "revealed"]
    assert len(set(votes)) == 3, "one vote and one salt throughout"
    assert votes[0][1] is True
    receive(journal, CaseResolved(place(40), 1, BAD.node, Outcome.GUILTY, 2, 3, 3))
    await take_turn(juror_of(journal, chain, CourtContext(chain)), HEAD)
    assert [case.ballot for case in journal.cases()] == ["revealed"], "a reorg may take the receipt back"
    await take_turn(juror_of(journal, chain, CourtContext(chain)), HEAD)
    assert chain.done == ["verify", "commitVote", "revealVote", "collect"]
    assert chain.asked_at == [HEAD.number - chain.settings.confirmations]
    assert journal.cases() == []


async def test_a_reward_that_a_reorg_took_is_collected_again(journal: ValidatorJournal, clock: Clock) -> None:
    """Without a notice, before it was confirmed; and after it, when the journal goes back."""
    chain = CourtChain(collectable=7)
    receive(journal, case_of(1))
    journal.seal_ballot(journal.cases()[0], True, bytes(32))
    journal.set_ballot(journal.cases()[0], "revealed")
    receive(journal, CaseResolved(place(40), 1, BAD.node, Outcome.GUILTY, 2, 3, 3))
    juror = juror_of(journal, chain, CourtContext(chain))
    for collected in (1, 2):
        await juror.poll(HEAD)
        assert chain.done == ["collect"] * collected
        chain.collectable = 7
    await juror.poll(HEAD)
    await juror.poll(HEAD)
    assert journal.cases() == []
    receive(journal, rewound_to=45)
    chain.collectable = 7
    await juror.poll(HEAD)
    await juror.poll(HEAD)
    assert (chain.done, journal.cases()) == (["collect"] * 4, [])
    receive(journal, rewound_to=200)
    assert journal.cases() == [], "it ended long before"


async def test_a_reveal_that_a_reorg_took_is_made_again(journal: ValidatorJournal, clock: Clock) -> None:
    chain = CourtChain(ballot=BallotState.COMMITTED)
    receive(journal, case_of(1))
    journal.seal_ballot(journal.cases()[0], True, bytes(32))
    journal.set_ballot(journal.cases()[0], "revealed")
    juror = juror_of(journal, chain, CourtContext(chain))
    for _ in range(2):
        await take_turn(juror, Block(99, 150, bytes(32)))
    assert chain.done == ["revealVote"]


async def test_a_case_whose_end_a_reorg_took_goes_on(journal: ValidatorJournal, clock: Clock) -> None:
    receive(journal, case_of(1), CaseResolved(place(40), 1, BAD.node, Outcome.GUILTY, 2, 3, 3))
    receive(journal, rewound_to=39)
    assert [case.outcome for case in journal.cases()] == [Outcome.OPEN]
    receive(journal, CaseResolved(place(41), 1, BAD.node, Outcome.NOT_GUILTY, 2, 3, 3))
    receive(journal, rewound_to=41)
    assert [case.outcome for case in journal.cases()] == []


async def test_a_vote_that_a_reorg_took_is_committed_again(journal: ValidatorJournal, clock: Clock) -> None:
    chain = CourtChain()
    receive(journal, case_of(1))
    journal.seal_ballot(journal.cases()[0], True, bytes(32))
    journal.set_ballot(journal.cases()[0], "committed")
    juror = juror_of(journal, chain, CourtContext(chain))
    await take_turn(juror, Block(99, 50, bytes(32)))
    assert (chain.done, journal.cases()[0].ballot) == ([], "sealed"), "while there is time"
    await take_turn(juror, HEAD)
    assert (chain.done, journal.cases()[0].ballot) == (["commitVote"], "committed")


async def test_a_juror_tries_again_to_fetch_the_evidence_and_votes_it_down_at_last(
    journal: ValidatorJournal, clock: Clock
) -> None:
    chain = CourtChain()
    receive(journal, case_of(1))
    juror = juror_of(journal, chain, CourtContext(chain))
    for _ in range(3):
        await take_turn(juror, HEAD)
    assert chain.done == ["verify"]
    clock.now += VERIFY_RETRY_SECONDS
    await take_turn(juror, HEAD)
    assert chain.done == ["verify", "verify"]
    clock.now += VERIFY_RETRY_SECONDS
    await take_turn(juror, Block(99, 99, bytes(32)))
    case = journal.cases()[0]
    assert (case.ballot, case.guilty) == ("sealed", False), "nothing shows guilt, and silence costs"


async def test_unreachable_chain_is_no_abstention(
    journal: ValidatorJournal, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the draw the evidence stays unverified: the turn fails, and the next one starts over."""
    chain = CourtChain()
    receive(journal, case_of(1))
    context = CourtContext(chain, EVIDENCE)

    async def draw(commitment: object) -> None:
        raise UnreachableError("the chain does not answer")

    monkeypatch.setattr(context, "draw", draw)
    juror = juror_of(journal, chain, context)
    for _ in range(2):
        with pytest.raises(UnreachableError, match="does not answer"):
            await take_turn(juror, HEAD)
    assert journal.cases()[0].ballot == "none"
    assert not juror.not_before


@pytest.mark.parametrize("tasks", [[], [{"slot": 0, "line": "{}", "path": []}], "nothing", [{"slot": 0}] * 9])
async def test_evidence_without_the_task_it_is_about_is_voted_down(journal: ValidatorJournal, tasks: object) -> None:
    chain = CourtChain()
    hostile = json.dumps(json.loads(EVIDENCE) | {"tasks": tasks}).encode()
    receive(journal, case_of(1), case_of(2, evidence_hash=hash_bytes(content_hash(hostile))))
    juror = juror_of(journal, chain, CourtContext(chain, EVIDENCE, hostile))
    assert [await juror.verify(case) for case in journal.cases()] == [True, False]


async def test_evidence_that_breaks_a_juror_costs_no_other_case_its_vote(journal: ValidatorJournal) -> None:
    receive(journal, opened(1), opened(2, node=OTHER, evidence_hash=b"\x08" * 32))
    chain = CourtChain()
    context: Any = CourtContext(chain)

    class Client:
        async def get_evidence(self, evidence: bytes) -> bytes:
            if evidence == b"\x09" * 32:
                raise RecursionError
            return b"no bundle"

    context.client = Client()
    await take_turn(juror_of(journal, chain, context), HEAD)
    votes = [(case.case_id, case.ballot, case.guilty) for case in journal.cases()]
    assert votes == [(1, "none", None), (2, "sealed", False)], "the first cannot be verified yet"


@pytest.mark.parametrize("kind", [len(REASONS), 255])
async def test_a_kind_without_a_name_is_voted_down(journal: ValidatorJournal, clock: Clock, kind: int) -> None:
    """The court takes any number. The evidence shows another kind, and one that is not shown shows nothing."""
    chain = CourtChain()
    receive(journal, case_of(1, kind=kind), case_of(2, kind=kind, evidence_hash=b"\x08" * 32))
    juror = juror_of(journal, chain, CourtContext(chain, EVIDENCE))
    await take_turn(juror, HEAD)
    assert [(case.ballot, case.guilty) for case in journal.cases()] == [("sealed", False), ("none", None)]
    clock.now += VERIFY_RETRY_SECONDS
    await take_turn(juror, Block(99, 99, bytes(32)))
    assert [(case.ballot, case.guilty) for case in journal.cases()] == [("committed", False), ("sealed", False)]


@pytest.mark.parametrize(
    ("stored_at", "done"),
    [
        (COMMITTED_AT, [f"dismiss 1 of second {COMMITTED_AT}"]),
        (COMMITTED_AT + 1, ["verify"]),
        (None, ["verify"]),
    ],
)
async def test_a_juror_shows_a_receipt_from_before_the_commitment_instead_of_voting(
    journal: ValidatorJournal, stored_at: int | None, done: list[str]
) -> None:
    """A worker that sleeps through a false accusation of missing data would pay for a cure that was none."""
    chain = CourtChain()
    receive(journal, case_of(1, kind=kind_of("data_missing")))
    context = CourtContext(chain)
    context.stored_at = stored_at
    await take_turn(juror_of(journal, chain, context), Block(99, 99, bytes(32)))
    assert chain.done == done


@pytest.mark.parametrize(
    ("ballot", "outcome", "reported"),
    [
        (BallotState.NONE, Outcome.NO_QUORUM, True),
        (BallotState.COMMITTED, Outcome.GUILTY, True),
        (BallotState.VOTED_GUILTY, Outcome.GUILTY, False),
        (BallotState.NONE, Outcome.DISMISSED, False),
    ],
)
async def test_revealing_juror_reports_absent_ones(
    journal: ValidatorJournal, ballot: BallotState, outcome: Outcome, reported: bool
) -> None:
    chain = CourtChain(others=[OTHER], ballot=ballot)
    receive(journal, case_of(1))
    journal.seal_ballot(journal.cases()[0], True, bytes(32))
    journal.set_ballot(journal.cases()[0], "revealed")
    receive(journal, CaseResolved(place(40), 1, BAD.node, outcome, 1, 1, 3))
    await take_turn(juror_of(journal, chain, CourtContext(chain)), HEAD)
    assert chain.done == (["reportAbsence"] if reported else [])
    assert journal.cases() == []
