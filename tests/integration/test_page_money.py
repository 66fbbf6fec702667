"""A worker's money on its page is the chain's: over hours, seals, claims, an open case and a conviction. Real chain."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from muster.chain.client import charge_of, event_of, vote_hash
from muster.constants import HOUR_SECONDS
from muster.contracts import court, runs
from muster.contracts.court import CaseOpened
from muster.protocol.hashes import hash_bytes
from muster.protocol.kinds import kind_of
from testbed.chain.anvil import Anvil
from testbed.runs.run_fixture import Explorer, Orchestrator, RunFixture, some_hash
from testbed.waiting import until


class Money:
    """A worker of a run, its page, and what the contracts say."""

    def __init__(self, run_fixture: RunFixture, explorer: Explorer) -> None:
        self.run_fixture = run_fixture
        self.explorer = explorer
        self.node = run_fixture.key("w1").address
        self.indices: dict[int, int] = {}
        """A commitment of each hour."""

    def page(self) -> dict[str, Any]:
        status, body = self.explorer.get(f"/v1/runs/{self.run_fixture.run}/nodes/{self.node}")
        assert status == 200, body
        return json.loads(body)

    async def commit(self, count: int) -> None:
        """Commit in the hour that it is."""
        async with self.run_fixture.chain("w1") as chain:
            first = (await chain.call(runs.work(self.node))).next
        for index in range(first, first + count):
            await self.run_fixture.commit("w1", index, some_hash(f"root {index}"))
        async with self.run_fixture.chain("w1") as chain:
            committed = (await chain.call(runs.commitment(self.node, first))).committed_at
        self.indices.setdefault(committed // HOUR_SECONDS, first)

    async def next_hour(self, hours: int = 1) -> int:
        """Move the clock to the beginning of a later hour; which one."""
        async with self.run_fixture.local_chain() as dev:
            hour = await dev.now() // HOUR_SECONDS + hours
            await dev.advance_to(hour * HOUR_SECONDS + 60)
        return hour

    async def seal(self, hour: int) -> None:
        for name in ("v1", "v2"):
            async with self.run_fixture.chain(name) as chain:
                await self.run_fixture.seal(chain, name, hour)

    async def claim(self, through: int) -> None:
        async with self.run_fixture.chain("w1") as chain:
            await chain.send(runs.claim(self.node, through))

    async def expected(self) -> dict[str, Any]:
        """What the contracts say, at the newest block."""
        async with self.run_fixture.chain("stranger") as chain:
            work, claimable = await chain.call_all([runs.work(self.node), runs.claimable(self.node)])
            open_hours = {hour: first for hour, first in self.indices.items() if self._last(hour, work) >= work.settled}
            times = [
                await chain.call_all([runs.payable_at(self.node, first), runs.matures_at(self.node, first)])
                for first in open_hours.values()
            ]
            now = (await chain.head()).timestamp
        return {
            "block_time": now,
            "claimable": claimable.amount,
            "maturing": (work.next - work.settled) * work.pay - claimable.amount,
            "unsettled": work.next - work.settled,
            "hours": {hour: payable for hour, (payable, _) in zip(open_hours, times, strict=True)},
            "unfrozen": all(payable == matures for payable, matures in times),
        }

    def _last(self, hour: int, work: Any) -> int:
        """The last index of an hour."""
        return min([first for first in self.indices.values() if first > self.indices[hour]], default=work.next) - 1

    def shown(self) -> dict[str, Any]:
        """The same by the page."""
        page = self.page()
        money = page["money"]
        return {
            "block_time": page["block_time"],
            "claimable": int(money["claimable"]),
            "maturing": int(money["maturing"]),
            "unsettled": sum(hour["unsettled"] for hour in money["waiting"]),
            "hours": {hour["hour"]: hour["matures_at"] for hour in money["waiting"]},
            "unfrozen": all(hour["state"] in ("maturing", "claimable") for hour in money["waiting"]),
        }

    async def agrees(self) -> dict[str, Any]:
        """Wait until page and chain agree; what they say."""
        seen: list[object] = []

        async def agreed() -> dict[str, Any] | None:
            expected, shown = await self.expected(), await asyncio.to_thread(self.shown)
            seen[:] = shown, expected
            return shown if shown == expected else None

        return await until(agreed, lambda: seen)

    def states(self) -> list[str]:
        return [hour["state"] for hour in self.page()["hours"]]


@pytest.fixture
async def money(start_anvil: Callable[..., Anvil], built_contracts: None, tmp_path: Path) -> AsyncIterator[Money]:
    run_fixture = await RunFixture.build_on(start_anvil(), tmp_path, seed="money", workers=("w1",))
    with (
        Orchestrator(run_fixture, tmp_path / "orchestrator") as orchestrator,
        Explorer(run_fixture, tmp_path / "explorer", orchestrator.url) as explorer,
    ):
        await run_fixture.publish(0)
        yield Money(run_fixture, explorer)


async def test_a_worker_sees_the_chains_money(money: Money) -> None:
    # Three hours of work, the first two sealed: they mature after a day, the third one after three.
    first = await money.next_hour()
    await money.commit(3)
    await money.next_hour()
    await money.commit(2)
    await money.next_hour(2)
    await money.commit(1)
    assert (await money.agrees())["claimable"] == 0
    await money.seal(first + 1)
    found = await money.agrees()
    assert found["unsettled"] == 6
    assert found["hours"][first] == (first + 1 + 24) * HOUR_SECONDS
    assert found["hours"][first + 3] == (first + 4 + 72) * HOUR_SECONDS
    assert money.states() == ["maturing"] * 3

    # A day later.
    await money.next_hour(22)
    pay = 2 * 10**18
    assert (await money.agrees())["claimable"] == 3 * pay
    await money.next_hour()
    assert (await money.agrees())["claimable"] == 5 * pay
    assert money.states() == ["claimable", "claimable", "maturing"]

    # A worker claims a part of an hour, then the rest.
    await money.claim(3)
    assert (await money.agrees())["claimable"] == pay
    assert money.states() == ["settled", "claimable", "maturing"]
    assert money.page()["money"]["claimed"] == str(4 * pay)
    await money.claim(4)
    assert (await money.agrees())["unsettled"] == 1

    # An hour without a seal.
    await money.next_hour(48)
    found = await money.agrees()
    assert (found["claimable"], found["maturing"]) == (0, pay)
    await money.next_hour(2)
    assert (await money.agrees())["claimable"] == pay

    await _accused(money)


async def _accused(money: Money) -> None:
    """A case freezes what it may be about; the conviction voids all that was not claimed."""
    hour = await money.next_hour()
    await money.commit(2)
    run_fixture, node, step = money.run_fixture, money.node, 0
    about = (node, 7, step, hash_bytes(some_hash("root 7")))
    async with run_fixture.chain("v1") as chain:
        evidence = bytes(32)
        opened = event_of(
            await chain.send(court.open_case(court.Target(*about), kind_of("wrong_reward"), 0, evidence)), CaseOpened
        )
    found = await money.agrees()
    assert not found["unfrozen"]
    assert found["hours"][hour] == (hour + 1 + 72 + 24) * HOUR_SECONDS + 7200
    assert money.states()[-2:] == ["frozen", "frozen"]

    case = json.loads(money.explorer.get(f"/v1/runs/{run_fixture.run}/cases/{opened.case_id}")[1])
    assert (case["case"]["outcome"], case["case"]["opened_at"]) == ("open", opened.commit_ends - 3600)
    salts = {name: secrets.token_bytes(32) for name in ("v2", "v3", "v4")}
    for name, salt in salts.items():
        async with run_fixture.chain(name) as chain:
            secret = vote_hash(opened.case_id, run_fixture.key(name).address, True, salt)
            await chain.send(court.commit_vote(opened.case_id, charge_of(opened), secret))
    for name, salt in salts.items():
        async with run_fixture.chain(name) as chain:
            await chain.send(court.reveal_vote(opened.case_id, True, salt))
    async with run_fixture.chain("v1") as chain:
        await chain.send(court.resolve(opened.case_id))
    found = await money.agrees()
    assert (found["unsettled"], found["hours"]) == (0, {})
    assert money.states()[-2:] == ["void", "void"]
    page = money.page()
    assert page["status"] == "jailed"
    assert page["money"]["voided"] == str(3 * 2 * 10**18)
    guilty = (
        f"Guilty by 3 of 3 votes: {node} lost its unsettled pay and 50 MUST, of which 10 MUST went to the challenger."
    )

    def resolved() -> dict[str, Any]:
        case = json.loads(money.explorer.get(f"/v1/runs/{run_fixture.run}/cases/{opened.case_id}")[1])
        return case if case["state"] == guilty else {}

    case = await until(lambda: asyncio.to_thread(resolved), guilty)  # an answer is kept for a moment
    assert (case["slashed"], case["bounty"]) == (str(50 * 10**18), str(10 * 10**18))
    assert [vote["guilty"] for vote in case["votes"]] == [True] * 3
