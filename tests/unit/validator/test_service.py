"""Verdicts on their way to the orchestrator: told until they are taken, and none keeps another waiting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from validator_samples import ME, Clock, pending, refusal, reject, tell, work

from muster.errors import UnreachableError
from muster.messages import Verdict
from muster.settings import Settings, ValidatorSettings
from validator import service as service_room
from validator.journal import ValidatorJournal
from validator.service import MAX_REFUSALS, Validator


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[ValidatorJournal]:
    made = ValidatorJournal(tmp_path, "me", 1, ME)
    yield made
    made.close()


class Orchestrator:
    """Refuses verdicts as it is told, by their index."""

    def __init__(self) -> None:
        self.refusals: dict[int, Exception] = {}
        self.told: list[int] = []

    async def put_evidence(self, data: bytes) -> None: ...

    async def post_verdict(self, verdict: Verdict) -> None:
        if verdict.index in self.refusals:
            raise self.refusals[verdict.index]
        self.told.append(verdict.index)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(service_room, "time", made)
    return made


@pytest.fixture
def teller(tmp_path: Path) -> Iterator[Validator]:
    """A validator with two verdicts to tell, and an orchestrator that takes what it is told."""
    chain = SimpleNamespace(
        signer=SimpleNamespace(address=ME), chain_id=1, addresses=SimpleNamespace(runs="0x", from_block=0)
    )
    made_of = Settings(run=1, validator=ValidatorSettings(state_dir=tmp_path))
    validator = Validator(made_of, chain, Orchestrator(), None, [])  # type: ignore[arg-type]
    tell(validator.journal, work(0), work(1))
    for c in pending(validator.journal):
        reject(validator.journal, c, accuse_at=0.0)
    yield validator
    validator.journal.close()


@pytest.mark.parametrize("status", [401, 403, 404, 408, 429, 500])
async def test_a_verdict_is_told_until_the_orchestrator_knows_what_it_is_about(
    teller: Validator, clock: Clock, status: int
) -> None:
    orchestrator: Any = teller.client
    orchestrator.refusals = {0: refusal(status)}
    for _ in range(5 * MAX_REFUSALS):
        await teller._tell()
        clock.now += 60
    assert orchestrator.told == [1], "the other one does not wait for it"
    orchestrator.refusals = {}
    await teller._tell()
    assert orchestrator.told == [1, 0]
    assert len(teller.journal.accusations(clock.now)) == 1


async def test_a_verdict_that_is_wrong_is_given_up(teller: Validator, clock: Clock) -> None:
    orchestrator: Any = teller.client
    for status in [404] * 20 + [409] * (MAX_REFUSALS - 1):
        orchestrator.refusals = {0: refusal(status)}
        await teller._tell()
        clock.now += 60
    assert len(teller.journal.unsent(clock.now, 10)) == 1
    await teller._tell()
    assert teller.journal.unsent(clock.now + 3600, 10) == []


async def test_a_verdict_that_does_not_get_through_keeps_no_other_waiting(teller: Validator, clock: Clock) -> None:
    orchestrator: Any = teller.client
    orchestrator.refusals = {0: UnreachableError("no answer in 30 s")}
    for _ in range(2):
        with pytest.raises(UnreachableError):
            await teller._tell()
        clock.now += 0.5
    assert orchestrator.told == [1]


def test_nothing_is_told_about_what_a_reorg_took_back(journal: ValidatorJournal) -> None:
    tell(journal, work(0, block=20))
    reject(journal, pending(journal)[0], accuse_at=None)
    tell(journal, rewound_to=15)
    assert journal.unsent(9000.0, 10) == []
    tell(journal, work(0, block=21))
    assert len(journal.unsent(9000.0, 10)) == 1
