"""Who is called to a commitment and when, who is called last, and what a reorg and a late file change."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from muster.chain.types import Block
from muster.contracts.registry import Role
from muster.contracts.runs import HourSealed
from muster.errors import RefusedError
from muster.ledger.database import Database
from muster.ledger.queries import NodeRecord
from muster.ledger.tallies import find_commitment
from muster.protocol.looks import Seat, call_order, hold_seconds, link_due_at
from muster.protocol.messages import CallAnswer, CallQuestion, LookList, ValidatorTotal
from orchestrator.auth import Caller
from orchestrator.calls import Calls
from orchestrator.shown import ShownDocuments
from testbed.runs.recorded_run import HOUR, RUN, ServedSample, address, hash_of
from testbed.samples.messages import request_of, verdict_of

NAMES = ("vera", "viktor", "violet", "vince")


class Follower:
    """A follower that knows all blocks below `head_number`, and the chain that it follows."""

    def __init__(self, run: ServedSample) -> None:
        self.run, self.chain, self.head_number, self.fork = run, self, 1 << 40, b""

    async def next_poll(self) -> None:
        pass

    async def blocks(self, numbers: Sequence[int]) -> list[Block | None]:
        return [Block(number, self.second(number), self.hash(number)) for number in numbers]

    def second(self, number: int) -> int:
        return self.run.first_second + self.run.block_seconds * number

    def hash(self, number: int) -> bytes:
        return hashlib.sha256(self.fork + number.to_bytes(8, "big")).digest()


class CalledRun(ServedSample):
    """Four validators, of whom two are called to each commitment of wanda."""

    def __init__(self, database: Database, folder: Path) -> None:
        super().__init__(database, folder, accepts_required=2)
        self.follower: Any = Follower(self)
        self.calls = Calls(self.queries, self.follower, database)
        ShownDocuments(self.queries, database, self.log, storage_url=f"file:{folder}")
        self.hold = hold_seconds(self.terms)

    async def begin(self) -> None:
        for name in NAMES:
            await self.join(name, Role.VALIDATOR)
        await self.join("wanda")
        await self.publish(0)

    def order(self, index: int, *resting: str) -> list[str]:
        """Return the order that a commitment made in the last block is to have."""
        drawn, second = self.blocks + 1, self.follower.second
        seats = [Seat(address(name), second(at), rests=address(name) in resting) for at, name in enumerate(NAMES, 1)]
        given = {"block_hash": self.follower.hash(drawn), "at": second(drawn)}
        return call_order(seats, **given, node=address("wanda"), index=index, terms=self.terms)

    async def ask(self, validator: str, index: int, after: int = 0) -> CallAnswer:
        """Ask as a validator, by its address, so many seconds after the last block."""
        self.at(self.follower.second(self.blocks) + after)
        member = NodeRecord(validator, validator, "validator", "active")
        caller = Caller(validator, request_of(), member, is_trainer=False)
        question = CallQuestion(node=address("wanda"), index=index, root=self.root("wanda", index))
        return await self.calls.answer(caller, question)

    async def say(self, validator: str, index: int, after: int = 0, **changes: Any) -> None:
        work = {"node": address("wanda"), "index": index, "root": self.root("wanda", index)}
        verdict = verdict_of(**work, validator=validator, **changes)
        await self.record_verdict(verdict, 0.0, self.follower.second(self.blocks) + after)


@pytest.fixture
async def run(database: Database, tmp_path: Path) -> CalledRun:
    run = CalledRun(database, tmp_path)
    await run.begin()
    return run


async def test_the_first_of_the_order_may_look_and_the_next_once_a_place_lapses(run: CalledRun) -> None:
    index = await run.commit("wanda")
    order, opens = run.order(index), run.follower.second(run.blocks)
    answers = [await run.ask(one, index) for one in order]
    assert [answer.order for answer in answers] == [order] * 4
    assert [(one.opens, one.may_look) for one in answers] == [(opens, one) for one in (True, True, False, False)]
    assert [one.turn_at for one in answers] == [None, None, opens + run.hold, opens + run.hold]
    await run.say(order[0], index)
    assert not (await run.ask(order[0], index)).may_look
    assert [(await run.ask(one, index, after=run.hold)).may_look for one in order] == [False, False, True, False]
    await run.say(order[1], index, after=1)
    last = await run.ask(order[3], index, after=run.hold)
    assert (last.may_look, last.turn_at) == (False, None)
    assert (await run.calls.order(address("wanda"), index)).order == order


async def test_nobody_is_called_before_the_drawing_block(run: CalledRun) -> None:
    index = await run.commit("wanda")
    run.follower.head_number = run.blocks
    with pytest.raises(RefusedError) as refused:
        await run.ask(address("vera"), index)
    assert refused.value.status == 425
    run.follower.head_number += 1
    assert (await run.ask(address("vera"), index)).order == run.order(index)


async def test_places_open_when_the_file_comes(run: CalledRun) -> None:
    index = await run.commit("wanda")
    order, opens = run.order(index), run.follower.second(run.blocks)
    await run.ask(order[0], index)
    await run.say(order[0], index, after=1, accepted=False, reason="data_missing")
    assert not (await run.ask(order[0], index, after=run.hold)).may_look
    await run.record_upload(address("wanda"), index, run.root("wanda", index), hash_of("file"), stored_at=opens + 500)
    answer = await run.ask(order[0], index, after=500)
    assert (answer.opens, answer.may_look) == (opens + 500, True)


async def lapse_three_times(run: CalledRun, silent: str, *, filed: bool) -> None:
    """Call a validator three times to work that only others judge. `filed`: whether its files are there."""
    for _ in range(3):
        index = await run.commit("wanda")
        while silent not in (order := run.order(index))[:2]:
            index = await run.commit("wanda")
        if filed:
            await run.record_upload(address("wanda"), index, run.root("wanda", index), hash_of(f"file {index}"))
        await run.ask(order[0], index)
        for one in {*order[:2]} - {silent}:
            await run.say(one, index)
        await run.say(order[2], index, after=run.hold)
        run.blocks += 10


async def test_who_lets_three_places_lapse_is_called_last_for_the_rest_of_the_day(run: CalledRun) -> None:
    silent = address("vera")
    await lapse_three_times(run, silent, filed=True)
    index = await run.commit("wanda")
    assert (await run.ask(silent, index)).order == run.order(index, silent)
    run.blocks += 24 * 60
    index = await run.commit("wanda", hour=HOUR + 24)
    assert (await run.ask(silent, index)).order == run.order(index)


async def test_no_place_lapses_where_a_worker_keeps_its_file_back(run: CalledRun) -> None:
    silent = address("vera")
    await lapse_three_times(run, silent, filed=False)
    index = await run.commit("wanda")
    assert (await run.ask(silent, index)).order == run.order(index)


async def test_who_owes_a_link_is_called_last_until_it_is_shown(run: CalledRun) -> None:
    """All looked, so that no place lapses, and one of them about the hour whose link is due."""

    async def order_of(hour: int) -> tuple[int, list[str]]:
        index = await run.commit("wanda", hour=hour)
        order = (await run.ask(address("vera"), index)).order
        for one in order[:2]:
            await run.say(one, index)
        return index, order

    _, (late, other, *_) = await order_of(HOUR)
    await run.happen(HourSealed, RUN, HOUR, other, bytes(32), bytes(32))
    run.blocks = (link_due_at(HOUR) - run.first_second) // run.block_seconds - 3
    index, order = await order_of(HOUR + 2)
    assert order == run.order(index)
    index, order = await order_of(HOUR + 2)
    assert order == run.order(index, late)
    await run.happen(HourSealed, RUN, HOUR, late, bytes(32), bytes(32))
    index, order = await order_of(HOUR + 3)
    assert order == run.order(index)


async def test_who_counts_no_more_is_called_last(run: CalledRun) -> None:
    index = await run.commit("wanda")
    barred, until = address("viktor"), run.follower.second(run.blocks + 1)
    for hour, second in ((HOUR - 20, until + 1), (HOUR - 19, until)):
        totals = [ValidatorTotal(validator=barred, total=7, barred_until=second)]
        listed = LookList(run=RUN, hour=hour, looks=[], checks=[], totals=totals)
        await run.database.write(lambda c, listed=listed: run.record(c, "looks", listed, address("trainer"), 0.0))
        resting = [barred] if second > until else []
        assert (await run.ask(barred, index)).order == run.order(index, *resting)
        index = await run.commit("wanda")
        until = run.follower.second(run.blocks + 1)


async def test_a_call_is_made_anew_where_its_block_is_replaced(run: CalledRun) -> None:
    index = await run.commit("wanda")
    before = run.order(index)
    for one in before[:2]:
        await run.ask(one, index)
        await run.say(one, index, drawn_by="0x" + run.follower.hash(run.blocks + 1).hex())
    assert await status(run, index) == "accepted"
    await run.database.write(lambda connection: run.projection.roll_back(connection, run.blocks))
    assert await status(run, index) == "pending"
    run.follower.fork = b"another"
    (answer,) = [await run.ask(before[0], index)]
    assert answer.order == run.order(index)
    assert await status(run, index) == "pending", "the looks are of another block"


async def status(run: CalledRun, index: int) -> str:
    found = await run.database.read(lambda connection: find_commitment(connection, address("wanda"), index))
    assert found is not None
    return found.status
