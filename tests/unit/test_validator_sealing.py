"""Which hours a validator seals: those it served in, in order, and none that waits for ever keeps others waiting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.chain.codec import Act, Place, View
from muster.chain.contracts.runs import WorkCommitted
from muster.chain.cursor import Batch
from muster.chain.types import Block
from muster.constants import HOUR_SECONDS
from muster.errors import RevertError
from muster.inspection import Commitment
from muster.messages import Verdict
from muster.signing import UNSIGNED
from validator.journal import ValidatorJournal
from validator.sealing import Sealing

ME, NODE = "0x" + "a" * 40, "0x" + "B" * 40
ROOT = b"\x01" * 32
WINDOW = 72


class Chain:
    """Takes seals as Runs._checkSealer and _checkSealHour do, at the second `now`, of a validator of `joined`."""

    signer = SimpleNamespace(address=ME)

    def __init__(self, joined: int = 0) -> None:
        self.joined = joined
        self.now = 0
        self.sealed: list[int] = []

    @property
    def head(self) -> Block:
        return Block(99, self.now, bytes(32))

    async def ask(self, view: View) -> Any:
        last = self.sealed[-1] if self.sealed else 0
        return {"Runs.lastSealed": last, "Runs.UNSEALED_WINDOW_HOURS": WINDOW}[view.label]

    async def checkpoint(self, run: int, step: int) -> Any:
        return SimpleNamespace(anchor=bytes(32))

    async def act(self, act: Act) -> Any:
        _, hour, _ = act.arguments
        end = (hour + 1) * HOUR_SECONDS
        for broken, name in (
            (end <= self.joined, "HourBeforeJoined"),
            (self.now < end, "HourNotEnded"),
            (self.now >= end + WINDOW * HOUR_SECONDS, "SealTooLate"),
            (self.sealed and hour <= self.sealed[-1], "SealNotRising"),
        ):
            if broken:
                raise RevertError(name, name=name, values={})
        self.sealed.append(hour)
        return SimpleNamespace(hash="0x")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[ValidatorJournal]:
    opened = ValidatorJournal(tmp_path, "me", 1, ME)
    yield opened
    opened.close()


def tell(journal: ValidatorJournal, *hours: int) -> None:
    """A commitment in each of these hours, its index the hour."""
    place = Place(10, bytes(32), bytes(32), 0)
    events = [WorkCommitted(place, run=1, node=NODE, step=0, index=hour, hour=hour, root=ROOT) for hour in hours]
    journal.record(Batch(tuple(events), 0, 99), now=1000.0)


def pending(journal: ValidatorJournal) -> list[Commitment]:
    return [item.commitment for item in journal.pending(1_000, 2000.0, 100)]


def accept(journal: ValidatorJournal, *hours: int) -> None:
    """Judge what waits of these hours."""
    for c in pending(journal):
        if c.hour in hours:
            verdict = Verdict(
                run=1,
                step=c.step,
                node=c.node,
                index=c.index,
                root="0x" + c.root.hex(),
                file_hash="0x" + "00" * 32,
                validator=ME,
                accepted=True,
                draw_index=journal.take_link(c),
                preimage="0x" + "00" * 32,
                signature=UNSIGNED,
            )
            journal.judge(c, verdict, None, accuse_at=None)


async def turns(sealing: Sealing, chain: Chain) -> None:
    """Until there is nothing to do."""
    for _ in range(20):
        if not await sealing.turn(chain.head):
            return
    raise AssertionError("it never comes to rest")


async def test_who_is_there_from_the_start_seals_every_hour_with_work(journal: ValidatorJournal) -> None:
    chain = Chain(joined=4 * HOUR_SECONDS)
    journal.first_hour = 4
    sealing = Sealing(chain, journal, 1)  # type: ignore[arg-type]
    tell(journal, 5, 7)
    accept(journal, 5)
    chain.now = 8 * HOUR_SECONDS
    await turns(sealing, chain)
    assert chain.sealed == [5], "something of the other hour is not judged yet"
    accept(journal, 7)
    await turns(sealing, chain)
    assert chain.sealed == [5, 7]


async def test_who_joins_a_run_at_work_judges_and_seals_from_then_on(journal: ValidatorJournal) -> None:
    chain = Chain(joined=7 * HOUR_SECONDS + 1800)
    journal.first_hour = 7
    tell(journal, 5, 6, 7, 8)
    assert {c.hour for c in pending(journal)} == {7, 8}, "others have judged what was before"
    assert journal.backlog() == 2
    accept(journal, 7, 8)
    assert journal.backlog() == 0
    chain.now = 9 * HOUR_SECONDS
    await turns(Sealing(chain, journal, 1), chain)  # type: ignore[arg-type]
    assert chain.sealed == [7, 8]


async def test_an_hour_that_the_contract_will_never_take_is_passed_over(journal: ValidatorJournal) -> None:
    """As after a reorg that moved the registration."""
    chain = Chain(joined=7 * HOUR_SECONDS)
    tell(journal, 5, 6, 7)
    accept(journal, 5, 6, 7)
    chain.now = 8 * HOUR_SECONDS
    await turns(Sealing(chain, journal, 1), chain)  # type: ignore[arg-type]
    assert chain.sealed == [7]


async def test_what_can_never_be_judged_holds_up_its_own_hour_only_until_its_deadline(
    journal: ValidatorJournal,
) -> None:
    chain = Chain()
    sealing = Sealing(chain, journal, 1)  # type: ignore[arg-type]
    tell(journal, 5, 20)
    accept(journal, 20)
    chain.now = (6 + WINDOW) * HOUR_SECONDS - 1
    await turns(sealing, chain)
    assert chain.sealed == []
    chain.now += 1
    await turns(sealing, chain)
    assert chain.sealed == [20]
    assert journal.unjudged(5) == 1


async def test_a_validator_that_comes_back_passes_over_what_it_missed(journal: ValidatorJournal) -> None:
    chain = Chain()
    tell(journal, 5, 6, 90)
    accept(journal, 5, 6, 90)
    chain.now = 100 * HOUR_SECONDS
    await turns(Sealing(chain, journal, 1), chain)  # type: ignore[arg-type]
    assert chain.sealed == [90]
