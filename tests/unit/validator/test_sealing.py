"""What a seal vouches for, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.chain.types import Block
from muster.constants import HOUR_SECONDS
from muster.contracts.codec import Call, Transaction
from muster.protocol.looks import link_due_at
from muster.protocol.merkle import LeafTree
from muster.runtime.loop import AGAIN
from muster.verification.rules import CommittedWork
from testbed.samples.validator import ME, NODE, pending, receive, verdict, work
from validator.journal import ValidatorJournal
from validator.outbox import CLOSING_SECONDS
from validator.sealing import EMPTY_ROOT, SEALING_SECONDS, HourSealer, vouch_leaf, vouch_root


def test_the_vouch_root_opens_to_what_was_accepted() -> None:
    accepted = [CommittedWork(1, index // 3, NODE, index, bytes([index]) * 32, hour=5, block=1) for index in range(5)]
    anchors = {0: b"\x0a" * 32, 1: b"\x0b" * 32}
    leaves = [vouch_leaf(c, anchors[c.step]) for c in accepted]
    assert vouch_root(accepted, anchors) == LeafTree.from_hashes(leaves).root
    assert vouch_root(accepted[:4], anchors) != vouch_root(accepted, anchors)
    assert vouch_root(accepted, anchors | {1: b"\x0c" * 32}) != vouch_root(accepted, anchors)
    assert vouch_root([], {}) == EMPTY_ROOT == bytes(32)
    assert len(set(leaves)) == 5


HOUR = 5
ENDED = (HOUR + 1) * HOUR_SECONDS


class SealChain:
    """A chain that takes seals."""

    signer = SimpleNamespace(address=ME)

    def __init__(self) -> None:
        self.sealed = 0
        self.sent: list[tuple[int, bytes, bytes]] = []

    async def call(self, call: Call) -> Any:
        return {"Runs.UNSEALED_WINDOW_HOURS": 24, "Runs.sealerOf": SimpleNamespace(last_sealed=self.sealed)}[call.label]

    async def checkpoint(self, run: int, step: int) -> Any:
        return SimpleNamespace(anchor=bytes(32))

    async def send(self, transaction: Transaction) -> Any:
        arguments: Any = transaction.arguments
        _, self.sealed, *_ = arguments
        self.sent.append(arguments[1:])
        return SimpleNamespace(hash=bytes(32))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[ValidatorJournal]:
    with ValidatorJournal(tmp_path, "me", 1, ME) as made:
        yield made


async def seals(journal: ValidatorJournal, second: int, chain: SealChain | None = None) -> list[int]:
    """Return the hours that are sealed at a second."""
    chain = chain or SealChain()
    made: Any = chain
    sealer = HourSealer(made, journal, 1, lambda hour: hour.to_bytes(32, "big"))
    while await sealer.poll(Block(9, second, bytes(32))) is AGAIN:
        pass
    return [hour for hour, _, _ in chain.sent]


async def test_an_hour_is_sealed_once_its_verdicts_are_taken(journal: ValidatorJournal) -> None:
    receive(journal, work(0, hour=HOUR), work(1, hour=HOUR))
    other, c = pending(journal)
    journal.pass_over(other)
    assert await seals(journal, ENDED) == [], "a commitment waits"
    journal.judge(c, verdict(c), None, accuse_at=None)
    assert await seals(journal, ENDED) == [], "the orchestrator does not have the verdict"
    assert await seals(journal, link_due_at(HOUR) - SEALING_SECONDS - 1) == []
    assert await seals(journal, link_due_at(HOUR) - SEALING_SECONDS) == [HOUR], "the link is nearly due"
    journal.verdicts.sent(c)
    assert await seals(journal, ENDED - 1) == []
    chain = SealChain()
    assert await seals(journal, ENDED, chain) == [HOUR]
    assert chain.sent == [(HOUR, vouch_root([c], {0: bytes(32)}), HOUR.to_bytes(32, "big"))]
    assert await seals(journal, ENDED, chain) == [HOUR], "and only once"


async def test_work_that_waits_keeps_no_hour_from_being_sealed_in_time(journal: ValidatorJournal) -> None:
    receive(journal, work(0, hour=HOUR), work(1, hour=HOUR), work(2, hour=HOUR + 1))
    for c in pending(journal):
        if c.index:
            journal.judge(c, verdict(c), None, accuse_at=None)
            journal.verdicts.sent(c)
    assert await seals(journal, link_due_at(HOUR) - CLOSING_SECONDS - 1) == []
    assert await seals(journal, link_due_at(HOUR) - CLOSING_SECONDS) == [HOUR, HOUR + 1]


async def test_hours_without_a_verdict_are_not_sealed(journal: ValidatorJournal) -> None:
    receive(journal, work(0, hour=HOUR), work(1, hour=HOUR + 1))
    one, other = pending(journal)
    journal.pass_over(one)
    assert await seals(journal, link_due_at(HOUR + 1)) == [], "nothing was judged"
    journal.judge(other, verdict(other), None, accuse_at=None)
    assert await seals(journal, link_due_at(HOUR + 1)) == [other.hour]
    assert await seals(journal, (HOUR + 26) * HOUR_SECONDS) == [], "too late"
