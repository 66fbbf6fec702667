"""When a validator opens a case: beside which open cases it waits, and what evidence may cost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.chain.types import Block
from muster.contracts.codec import Call
from muster.contracts.court import CaseResolved, Outcome
from muster.contracts.registry import Status
from muster.errors import UnreachableError
from muster.protocol.hashes import content_hash, hash_bytes
from muster.protocol.kinds import kind_of
from muster.verification.bundles import Inspection, make_bundle
from muster.verification.checks import Finding
from testbed.samples import commitments as samples
from testbed.samples.court import (
    BAD,
    EVIDENCE,
    FOUND,
    HEAD,
    NEVER_SHOWN,
    CourtChain,
    CourtContext,
    bad_rows,
    case_of,
    make_accusation,
    take_turn,
)
from testbed.samples.validator import ME, NODE, OTHER, Clock, pending, place, receive, reject, work
from validator import challenger as challenger_room
from validator import juror as juror_room
from validator.challenger import Challenger
from validator.journal import ValidatorJournal
from validator.juror import Juror


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[ValidatorJournal]:
    made = ValidatorJournal(tmp_path, "me", 1, ME)
    yield made
    made.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for room in (challenger_room, juror_room):
        monkeypatch.setattr(room, "time", made)
    return made


def court_of(journal: ValidatorJournal, chain: CourtChain, *bundles: bytes) -> Callable[[Block], Awaitable[None]]:
    """A validator's turn in court: as a juror, then as a challenger."""
    context: Any = CourtContext(chain, *bundles)
    juror = Juror(chain, journal, context, stagger_seconds=0)  # type: ignore[arg-type]
    challenger = Challenger(chain, journal, context, juror, stagger_seconds=0)  # type: ignore[arg-type]

    async def turn(head: Block) -> None:
        await take_turn(juror, head)
        await challenger.poll(head)

    return turn


@pytest.mark.parametrize("judges", [True, False])
async def test_cases_without_evidence_do_not_block_an_accusation(
    journal: ValidatorJournal, clock: Clock, judges: bool
) -> None:
    chain = CourtChain(open_cases=2, judges=judges)
    make_accusation(journal, BAD, FOUND, EVIDENCE)
    receive(journal, case_of(1, evidence_hash=NEVER_SHOWN), case_of(2, evidence_hash=NEVER_SHOWN, index=4))
    await court_of(journal, chain)(HEAD)
    assert chain.done[-1] == "openCase"


@pytest.mark.parametrize("judges", [True, False])
async def test_a_case_that_shows_guilt_is_waited_for(journal: ValidatorJournal, clock: Clock, judges: bool) -> None:
    chain = CourtChain(judges=judges)
    make_accusation(journal, BAD, FOUND, EVIDENCE)
    receive(journal, case_of(1))
    court = court_of(journal, chain, EVIDENCE)
    for _ in range(3):
        await court(HEAD)
        clock.now += 2
    assert "openCase" not in chain.done
    assert chain.done.count("verify") == 1
    receive(journal, CaseResolved(place(40), 1, BAD.node, Outcome.NO_QUORUM, 0, 0, 3))
    chain.open_cases = 0
    await court(HEAD)
    assert chain.done[-1] == "openCase"


@pytest.mark.parametrize("judges", [True, False])
async def test_a_case_that_shows_nothing_is_not_waited_for(
    journal: ValidatorJournal, clock: Clock, judges: bool
) -> None:
    chain = CourtChain(judges=judges)
    make_accusation(journal, BAD, FOUND, EVIDENCE)
    receive(journal, case_of(1, kind=kind_of("sampling_mismatch")))
    await court_of(journal, chain, EVIDENCE)(HEAD)
    assert chain.done == ["verify", "openCase"]


async def test_an_own_case_is_waited_for(journal: ValidatorJournal, clock: Clock) -> None:
    chain = CourtChain()
    make_accusation(journal, BAD, FOUND, EVIDENCE)
    receive(journal, case_of(1, challenger=ME, index=4, evidence_hash=NEVER_SHOWN))
    await court_of(journal, chain)(HEAD)
    assert chain.done == []


async def test_a_case_that_a_reorg_took_is_waited_for_no_longer_than_it_would_have_lasted(
    journal: ValidatorJournal, clock: Clock
) -> None:
    """The journal keeps it, and the chain counts another."""
    chain = CourtChain()
    make_accusation(journal, BAD, FOUND, EVIDENCE)
    receive(journal, case_of(1, challenger=ME, index=4))
    court = court_of(journal, chain)
    for second, done in ((229, []), (230, ["openCase"])):  # voting ends at 200
        await court(Block(99, second, bytes(32)))
        assert chain.done == done
        clock.now += 2


async def test_a_case_is_verified_before_one_is_opened_beside_it(journal: ValidatorJournal, clock: Clock) -> None:
    chain = CourtChain(journal=journal, arriving=[case_of(1, evidence_hash=NEVER_SHOWN)])
    make_accusation(journal, BAD, FOUND, EVIDENCE)
    court = court_of(journal, chain)
    await court(HEAD)
    assert chain.done == []
    clock.now += 2
    await court(HEAD)
    assert chain.done == ["verify", "openCase"]


async def test_a_case_that_the_journal_does_not_know_is_waited_for_a_moment(
    journal: ValidatorJournal, clock: Clock
) -> None:
    chain = CourtChain()
    make_accusation(journal, BAD, FOUND, EVIDENCE)
    court = court_of(journal, chain)
    await court(HEAD)
    clock.now += challenger_room.RETRY_SECONDS - 1
    await court(HEAD)
    assert chain.done == []
    clock.now += 2
    await court(HEAD)
    assert chain.done == ["openCase"]


@pytest.mark.parametrize("challenger", [ME, OTHER])
async def test_a_case_about_missing_data_shields_nothing_else(
    journal: ValidatorJournal, clock: Clock, challenger: str
) -> None:
    """It ends when the data is shown."""
    chain = CourtChain(judges=False)
    make_accusation(journal, BAD, FOUND, EVIDENCE)
    receive(journal, case_of(1, challenger=challenger, kind=kind_of("data_missing"), index=4))
    await court_of(journal, chain, EVIDENCE)(HEAD)
    assert chain.done == ["openCase"]


@pytest.mark.parametrize("index", [BAD.index, BAD.index + 1])
async def test_missing_data_waits_for_a_case_about_the_same(
    journal: ValidatorJournal, clock: Clock, index: int
) -> None:
    chain = CourtChain()
    finding = Finding("data_missing")
    bundle = make_bundle(samples.rules(), BAD, Inspection(finding), accuser=ME).to_bytes()
    make_accusation(journal, BAD, finding, bundle)
    name = hash_bytes(content_hash(bundle))
    receive(journal, case_of(1, kind=kind_of("data_missing"), index=index, evidence_hash=name, commit_ends=10_000))
    await court_of(journal, chain, bundle)(HEAD)
    assert chain.done == (["verify"] if index == BAD.index else ["openCase"])


@pytest.mark.parametrize("challenger", [ME, OTHER])
async def test_proof_on_chain_waits_for_no_case(journal: ValidatorJournal, clock: Clock, challenger: str) -> None:
    chain = CourtChain(open_cases=2)
    make_accusation(journal, BAD, FOUND, EVIDENCE, due=1.0)
    make_accusation(journal, *bad_rows(budget=9), due=2.0)
    receive(journal, case_of(1, challenger=challenger))
    await court_of(journal, chain, EVIDENCE)(HEAD)
    assert chain.done[-1] == "Refutations.prove"


async def test_an_accusation_that_cannot_be_made_keeps_no_other_waiting(
    journal: ValidatorJournal, clock: Clock
) -> None:
    receive(journal, work(0), work(1, node=OTHER))
    for commitment in pending(journal):
        reject(journal, commitment, accuse_at=3.0)
    asked: list[str] = []

    class Chain:
        """Of a run in which everybody may still be accused."""

        signer = SimpleNamespace(address=ME)

        async def call(self, call: Call) -> Any:
            if call.label == "Registry.node":
                asked.append(str(call.arguments[0]))
            answers = {
                "Registry.node": SimpleNamespace(status=Status.ACTIVE),
                "Runs.work": SimpleNamespace(open_cases=0),
                "Runs.challengeableUntil": 1 << 62,
            }
            return answers[call.label]

    class Model:
        """Of a machine in trouble."""

        async def reload(self) -> None:
            raise UnreachableError("no memory")

    context: Any = SimpleNamespace(model=Model())
    challenger = Challenger(Chain(), journal, context, SimpleNamespace(me=ME), stagger_seconds=0)  # type: ignore[arg-type]
    await challenger.poll(HEAD)
    assert sorted(asked) == sorted([NODE, OTHER])
    assert journal.accusations(clock.now) == [], "they are tried again later"
    assert len(journal.accusations(clock.now + 3600)) == 2


async def test_an_accusation_whose_case_never_comes_is_brought_again(journal: ValidatorJournal, clock: Clock) -> None:
    """A reorg took the transaction before its event was confirmed, so that the journal goes back to nothing."""
    chain = CourtChain(open_cases=0)
    make_accusation(journal, BAD, FOUND, EVIDENCE)
    court = court_of(journal, chain, EVIDENCE)
    for _ in range(2):
        await court(HEAD)
        clock.now += 2
    assert chain.done == ["openCase"]
    clock.now += challenger_room.UNSEEN_SECONDS
    await court(HEAD)
    assert chain.done == ["openCase", "openCase"]
    receive(journal, case_of(1, challenger=ME))
    clock.now += challenger_room.UNSEEN_SECONDS
    await court(HEAD)
    assert chain.done == ["openCase", "openCase"]


async def test_a_proof_whose_conviction_never_comes_is_shown_again(journal: ValidatorJournal, clock: Clock) -> None:
    chain = CourtChain(open_cases=0)
    make_accusation(journal, *bad_rows(budget=9))
    court = court_of(journal, chain)
    for _ in range(2):
        await court(HEAD)
        clock.now += challenger_room.UNSEEN_SECONDS
    assert chain.done == ["Refutations.prove"] * 2
