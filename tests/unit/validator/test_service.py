"""Verdicts on their way to the orchestrator: reported until they are taken, and none keeps another waiting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.clients.node_session import NodeSession
from muster.errors import UnreachableError
from muster.protocol.messages import Verdict
from muster.settings.schema import Settings, ValidatorSettings
from testbed.samples.court import HEAD
from testbed.samples.validator import ME, Clock, pending, receive, refusal, reject, work
from validator import outbox as outbox_room
from validator.outbox import MAX_REFUSALS
from validator.service import Validator


class Orchestrator:
    """Refuses the verdicts with these indices."""

    def __init__(self) -> None:
        self.refusals: dict[int, Exception] = {}
        self.taken: list[int] = []

    async def put_evidence(self, data: bytes) -> None: ...

    async def post_verdict(self, verdict: Verdict) -> None:
        if verdict.index in self.refusals:
            raise self.refusals[verdict.index]
        self.taken.append(verdict.index)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(outbox_room, "time", made)
    return made


@pytest.fixture
def reporter(tmp_path: Path) -> Iterator[Validator]:
    """A validator with two verdicts to report, and an orchestrator that takes them."""
    chain = SimpleNamespace(
        signer=SimpleNamespace(address=ME), chain_id=1, addresses=SimpleNamespace(runs="0x", from_block=0)
    )
    made_of = Settings(run=1, validator=ValidatorSettings(state_dir=tmp_path))
    validator = Validator(made_of, NodeSession(chain, Orchestrator()), None, [])  # type: ignore[arg-type]
    receive(validator.journal, work(0), work(1))
    for c in pending(validator.journal):
        reject(validator.journal, c, accuse_at=None)
    yield validator
    validator.journal.close()


@pytest.mark.parametrize("status", [401, 403, 404, 408, 429, 500])
async def test_a_verdict_is_reported_until_the_orchestrator_knows_what_it_is_about(
    reporter: Validator, clock: Clock, status: int
) -> None:
    orchestrator: Any = reporter.client
    orchestrator.refusals = {0: refusal(status)}
    for _ in range(5 * MAX_REFUSALS):
        await reporter.report(HEAD)
        clock.now += 60
    assert orchestrator.taken == [1], "the other one does not wait for it"
    orchestrator.refusals = {}
    await reporter.report(HEAD)
    assert orchestrator.taken == [1, 0]


async def test_a_verdict_that_is_wrong_is_given_up(reporter: Validator, clock: Clock) -> None:
    orchestrator: Any = reporter.client
    for status in [404] * 20 + [409] * (MAX_REFUSALS - 1):
        orchestrator.refusals = {0: refusal(status)}
        await reporter.report(HEAD)
        clock.now += 60
    assert len(reporter.journal.verdicts.due(clock.now, 10)) == 1
    await reporter.report(HEAD)
    assert reporter.journal.verdicts.due(clock.now + 3600, 10) == []


async def test_a_verdict_that_does_not_get_through_keeps_no_other_waiting(reporter: Validator, clock: Clock) -> None:
    orchestrator: Any = reporter.client
    orchestrator.refusals = {0: UnreachableError("no answer in 30 s")}
    for _ in range(2):
        with pytest.raises(UnreachableError):
            await reporter.report(HEAD)
        clock.now += 0.5
    assert orchestrator.taken == [1]
