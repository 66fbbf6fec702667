"""What validators seal of traps and are paid for them, on a real chain whose clock is moved.

The orchestrator's answers are made here, so that they can be wrong.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from muster.clients.opened_traps import OpenedTraps
from muster.constants import HOUR_SECONDS
from muster.contracts import court, runs, token, traps
from muster.contracts import masters as masters_contract
from muster.contracts.court import Outcome
from muster.contracts.run_terms import Series
from muster.contracts.traps import LookPaid
from muster.errors import MalformedError, RevertError
from muster.grading.masters import Masters
from muster.protocol.calls import call_hash, is_called
from muster.protocol.hashes import hex_hash, keccak
from muster.protocol.kinds import kind_of
from muster.protocol.messages import TrapPage
from muster.protocol.seals import claims_end_at, closes_at, masters_due_at
from muster.protocol.traps import fine, weight
from muster.settings.schema import Settings
from muster.verification.profiles import CPU_FP32
from muster.verification.rules import CommittedWork
from testbed.chain.anvil import Anvil
from testbed.runs.run_fixture import VALIDATORS, RunFixture
from testbed.runs.trap_place import PAY, PRIZE, Pages, Place, Watcher, judge_all, trap_place
from testbed.samples.validator import pending
from trainer.traps import TrapKeeper
from validator.claims import ASK_AGAIN_SECONDS
from validator.sealing import CLOSING_SECONDS
from worker.context import WorkerContext
from worker.defender import Defender
from worker.journal import WorkJournal

MOST = 250
"""Commitments that are made at most until there are traps of all kinds."""


@pytest.fixture
async def place(own_anvil: Anvil, built_contracts: None, tmp_path: Path) -> AsyncIterator[Place]:
    async with trap_place(own_anvil, tmp_path) as made:
        yield made


def plan(place: Place, entropy: bytes, hour: int) -> tuple[dict[str, tuple[int, list[str]]], list[bool]]:
    """Return the commitments of an hour that a test is about, by their kind, and which commitments have a ticket.

    Of each: its index, and the validators that are called for it; for the one that nobody is called for, those that
    stand by. A kind is missing where the hour has none of it.
    """
    kinds: dict[str, tuple[int, list[str]]] = {}
    tickets: list[bool] = []
    node = place.fixture.key("w1").address
    while len(kinds) < 4 and len(tickets) < MOST:
        index = len(tickets)
        given = {"entropy": entropy, "node": node, "index": index}
        hashes = {name: call_hash(link=one.turns.link_of(hour), **given) for name, one in place.watchers.items()}
        calls, near = ([name for name in hashes if is_called(hashes[name], len(VALIDATORS), n)] for n in (1, 2))
        kind = "true"
        if place.picked(entropy, index, 1):
            kind = "alone" if not calls else "unticketed" if "called" in kinds else "called"
        # Of those that stand by for the one trap, one is not called for the other.
        standing = near if kind == "alone" else kinds["alone"][1] if "alone" in kinds else VALIDATORS
        claimants = calls if kind == "called" else kinds["called"][1] if "called" in kinds else []
        if len(calls) < 4 and (kind in ("true", "unticketed") or set(standing) - set(claimants)):
            kinds.setdefault(kind, (index, near if kind == "alone" else calls))
        tickets.append(kind in ("called", "alone"))
    return kinds, tickets


async def test_validators_are_paid_for_traps_that_they_found(place: Place) -> None:
    watchers = place.watchers
    async with place.fixture.chain("stranger") as chain:
        entropy = (await chain.draw_source(place.fixture.key("w1").address)).entropy

    # 1. Traps: one that somebody is called for, one that nobody is, and a pick without a ticket. One true row.
    async with place.fixture.local_chain() as dev:
        hours = range(await dev.now() // HOUR_SECONDS + 1, await dev.now() // HOUR_SECONDS + 9)
    plans = ((hour, plan(place, entropy, hour)) for hour in hours)
    hour, (planned, tickets) = next((hour, found) for hour, found in plans if len(found[0]) == 4)
    await place.at(hour * HOUR_SECONDS + 10)
    made = [
        await place.commit(index, 0, picked=place.picked(entropy, index, 1), ticket=ticket)
        for index, ticket in enumerate(tickets)
    ]
    kinds = {kind: (made[index], names) for kind, (index, names) in planned.items()}
    called, finders = kinds["called"]
    alone, true = kinds["alone"][0], kinds["true"][0]
    finder = finders[0]
    other = next(name for name in kinds["alone"][1] if name not in finders)
    lazy = next(name for name in VALIDATORS if name not in (finder, other))

    # 2. The finder rejects the first trap, another both, and a true row; lazy accepts all. All seal in time.
    rejects = {finder: {called.index: 0}, other: {called.index: 0, alone.index: 0, true.index: 1}}
    for name, watcher in watchers.items():
        judge_all(watcher, rejects.get(name, {}))
    await place.at(closes_at(hour) - CLOSING_SECONDS - HOUR_SECONDS)
    for watcher in watchers.values():
        await watcher.seal()
    sealer = await chain_call(watchers[other], runs.sealer_of)
    assert (sealer.last_sealed, sealer.rejected) == (hour, 3)
    shown = await watchers[other].chain.call(runs.link_of(watchers[other].chain.signer.address, hour))
    assert shown == watchers[other].turns.link_of(hour)
    with pytest.raises(RevertError, match="has shown the links of its hash chain through"):
        await watchers[other].chain.call(runs.link_of(watchers[other].chain.signer.address, hour + 1))
    assert await watchers[lazy].chain.call(runs.rejections(watchers[lazy].chain.signer.address, hour)) == bytes(32)

    # 3. Nothing is claimed before the master is shown, and nothing that a liar says of traps counts.
    true_ones = list(place.opened.values())
    root = called.root
    forged = [
        place.trap(called.index, root, 1, storage="stranger"),
        place.trap(called.index, keccak(b"another"), place.opened[called.index].ticket.stored_at),
        place.opened[called.index].model_copy(update={"map": place.trap(called.index, root, 1, salt=2).map}),
        place.trap(called.index, root, 1 << 40),
    ]
    await place.at(closes_at(hour))
    for watcher in watchers.values():
        await watcher.claim()
    assert {(await one.account()).credit for one in watchers.values()} == {0}
    assert [c.index for c, _ in watchers[other].journal.traps.held()] == sorted([called.index, alone.index, true.index])
    await place.reveal(1)
    place.pages.traps_of[1] = forged
    await watchers[finder].claim()
    assert (await watchers[finder].account()).credit == 0

    # 4. Who was called has its prize, by how many of the last hours it sealed; the other stands by. Once.
    place.pages.traps_of[1] = [*forged, *true_ones]
    for watcher in watchers.values():
        await watcher.claim()
    found = await watchers[finder].account()
    assert found.credit == PRIZE * in_time(await chain_call(watchers[finder], runs.sealer_of)) // 24 > 0
    assert (await watchers[other].account(), await watchers[lazy].account()) == (
        traps.Account(0, 0, 2),
        traps.Account(0, 0, 0),
    )
    kept = watchers[finder].journal
    courts = watchers[other].journal.rows("SELECT idx, court FROM verdicts WHERE court IS NOT NULL")
    assert {row["idx"]: row["court"] for row in courts} == {
        called.index: "trap",
        alone.index: "trap",
        true.index: "waiting",
    }
    assert watchers[other].journal.was_rejected(true.node), "the row was no planted one"
    watchers[other].journal.execute("UPDATE commitments SET accepted = 1 WHERE idx = ?", true.index)
    assert not watchers[other].journal.was_rejected(true.node), "a trap makes nobody a suspect"
    kept.execute("DELETE FROM trap_acts")  # of a process that ended before it wrote down what it did
    await watchers[finder].claim()
    assert await watchers[finder].account() == found

    # 5. When claims are over: the trap that nobody was called for, and the pick without a ticket.
    await place.at(claims_end_at(hour))
    before = {name: (await one.account()).credit for name, one in watchers.items()}
    full = {name: PRIZE * in_time(await chain_call(one, runs.sealer_of)) // 24 for name, one in watchers.items()}
    for watcher in watchers.values():
        await watcher.seal()  # idle hours too: nothing can be claimed of them, so all that is left is paid
        await watcher.claim()
    after = {name: (await one.account()).credit for name, one in watchers.items()}
    assert set(kinds["unticketed"][1]) <= {
        name for name in VALIDATORS if after[name] - before[name] >= full[name] * 3 // 4
    }
    assert after[other] - before[other] >= full[other]
    assert (await watchers[finder].account()).paid == after[finder] < PRIZE // 2

    # 6. A rejection of true work costs what a look earns; what is left is paid to the operator.
    assert after[other] - (await owed(watchers[other])) - (await watchers[other].account()).paid == fine(place.terms)
    operator = place.fixture.key(f"operator of {finder}").address
    earlier = await watchers[finder].chain.call(token.balance_of(operator))
    await place.at(closes_at(hour) + 80 * HOUR_SECONDS)
    await watchers[finder].claim()
    paid = (await watchers[finder].account()).paid
    assert paid == (await watchers[finder].account()).credit
    assert await watchers[finder].chain.call(token.balance_of(operator)) - earlier <= paid
    assert await owed(watchers[finder]) == 0


async def test_refused_prize_leaves_no_fine(place: Place) -> None:
    """Whoever has not judged its next call in time gets no prize for a trap; its rejection was right all the same."""
    async with place.fixture.local_chain() as dev:
        hour = await dev.now() // HOUR_SECONDS + 1
    await place.at(hour * HOUR_SECONDS + 10)
    async with place.fixture.chain("stranger") as chain:
        entropy = (await chain.draw_source(place.fixture.key("w1").address)).entropy
    found: tuple[str, int, int] | None = None
    for index in range(MOST):
        await place.commit(index, 0, picked=place.picked(entropy, index, 1), ticket=True)
        given = {"entropy": entropy, "node": place.fixture.key("w1").address, "index": index}
        for name, one in place.watchers.items():
            if place.opened and min(place.opened) < index and found is None:
                called = is_called(call_hash(link=one.turns.link_of(hour), **given), len(VALIDATORS), 1)
                found = (name, min(place.opened), index) if called else None
        if found is not None:
            break
    assert found is not None, f"nobody is called after the first trap of {MOST} commitments"
    name, trap, after = found
    watcher = place.watchers[name]
    judge_all(watcher, {trap: 0}, skips=after)
    await place.at(closes_at(hour) - CLOSING_SECONDS)
    await watcher.seal()
    await place.at(closes_at(hour))
    await place.reveal(1)
    place.pages.traps_of[1] = list(place.opened.values())
    await watcher.claim()
    assert watcher.journal.traps.why(place.works[trap].node, trap, "claim") == "NextLeafMissing"
    assert await watcher.account() == traps.Account(0, 0, 1)
    assert (await chain_call(watcher, runs.sealer_of)).rejected == 1


async def test_epoch_whose_master_is_withheld_pays_who_sealed(place: Place) -> None:
    async with place.fixture.local_chain() as dev:
        hour = await dev.now() // HOUR_SECONDS + 1
    await place.at(hour * HOUR_SECONDS + 10)
    for index in range(3):
        await place.commit(index, 0, picked=False, ticket=False)
    sealing = ["v1", "v2"]
    for name in sealing:
        judge_all(place.watchers[name], {})
    await place.at(closes_at(hour) - CLOSING_SECONDS)
    for name in sealing:
        await place.watchers[name].seal()
    await place.at(masters_due_at(hour) - 60)
    for watcher in place.watchers.values():
        await watcher.claim()
    assert (await place.watchers["v1"].account()).credit == 0
    await place.at(masters_due_at(hour))
    await place.reveal(1)  # too late
    for _ in range(2):
        for watcher in place.watchers.values():
            await watcher.claim()
    async with place.fixture.chain("stranger") as chain:
        work = await chain.call(runs.work(place.fixture.key("w1").address))
        paid = await chain.all_events(LookPaid)
    share = weight(0, 3) * (PAY * work.premium_bps // 10_000) // 4
    assert sorted((one.validator, one.from_, one.through, one.amount) for one in paid) == sorted(
        (place.fixture.key(name).address, 0, 2, share) for name in sealing
    )


async def test_prizes_that_find_the_pot_empty_wait_in_turn(place: Place, own_anvil: Anvil) -> None:
    """Who asked first is paid first, and pays no gas for asking while it waits."""
    first, second = place.watchers["v1"], place.watchers["v2"]
    contract, pot = first.chain.addresses.traps, place_of(place.fixture.run, 1)

    def store(slot: int, value: int) -> None:
        own_anvil.request("anvil_setStorageAt", contract, hex(slot), hex_hash(value.to_bytes(32, "big")))

    def income(amount: int) -> None:  # the low half of its word; the other is what was asked for
        asked = int(own_anvil.request("eth_getStorageAt", contract, hex(pot), "latest"), 16) >> 128
        store(pot, asked << 128 | amount)

    def sent(watcher: Watcher) -> int:
        return int(own_anvil.request("eth_getTransactionCount", watcher.chain.signer.address, "latest"), 16)

    store(pot, PRIZE << 128 | PRIZE)  # all that came in was asked for, and has left
    store(pot + 1, PRIZE)
    for watcher in (first, second):
        store(place_of(int(watcher.chain.signer.address, 16), 3), PRIZE)
    before = sent(first), sent(second)

    # 1. Each asks once while the pot is empty, and once more a day later.
    for watcher in (first, second, first, second):
        await watcher.claim()
    assert (sent(first), sent(second)) == (before[0] + 1, before[1] + 1)
    head = await first.chain.head()
    await place.at(head.timestamp + ASK_AGAIN_SECONDS)
    for watcher in (first, first, second):
        await watcher.claim()
    assert (sent(first), sent(second)) == (before[0] + 2, before[1] + 2)
    assert ((await first.account()).paid, (await second.account()).paid) == (0, 0)

    # 2. What comes in is paid in the order in which they asked.
    async def paid() -> tuple[int, int]:
        for watcher in (second, first, second):
            await watcher.claim()
        return (await first.account()).paid, (await second.account()).paid

    income(2 * PRIZE)
    assert await paid() == (PRIZE, 0)
    income(3 * PRIZE)
    assert await paid() == (PRIZE, PRIZE)
    assert (sent(first), sent(second)) == (before[0] + 3, before[1] + 3)


async def test_hour_that_is_not_all_judged_is_sealed_before_it_is_late(place: Place) -> None:
    """In a run with traps idle hours are sealed too: a prize goes by how many were."""
    watcher = place.watchers["v1"]
    async with place.fixture.local_chain() as dev:
        hour = await dev.now() // HOUR_SECONDS + 1
    await place.at(hour * HOUR_SECONDS + 10)
    await place.commit(0, 0, picked=False, ticket=False)
    await place.at((hour + 1) * HOUR_SECONDS)
    await watcher.seal()
    await place.at(closes_at(hour) - CLOSING_SECONDS - 60)
    await watcher.seal()
    me = watcher.chain.signer.address
    assert (await watcher.chain.call(runs.sealer_of(me))).last_sealed == hour - 1
    await place.at(closes_at(hour) - CLOSING_SECONDS)
    await watcher.seal()
    sealer = await chain_call(watcher, runs.sealer_of)
    assert (sealer.last_sealed, in_time(sealer)) == (hour + 1, 3)
    [c] = pending(watcher.journal)
    judge_all(watcher, {c.index: 1})
    assert watcher.journal.traps.rejected(hour) == [(c, 1)], "what is judged later changes no seal"
    assert watcher.journal.traps.sealed(hour).rejected == ()  # type: ignore[union-attr]


async def test_turns_go_by_the_link_of_the_hour_and_by_what_others_did(place: Place) -> None:
    works = [await place.commit(index, 0, picked=False, ticket=False) for index in range(12)]
    for watcher in place.watchers.values():
        await watcher.turns.take(1 << 40)
    called = {name: [c for c in works if one.journal.traps.is_called(c)] for name, one in place.watchers.items()}
    for name, one in place.watchers.items():
        expected = [c for c in works if (await one.turns.call_of(c))[2]]
        assert called[name] == expected
        assert [c for c, _ in one.journal.pending(1 << 40, 1e12, 100)][: len(expected)] == sorted(
            expected, key=lambda c: [x for x, _ in one.journal.pending(1 << 40, 1e12, 100)].index(c)
        )
    assert any(called.values())
    place.pages.waiting = False
    for name, one in place.watchers.items():
        due = [c for c in works if await one.turns.is_due(c)]
        assert due == called[name]
        assert one.journal.unjudged(works[0].hour) == len(due), "the others are passed over"


async def test_trainer_shows_masters_in_time_and_counts_misses(place: Place) -> None:
    async with place.fixture.chain("trainer") as chain:
        opened = OpenedTraps(chain, place.pages, place.fixture.run, place.terms)  # type: ignore[arg-type]
        keeper = TrapKeeper(chain, place.pages, place.fixture.run, place.terms, place.masters, opened)  # type: ignore[arg-type]
        found = list[CommittedWork]()
        for index in range(MOST):
            picked = await keeper.is_picked(place.fixture.key("w1").address, index, 0)
            work = await place.commit(index, 0, picked=picked, ticket=True)
            found += [work] if picked else []
            if len(found) == 2:
                break
        c, unjudged = found
        place.pages.traps_of[1] = [place.opened[c.index], place.opened[unjudged.index]]

        # 1. Two judged one trap, and nobody the other. While their master is secret nothing is counted, and it is not
        # shown before it is due.
        rejects = {"accepted": False, "reason": "sampling_mismatch", "position": 0, "evidence": "0x" + "09" * 32}
        place.pages.said = [
            place.fixture.verdict(name, "w1", c.index, hex_hash(c.root), "0x" + "07" * 32, **found)
            for name, found in (("v1", {}), ("v2", rejects))
        ]
        forged = place.pages.said[0].model_copy(update={"validator": place.fixture.key("v3").address})
        place.pages.said.append(forged)
        await keeper.poll()
        shown = masters_contract.masters(place.fixture.run, Series.TRAPS)
        assert ((await chain.call(shown)).epochs, keeper.missed) == (0, {})

        # 2. The next step needs it. Who accepted has missed the trap. Both tickets are on chain although nobody claims.
        await place.fixture.publish(1)
        await keeper.poll()
        assert (await chain.call(shown)).epochs == 1
        addresses = [place.fixture.key(name).address for name in ("v1", "v2")]
        assert keeper.missed == {(addresses[0], c.node, c.index): True, (addresses[1], c.node, c.index): False}
        for trap in (c, unjudged):
            root = place.opened[trap.index].ticket.map_root
            assert hex_hash(await chain.call(traps.map_root(trap.node, trap.index))) == root


async def test_masters_are_shown_once_their_last_seals_close(
    own_anvil: Anvil, built_contracts: None, tmp_path: Path
) -> None:
    masters = Masters.make(3)
    terms = {"trap_every": 20, "trap_prize": PRIZE, "trap_tip": masters.tip, "trap_epochs": 3, "trap_epoch_steps": 6}
    fixture = await RunFixture.build_on(
        own_anvil, tmp_path, seed="masters", workers=("w1",), **terms, pay=PAY, async_level=1
    )
    async with fixture.chain("trainer") as chain, fixture.local_chain() as dev:
        run_terms, nothing = await chain.terms(fixture.run), Pages(fixture.domain)
        opened = OpenedTraps(chain, nothing, fixture.run, run_terms)  # type: ignore[arg-type]
        keeper = TrapKeeper(chain, nothing, fixture.run, run_terms, masters, opened)  # type: ignore[arg-type]
        shown = masters_contract.masters(fixture.run, Series.TRAPS)
        for step in range(10):
            await fixture.publish(step)
            await keeper.show()
        hour = (await chain.call(runs.run_info(fixture.run))).published_at // HOUR_SECONDS
        await dev.advance_to(closes_at(hour) - 60)
        await fixture.publish(10)
        await keeper.show()
        assert (await chain.call(shown)).epochs == 0

        # A trainer that starts now waits no longer than one that runs since then.
        await dev.advance_to(closes_at(hour))
        keeper = TrapKeeper(chain, nothing, fixture.run, run_terms, masters, opened)  # type: ignore[arg-type]
        for _ in range(2):
            await keeper.show()
        assert await chain.call(shown) == (1, masters.of(1))

        # The chain takes step 18 only with the master of the second epoch.
        for step in range(11, 18):
            await fixture.publish(step)
        await keeper.show()
        await fixture.publish(18)
        assert (await chain.call(shown)).epochs == 2

        # The third never ends by itself: the owner shows its master.
        assert not await keeper.all_shown()
        await chain.send(masters_contract.reveal_master(fixture.run, Series.TRAPS, masters.of(3)))
        assert await keeper.all_shown()


async def test_worker_ends_cases_about_rows_that_it_planted_and_no_others(place: Place, tmp_path: Path) -> None:
    index, fixture = 0, place.fixture
    c = await place.commit(index, 0, picked=True, ticket=True)
    trap = place.opened[index]
    with closing(WorkJournal(tmp_path / "worker", "w1")) as journal:
        journal.save(index, 0, bytes(32), c.root, b"file", trap=trap.map)
        charges = [(kind_of("sampling_mismatch"), 0), (kind_of("sampling_mismatch"), 1), (kind_of("wrong_reward"), 0)]
        for name, (kind, position) in zip(VALIDATORS, charges, strict=False):
            accuser = place.watchers[name].chain
            await accuser.send(court.open_case(court.Target(c.node, index, 0, c.root), kind, position, bytes(32)))
        async with fixture.chain("w1") as chain:
            settings = Settings.model_validate({"run": fixture.run})
            context = WorkerContext(settings, chain, place.pages, place.terms, CPU_FP32, journal)  # type: ignore[arg-type]
            await Defender(context).dismiss_open()
            assert await chain.call(traps.map_root(c.node, index)) == bytes(32), "there is no ticket to show yet"
            journal.ticketed(index, trap.ticket)
            for _ in range(2):
                await Defender(context).dismiss_open()
            last = await chain.call(court.case_count())
            ended = [(await chain.call(court.case_of(last - back))).outcome for back in (2, 1, 0)]
    assert ended == [Outcome.DISMISSED, Outcome.OPEN, Outcome.OPEN]


async def test_traps_that_are_listed_in_a_circle_are_refused(place: Place) -> None:
    class Circle(Pages):
        async def traps(self, run: int, epoch: int, after: int = 0) -> TrapPage:
            return TrapPage(traps=[place.trap(0, bytes(32), 1)], cursor=1)

    c = await place.commit(0, 0, picked=False, ticket=False)
    chain = place.watchers["v1"].chain
    opened = OpenedTraps(chain, Circle(place.fixture.domain), place.fixture.run, place.terms)  # type: ignore[arg-type]
    with pytest.raises(MalformedError, match="in a circle"):
        await opened.get(c, bytes(32), 1, place.masters.of(1))


def place_of(key: int, slot: int) -> int:
    """Return the place in storage of a mapping's value, and so of what Traps says in a word of its own."""
    return int.from_bytes(keccak(key.to_bytes(32, "big") + slot.to_bytes(32, "big")), "big")


async def chain_call(watcher: Watcher, of: Callable[[str], Any]) -> Any:
    return await watcher.chain.call(of(watcher.chain.signer.address))


def in_time(sealer: runs.Sealer) -> int:
    return (sealer.in_time & (1 << 24) - 1).bit_count()


async def owed(watcher: Watcher) -> int:
    return await chain_call(watcher, traps.owed)
