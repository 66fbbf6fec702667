"""A run with traps on a real chain whose clock is moved, and validators that seal and claim in it.

The orchestrator's answers are made here, so that they can be wrong.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from muster.chain.client import Chain
from muster.clients.opened_traps import OpenedTraps
from muster.constants import HOUR_SECONDS, TOKEN
from muster.contracts import masters as masters_contract
from muster.contracts import registry, traps
from muster.contracts.run_terms import Series
from muster.contracts.runs import WorkCommitted
from muster.grading.masters import Masters
from muster.protocol.draws import link_of
from muster.protocol.eip712 import UNSIGNED, Domain, sign_message
from muster.protocol.hashes import hex_hash, keccak
from muster.protocol.messages import OpenedTrap, PlantedRow, TrapMap, TrapPage, TrapTicket, Verdict
from muster.protocol.terms import Terms
from muster.protocol.traps import is_picked, map_tree, planted_rows
from muster.runtime.loop import IDLE
from muster.verification.rules import CommittedWork
from testbed.chain.anvil import Anvil
from testbed.runs.run_fixture import VALIDATORS, RunFixture
from testbed.samples.validator import receive, verdict
from validator.claims import TrapClaimer
from validator.journal import ValidatorJournal
from validator.sealing import HourSealer
from validator.turns import Turns

PAY: Final = TOKEN // 10
PRIZE: Final = TOKEN // 2


@dataclass
class Pages:
    """Answers what an orchestrator does, two traps a page."""

    domain: Domain
    traps_of: dict[int, list[OpenedTrap]] = field(default_factory=dict)
    waiting: bool = True
    said: list[Verdict] = field(default_factory=list)

    async def verdicts(self, run: int, after: str | None) -> tuple[list[Verdict], str]:
        return self.said[int(after or 0) :], str(len(self.said))

    async def traps(self, run: int, epoch: int, after: int = 0) -> TrapPage:
        found = self.traps_of.get(epoch, [])[after : after + 2]
        return TrapPage(traps=found, cursor=after + len(found))

    async def still_waits(self, *_: object) -> bool:
        return self.waiting


@dataclass
class Watcher:
    """A validator of the run: its journal, and what it does."""

    name: str
    chain: Chain
    journal: ValidatorJournal
    sealer: HourSealer
    turns: Turns
    claimer: TrapClaimer

    async def seal(self) -> None:
        while await self.sealer.poll(await self.chain.head()) is not IDLE:
            pass

    async def claim(self) -> None:
        await self.claimer.poll(await self.chain.head())

    async def account(self) -> traps.Account:
        return await self.chain.call(traps.account(self.chain.signer.address))


@dataclass
class Place:
    fixture: RunFixture
    terms: Terms
    masters: Masters
    pages: Pages
    watchers: dict[str, Watcher]
    works: dict[int, CommittedWork] = field(default_factory=dict)
    opened: dict[int, OpenedTrap] = field(default_factory=dict)
    """By index, of the picked ones that took a ticket."""

    async def at(self, second: int) -> None:
        async with self.fixture.local_chain() as dev:
            await dev.advance_to(second)

    async def commit(self, index: int, step: int, *, picked: bool, ticket: bool) -> CommittedWork:
        """Make a commitment of w1, with a ticket if it is a trap."""
        root = keccak(f"work {index}".encode())
        async with self.fixture.local_chain() as dev:
            second = await dev.now()
        if picked and ticket:
            self.opened[index] = self.trap(index, root, second - 1)
        await self.fixture.commit("w1", index, hex_hash(root), step)
        async with self.fixture.chain("stranger") as chain:
            head = await chain.head()
            [event] = await chain.events([WorkCommitted], head.number, head.number)
        assert isinstance(event, WorkCommitted)
        self.works[index] = CommittedWork.of(event)
        for watcher in self.watchers.values():
            receive(watcher.journal, event)
        return self.works[index]

    def trap(self, index: int, root: bytes, second: int, storage: str = "storage", salt: int = 1) -> OpenedTrap:
        count = planted_rows(self.terms.positions, index)
        planted = TrapMap(
            salt=hex_hash(bytes([salt] * 32)), rows=[PlantedRow(position=2 * i, token=3) for i in range(count)]
        )
        ticket = TrapTicket(
            run=self.fixture.run,
            node=self.fixture.key("w1").address,
            index=index,
            root=hex_hash(root),
            map_root=hex_hash(map_tree(planted).root),
            stored_at=second,
            signature=UNSIGNED,
        )
        by = [sign_message(self.fixture.key(name), self.fixture.domain, ticket) for name in (storage, "w1")]
        return OpenedTrap(ticket=by[0], consent=by[1], map=planted)

    async def reveal(self, epoch: int) -> None:
        async with self.fixture.chain("stranger") as chain:
            await chain.send(masters_contract.reveal_master(self.fixture.run, Series.TRAPS, self.masters.of(epoch)))

    def picked(self, entropy: bytes, index: int, epoch: int) -> bool:
        node = self.fixture.key("w1").address
        return is_picked(
            master=self.masters.of(epoch), entropy=entropy, node=node, index=index, every=self.terms.trap_every
        )


@asynccontextmanager
async def trap_place(anvil: Anvil, folder: Path) -> AsyncIterator[Place]:
    """Yield a run of one worker, w1, with four validators, on a chain that nothing else uses."""
    masters = Masters.make(3)
    terms = {"trap_every": 20, "trap_prize": PRIZE, "trap_tip": masters.tip, "trap_epochs": 3, "trap_epoch_steps": 1}
    money = {"pay": PAY, "worker_stake": 300 * TOKEN, "accepts_required": 1}
    fixture = await RunFixture.build_on(anvil, folder, seed="claims", workers=("w1",), **terms, **money)
    await fixture.publish(0)
    async with AsyncExitStack() as stack:
        pages, watchers = Pages(fixture.domain), {}
        for name in VALIDATORS:
            chain = await stack.enter_async_context(fixture.chain(name))
            run_terms = await chain.terms(fixture.run)
            journal = ValidatorJournal(folder / name, name, fixture.run, chain.signer.address)
            stack.callback(journal.close)
            joined = (await chain.call(registry.node(chain.signer.address))).registered_at // HOUR_SECONDS
            journal.first_hour = joined
            links = partial(link_of, fixture.links(name)[0], joined)
            turns = Turns(chain, pages, journal, run_terms, links)  # type: ignore[arg-type]
            opened = OpenedTraps(chain, pages, fixture.run, run_terms)  # type: ignore[arg-type]
            claimer = TrapClaimer(chain, journal, run_terms, turns, opened, fixture.run)
            sealer = HourSealer(chain, journal, fixture.run, links, run_terms)
            watchers[name] = Watcher(name, chain, journal, sealer, turns, claimer)
        yield Place(fixture, run_terms, masters, pages, watchers)


def judge_all(watcher: Watcher, rejects: dict[int, int], skips: int | None = None) -> None:
    """Judge all that waits, but for one index: reject these indices for a row each, accept the others."""
    for c, _ in watcher.journal.pending(1 << 40, 2000.0, 1000):
        if c.index == skips:
            continue
        if c.index in rejects:
            made = verdict(
                c, accepted=False, reason="sampling_mismatch", position=rejects[c.index], evidence="0x" + "09" * 32
            )
            watcher.journal.judge(c, made, b"bundle", accuse_at=0.0, held=True)
        else:
            watcher.journal.judge(c, verdict(c), None, accuse_at=None)
