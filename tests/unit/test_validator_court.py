"""When a validator goes to court: beside which open cases it waits, and what evidence may cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import commitment_samples as samples
import pytest
from validator_samples import ME, OTHER, Clock, opened, place, refusal, tell, verdict, work

from muster.chain.codec import Act, Event, View
from muster.chain.contracts.court import BallotState, CaseOpened, CaseResolved, Kind, Outcome
from muster.chain.contracts.registry import Status
from muster.chain.types import Block
from muster.draws import Draw
from muster.evidence import make_bundle
from muster.hashes import content_hash
from muster.inspection import Commitment, Finding, check_file
from muster.rollouts.file import FileLimits, read_rollouts
from muster.rollouts.schema import Rollout
from validator import court as court_room
from validator.court import Court
from validator.journal import ValidatorJournal


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[ValidatorJournal]:
    made = ValidatorJournal(tmp_path, "me", 1, ME)
    yield made
    made.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(court_room, "time", made)
    return made


@dataclass
class Town:
    """A run in which everybody may still be accused, and what this validator does there."""

    open_cases: int = 1
    """Against the accused, as the chain counts them."""
    judges: bool = True
    """Whether this validator is on every jury."""
    arriving: list[Event] = field(default_factory=list)
    """What the journal hears of when it is about to accuse."""
    journal: ValidatorJournal | None = None
    done: list[str] = field(default_factory=list)
    signer = SimpleNamespace(address=ME)

    async def ask(self, view: View) -> Any:
        if view.label == "Runs.work" and self.journal is not None:
            tell(self.journal, *self.arriving)
        answers = {
            "Registry.node": SimpleNamespace(status=Status.ACTIVE),
            "Runs.work": SimpleNamespace(open_cases=self.open_cases),
            "Runs.challengeableUntil": 1 << 62,
            "SlashCourt.isJudge": self.judges,
            "SlashCourt.isResolvable": False,
            "SlashCourt.ballot": SimpleNamespace(state=BallotState.NONE),
            "SlashCourt.caseOf": SimpleNamespace(commits=0),
            "SlashCourt.collectable": 0,
        }
        return answers[view.label]

    async def act(self, act: Act) -> Any:
        self.done.append(act.label.removeprefix("SlashCourt."))
        return SimpleNamespace(events=(case_of(99, challenger=ME),), hash=bytes(32))


@dataclass
class Shelf:
    """Evidence by hash."""

    town: Town
    bundles: dict[bytes, bytes] = field(default_factory=dict)
    domain = samples.WHERE

    async def get_evidence(self, name: bytes) -> bytes:
        self.town.done.append("look")
        if name not in self.bundles:
            raise refusal(404)
        return self.bundles[name]


class CourtBench:
    """Parses and draws; the checks that these cases are about need no model."""

    rules = samples.rules()

    @property
    def model(self) -> CourtBench:
        return self

    async def reload(self) -> None: ...

    async def draw(self, commitment: Commitment) -> Draw:
        return samples.drawn()

    async def read(self, data: bytes, limits: FileLimits) -> list[Rollout]:
        return read_rollouts(data, limits)

    async def upload(self, commitment: Commitment) -> None:
        raise refusal(404)


def bad_rows(**changes: Any) -> tuple[Commitment, Finding, bytes]:
    """A commitment in which row 5 is wrong, and the evidence for that."""
    rows = samples.honest_rows()
    rows[5] = replace(rows[5], **changes)
    c = samples.committed(rows)
    finding = check_file(rows, c, samples.drawn(), samples.rules())
    assert finding is not None
    bundle = make_bundle(samples.rules(), c, finding, accuser=ME, rollouts=rows, rows=[5])
    return c, finding, bundle.to_bytes()


BAD, FOUND, EVIDENCE = bad_rows(task_reward=1_000_000)
SHOWN = bytes.fromhex(content_hash(EVIDENCE)[2:])
NEVER_SHOWN = b"\x0e" * 32


def case_of(case_id: int, **changes: Any) -> CaseOpened:
    """A case about BAD, on its evidence."""
    about = {"node": BAD.node, "index": BAD.index, "step": BAD.step, "root": BAD.root, "kind": Kind.WRONG_REWARD}
    return opened(case_id, **(about | {"position": 5, "evidence_hash": SHOWN} | changes))


def accuse(journal: ValidatorJournal, c: Commitment, finding: Finding, evidence: bytes, due: float = 0.0) -> None:
    """Judge a commitment so, and let it be this validator's turn to accuse."""
    tell(journal, work(c.index, step=c.step, node=c.node, root=c.root))
    said = {"reason": finding.reason, "position": finding.position, "evidence": content_hash(evidence)}
    made = verdict(c, journal.take_link(c), accepted=False, **said)
    journal.judge(c, made, evidence, accuse_at=due)
    journal.sent(made)


def court_of(journal: ValidatorJournal, town: Town, *bundles: bytes) -> Court:
    shelf = Shelf(town, {bytes.fromhex(content_hash(bundle)[2:]): bundle for bundle in bundles})
    return Court(town, shelf, journal, CourtBench(), stagger_seconds=0)  # type: ignore[arg-type]


HEAD = Block(99, 0, bytes(32))


@pytest.mark.parametrize("judges", [True, False])
async def test_cases_on_evidence_that_nobody_has_shield_nobody(
    journal: ValidatorJournal, clock: Clock, judges: bool
) -> None:
    town = Town(open_cases=2, judges=judges)
    accuse(journal, BAD, FOUND, EVIDENCE)
    tell(journal, case_of(1, evidence_hash=NEVER_SHOWN), case_of(2, evidence_hash=NEVER_SHOWN, index=4))
    await court_of(journal, town).turn(HEAD)
    assert town.done[-1] == "openCase"


@pytest.mark.parametrize("judges", [True, False])
async def test_a_case_that_shows_guilt_is_waited_for(journal: ValidatorJournal, clock: Clock, judges: bool) -> None:
    town = Town(judges=judges)
    accuse(journal, BAD, FOUND, EVIDENCE)
    tell(journal, case_of(1))
    court = court_of(journal, town, EVIDENCE)
    for _ in range(3):
        await court.turn(HEAD)
        clock.now += 2
    assert "openCase" not in town.done
    assert town.done.count("look") == 1
    tell(journal, CaseResolved(place(40), 1, BAD.node, Outcome.NO_QUORUM, 0, 0, 3))
    town.open_cases = 0
    await court.turn(HEAD)
    assert town.done[-1] == "openCase"


@pytest.mark.parametrize("judges", [True, False])
async def test_a_case_that_shows_nothing_is_not_waited_for(
    journal: ValidatorJournal, clock: Clock, judges: bool
) -> None:
    town = Town(judges=judges)
    accuse(journal, BAD, FOUND, EVIDENCE)
    tell(journal, case_of(1, kind=Kind.SAMPLING_MISMATCH))
    await court_of(journal, town, EVIDENCE).turn(HEAD)
    assert town.done == ["look", "openCase"]


async def test_an_own_case_is_waited_for(journal: ValidatorJournal, clock: Clock) -> None:
    town = Town()
    accuse(journal, BAD, FOUND, EVIDENCE)
    tell(journal, case_of(1, challenger=ME, index=4, evidence_hash=NEVER_SHOWN))
    await court_of(journal, town).turn(HEAD)
    assert town.done == []


async def test_a_case_that_a_reorg_took_is_waited_for_no_longer_than_it_would_have_lasted(
    journal: ValidatorJournal, clock: Clock
) -> None:
    """The journal keeps it, and the chain counts another."""
    town = Town()
    accuse(journal, BAD, FOUND, EVIDENCE)
    tell(journal, case_of(1, challenger=ME, index=4))
    court = court_of(journal, town)
    for second, done in ((229, []), (230, ["openCase"])):  # voting ends at 200
        await court.turn(Block(99, second, bytes(32)))
        assert town.done == done
        clock.now += 2


async def test_a_case_is_looked_at_before_one_is_opened_beside_it(journal: ValidatorJournal, clock: Clock) -> None:
    town = Town(journal=journal, arriving=[case_of(1, evidence_hash=NEVER_SHOWN)])
    accuse(journal, BAD, FOUND, EVIDENCE)
    court = court_of(journal, town)
    await court.turn(HEAD)
    assert town.done == []
    clock.now += 2
    await court.turn(HEAD)
    assert town.done == ["look", "openCase"]


async def test_a_case_that_the_journal_does_not_know_is_waited_for_a_moment(
    journal: ValidatorJournal, clock: Clock
) -> None:
    town = Town()
    accuse(journal, BAD, FOUND, EVIDENCE)
    court = court_of(journal, town)
    await court.turn(HEAD)
    clock.now += court_room.RETRY_SECONDS - 1
    await court.turn(HEAD)
    assert town.done == []
    clock.now += 2
    await court.turn(HEAD)
    assert town.done == ["openCase"]


@pytest.mark.parametrize("challenger", [ME, OTHER])
async def test_a_case_about_missing_data_shields_nothing_else(
    journal: ValidatorJournal, clock: Clock, challenger: str
) -> None:
    """It ends when the data is shown."""
    town = Town(judges=False)
    accuse(journal, BAD, FOUND, EVIDENCE)
    tell(journal, case_of(1, challenger=challenger, kind=Kind.DATA_MISSING, index=4))
    await court_of(journal, town, EVIDENCE).turn(HEAD)
    assert town.done == ["openCase"]


@pytest.mark.parametrize("index", [BAD.index, BAD.index + 1])
async def test_missing_data_waits_for_a_case_about_the_same(
    journal: ValidatorJournal, clock: Clock, index: int
) -> None:
    town = Town()
    finding = Finding("data_missing")
    bundle = make_bundle(samples.rules(), BAD, finding, accuser=ME).to_bytes()
    accuse(journal, BAD, finding, bundle)
    name = bytes.fromhex(content_hash(bundle)[2:])
    tell(journal, case_of(1, kind=Kind.DATA_MISSING, index=index, evidence_hash=name, commit_ends=10_000))
    await court_of(journal, town, bundle).turn(HEAD)
    assert town.done == (["look"] if index == BAD.index else ["openCase"])


@pytest.mark.parametrize("challenger", [ME, OTHER])
async def test_what_the_contract_sees_itself_waits_for_no_case(
    journal: ValidatorJournal, clock: Clock, challenger: str
) -> None:
    town = Town(open_cases=2)
    accuse(journal, BAD, FOUND, EVIDENCE, due=1.0)
    accuse(journal, *bad_rows(budget=9), due=2.0)
    tell(journal, case_of(1, challenger=challenger))
    await court_of(journal, town, EVIDENCE).turn(HEAD)
    assert town.done[-1] == "proveWrongDraw"


async def test_what_has_a_deadline_comes_before_what_may_take_long(journal: ValidatorJournal, clock: Clock) -> None:
    town = Town()
    tell(journal, case_of(1), case_of(2, index=4))
    journal.seal_ballot(journal.cases()[1], True, bytes(32))
    await court_of(journal, town, EVIDENCE).turn(HEAD)
    assert town.done == ["commitVote", "look"]


async def test_evidence_that_breaks_a_juror_costs_no_other_case_its_vote(journal: ValidatorJournal) -> None:
    tell(journal, opened(1), opened(2, node=OTHER, evidence_hash=b"\x08" * 32))

    class Chain:
        """With this validator on every jury, and no case at its end."""

        signer = SimpleNamespace(address=ME)

        async def ask(self, view: View) -> Any:
            return {"SlashCourt.isJudge": True, "SlashCourt.isResolvable": False}[view.label]

    class Client:
        async def get_evidence(self, evidence: bytes) -> bytes:
            if evidence == b"\x09" * 32:
                raise RecursionError
            return b"no bundle"

    bench = SimpleNamespace(rules=SimpleNamespace(terms=SimpleNamespace(commit_phase=60)))
    court = Court(Chain(), Client(), journal, bench, stagger_seconds=0)  # type: ignore[arg-type]
    await court.turn(Block(99, 0, bytes(32)))
    votes = [(case.case_id, case.ballot, case.guilty) for case in journal.cases()]
    assert votes == [(1, "none", None), (2, "sealed", False)], "about the first it cannot tell yet"
