"""When a validator claims its wages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from muster.clients.looks import WageAccount
from muster.contracts import wages
from muster.contracts.codec import Call, Transaction
from muster.contracts.wages import Claimed
from muster.errors import MismatchError, RevertError
from muster.runtime.loop import IDLE, Waiting
from testbed.samples.validator import ME, Clock, place
from validator import claimer as claimer_room
from validator.claimer import WageClaimer

CLAIM = wages.claim(1, bytes(32), ME, 7, [])


class Reader:
    """Says what is due, or cannot."""

    run = 1

    def __init__(self, found: WageAccount | Exception) -> None:
        self.found = found
        self.asked = 0

    async def account(self, validator: str) -> WageAccount:
        assert validator == ME
        self.asked += 1
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


class Chain:
    """Takes claims."""

    signer = SimpleNamespace(address=ME)

    def __init__(self) -> None:
        self.posted = 0
        self.sent: list[Transaction] = []
        self.refusal: Exception | None = None

    async def call(self, call: Call) -> Any:
        assert call == wages.pot(1)
        return SimpleNamespace(posted=self.posted)

    async def send(self, transaction: Transaction) -> Any:
        if self.refusal is not None:
            raise self.refusal
        self.sent.append(transaction)
        return SimpleNamespace(events=(Claimed(place(9), 1, ME, 7),), hash=bytes(32))


DUE = WageAccount(earned=9, posted=7, paid=0, claim=CLAIM)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(claimer_room, "time", made)
    return made


def claimer_of(chain: Any, reader: Any, hours: float = 24) -> WageClaimer:
    return WageClaimer(chain, reader, hours)


async def test_wages_are_claimed_once_they_are_posted_and_then_once_a_day(clock: Clock) -> None:
    chain, reader = Chain(), Reader(WageAccount(earned=9, posted=0, paid=0))
    claimer = claimer_of(chain, reader)
    assert (await claimer.poll(), reader.asked) == (IDLE, 0), "nothing is posted"
    chain.posted = 5
    for _ in range(2):
        assert (await claimer.poll(), reader.asked) == (IDLE, 1), "nothing of that is this validator's"
    chain.posted, reader.found = 12, DUE
    for later in (0.0, 24 * 3600 - 1, 1.0):
        clock.now += later
        assert await claimer.poll() is IDLE
    assert chain.sent == [CLAIM, CLAIM]


async def test_nothing_is_claimed_where_the_operator_says_so(clock: Clock) -> None:
    chain = Chain()
    chain.posted = 12
    assert await claimer_of(chain, Reader(DUE), hours=0).poll() is IDLE
    assert chain.sent == []


@pytest.mark.parametrize("trouble", ["list", "chain"])
async def test_a_claim_that_fails_is_tried_again(clock: Clock, trouble: str) -> None:
    chain, reader = Chain(), Reader(DUE)
    chain.posted = 12
    claimer = claimer_of(chain, reader)
    if trouble == "list":
        reader.found = MismatchError("signed by another")
    else:
        chain.refusal = RevertError("nothing", name="NothingOwed", values={})
    assert isinstance(await claimer.poll(), Waiting)
    reader.found, chain.refusal = DUE, None
    await claimer.poll()
    assert chain.sent == [CLAIM]
