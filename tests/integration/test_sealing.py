"""Which hours a validator seals: those it served in, in order, and none that waits for ever keeps others waiting.

On a chain whose clock is moved; the journal receives work of whichever hours a test wants.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from muster.chain.client import Chain
from muster.constants import HOUR_SECONDS
from muster.contracts import registry, runs
from muster.contracts.registry import Role
from muster.protocol.draws import link_of
from muster.runtime.loop import IDLE
from testbed.chain.anvil import Anvil
from testbed.runs.run_fixture import RunFixture
from testbed.samples.validator import pending, receive, verdict, work
from validator.journal import ValidatorJournal
from validator.outbox import CLOSING_SECONDS
from validator.sealing import HourSealer

SENIORITY = 3000
"""Seconds until a validator may seal."""


@pytest.fixture(scope="module")
def run_fixture(own_anvil: Anvil, built_contracts: None, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    async def build() -> RunFixture:
        folder = tmp_path_factory.mktemp("sealing")
        built = await RunFixture.build_on(own_anvil, folder, seed="sealing", workers=(), jury_seniority=SENIORITY)
        await built.publish(0)
        return built

    return asyncio.run(build())


@dataclass(frozen=True)
class Newcomer:
    """A validator that registered half an hour into an hour."""

    run_fixture: RunFixture
    chain: Chain
    journal: ValidatorJournal
    sealer: HourSealer
    joined: int
    """That hour."""

    @classmethod
    @asynccontextmanager
    async def of(cls, run_fixture: RunFixture, folder: Path) -> AsyncIterator[Newcomer]:
        name = folder.name
        async with run_fixture.local_chain() as dev:
            await dev.fund([run_fixture.key(name).address, run_fixture.key(f"operator of {name}").address])
            hour = await dev.now() // HOUR_SECONDS + 1
            await dev.advance_to(hour * HOUR_SECONDS + 1800)
        await run_fixture.join(name, Role.VALIDATOR)
        async with run_fixture.chain(name) as chain:
            node = await chain.call(registry.node(chain.signer.address))
            assert node.registered_at // HOUR_SECONDS == hour
            journal = ValidatorJournal(folder, name, run_fixture.run, chain.signer.address)
            links = partial(link_of, run_fixture.links(name)[0], hour)
            sealer = HourSealer(chain, journal, run_fixture.run, links)
            yield cls(run_fixture, chain, journal, sealer, hour)
            journal.close()

    def receive(self, *hours: int) -> None:
        """A commitment in each of these hours after `joined`, its index the hour since 1970."""
        receive(self.journal, *(work(self.joined + hour, hour=self.joined + hour) for hour in hours))

    def waiting(self) -> list[int]:
        """Of which hours after `joined` something is to be judged."""
        return sorted(c.hour - self.joined for c in pending(self.journal))

    def accept(self, *hours: int) -> None:
        """Judge what waits of these hours."""
        for c in pending(self.journal):
            if c.hour - self.joined in hours:
                self.journal.judge(c, verdict(c), None, accuse_at=None)
                self.journal.verdicts.sent(c)

    async def at(self, hour: float, second: int = 0) -> None:
        """Move the clock there, from the beginning of `joined`."""
        async with self.run_fixture.local_chain() as dev:
            await dev.advance_to(int((self.joined + hour) * HOUR_SECONDS) + second)

    async def seals(self) -> list[int]:
        """Seal until nothing is left to do, and return the sealed hours, counted from `joined`."""
        for _ in range(20):
            if await self.sealer.poll(await self.chain.head()) is IDLE:
                break
        else:
            raise AssertionError("it never comes to rest")
        sealed = []
        for hour in range(self.joined - 3, self.joined + 100):
            if await self.chain.call(runs.vouch_root(self.chain.signer.address, hour)) != bytes(32):
                sealed.append(hour - self.joined)
        return sealed


@pytest.fixture
async def newcomer(run_fixture: RunFixture, tmp_path: Path) -> AsyncIterator[Newcomer]:
    async with Newcomer.of(run_fixture, tmp_path) as newcomer:
        yield newcomer


async def test_every_hour_with_work_is_sealed_once_all_of_it_is_judged(newcomer: Newcomer) -> None:
    newcomer.receive(1, 3)
    newcomer.accept(1)
    await newcomer.at(4)
    assert await newcomer.seals() == [1], "something of the other hour is not judged yet"
    newcomer.accept(3)
    assert await newcomer.seals() == [1, 3]


async def test_late_validator_judges_and_seals_from_its_joining(newcomer: Newcomer) -> None:
    newcomer.journal.first_hour = newcomer.joined
    newcomer.receive(-2, -1, 0, 1)
    assert newcomer.waiting() == [0, 1], "others have judged what was before"
    assert newcomer.journal.backlog() == 2
    newcomer.accept(0, 1)
    assert newcomer.journal.backlog() == 0
    await newcomer.at(2)
    assert await newcomer.seals() == [0, 1]


async def test_an_hour_that_ends_before_a_newcomer_may_seal_is_sealed_later(newcomer: Newcomer) -> None:
    newcomer.receive(0)
    newcomer.accept(0)
    await newcomer.at(1)
    assert await newcomer.seals() == []
    await newcomer.at(0.5, SENIORITY + 60)
    assert await newcomer.seals() == [0]


async def test_work_that_cannot_be_judged_delays_no_link_that_is_due(newcomer: Newcomer) -> None:
    newcomer.receive(1, 2)
    newcomer.accept(2)
    await newcomer.at(4, -CLOSING_SECONDS - 60)
    assert await newcomer.seals() == []
    await newcomer.at(4, -CLOSING_SECONDS)
    assert await newcomer.seals() == [2]
    assert newcomer.journal.count(newcomer.joined + 1, "pending") == 1


async def test_a_validator_that_comes_back_passes_over_what_it_missed(newcomer: Newcomer) -> None:
    newcomer.receive(1, 2, 90)
    newcomer.accept(1, 2, 90)
    await newcomer.at(99)
    assert await newcomer.seals() == [90]


async def test_seal_that_a_reorg_drops_is_made_again(newcomer: Newcomer) -> None:
    """Also where the reorg takes no event of the journal back: its cursor is behind the seal's block."""
    newcomer.receive(1, 2)
    newcomer.accept(1, 2)
    await newcomer.at(3)
    kept = (await newcomer.chain.head()).number
    assert await newcomer.seals() == [1, 2]
    async with newcomer.run_fixture.local_chain() as dev:
        await dev.reorg((await newcomer.chain.head()).number - kept, drop=True)
    assert await newcomer.seals() == [1, 2]
