"""Who finds a cheater has its part of the bounty, whoever is the first to accuse: validators on a real chain."""

from __future__ import annotations

from pathlib import Path

from muster.chain.client import charge_of, event_of, vote_hash
from muster.constants import BASIS_POINTS, HOUR_SECONDS
from muster.contracts import court, registry
from muster.contracts.court import CaseOpened, CaseResolved, Outcome
from muster.contracts.traps import BountyShared
from muster.protocol.calls import call_hash, is_called
from muster.protocol.kinds import kind_of
from muster.protocol.seals import closes_at
from muster.verification.rules import CommittedWork
from testbed.chain.anvil import Anvil
from testbed.runs.run_fixture import VALIDATORS
from testbed.runs.trap_place import Place, judge_all, trap_place
from testbed.samples.validator import receive
from validator.sealing import CLOSING_SECONDS

SALT = bytes(range(32))
SHARING_SECONDS = 24 * HOUR_SECONDS


async def commit_for(place: Place, hour: int) -> tuple[CommittedWork, str, str, str]:
    """Make commitments until there are a trap, and one for which a validator is called, one stands by, one neither."""
    async with place.fixture.chain("stranger") as chain:
        entropy = (await chain.draw_source(place.fixture.key("w1").address)).entropy
    found, trap = None, False
    for index in range(100):
        picked = place.picked(entropy, index, 1)
        c = await place.commit(index, 0, picked=picked, ticket=True)
        calls = {
            name: call_hash(link=one.turns.link_of(hour), entropy=entropy, node=c.node, index=index)
            for name, one in place.watchers.items()
        }
        called, near = ({name for name in VALIDATORS if is_called(calls[name], 4, shares)} for shares in (1, 2))
        trap = trap or picked
        if (len(called), len(near), picked) == (1, 2, False):
            [finder], [other] = called, near - called
            found = c, finder, other, min(set(VALIDATORS) - near)
        if found and trap:
            return found
    raise AssertionError("no such commitments")


async def convict(place: Place, challenger: str, c: CommittedWork) -> list[CaseOpened | CaseResolved]:
    """Let a validator accuse the node of `c`, and the three others vote guilty. Return what the chain said."""
    target = court.Target(c.node, c.index, c.step, c.root)
    opening = court.open_case(target, kind_of("sampling_mismatch"), 3, bytes(32))
    opened = event_of(await place.watchers[challenger].chain.send(opening), CaseOpened)
    jury = [one.chain for name, one in place.watchers.items() if name != challenger]
    for chain in jury:
        hidden = vote_hash(opened.case_id, chain.signer.address, True, SALT)
        await chain.send(court.commit_vote(opened.case_id, charge_of(opened), hidden))
    for chain in jury:
        await chain.send(court.reveal_vote(opened.case_id, True, SALT))
    ended = event_of(await jury[0].send(court.resolve(opened.case_id)), CaseResolved)
    assert ended.outcome is Outcome.GUILTY
    for watcher in place.watchers.values():
        receive(watcher.journal, opened, ended)
    return [opened, ended]


async def test_finders_share_bounty_equally(own_anvil: Anvil, built_contracts: None, tmp_path: Path) -> None:
    async with trap_place(own_anvil, tmp_path) as place:
        async with place.fixture.local_chain() as dev:
            hour = await dev.now() // HOUR_SECONDS + 1
        await place.at(hour * HOUR_SECONDS + 10)
        c, called, standby, far = await commit_for(place, hour)
        [lazy] = set(VALIDATORS) - {called, standby, far}

        async def claim_all() -> None:
            for watcher in place.watchers.values():
                await watcher.claim()

        async def free() -> dict[str, int]:
            operators = {name: place.fixture.key(f"operator of {name}").address for name in VALIDATORS}
            return {name: await chain.call(registry.free_balance(one)) for name, one in operators.items()}

        # 1. Three find it false, and the one that was not even called is the first to accuse.
        for name, watcher in place.watchers.items():
            judge_all(watcher, {} if name == lazy else {c.index: 3})
        await place.at(closes_at(hour) - CLOSING_SECONDS)
        for watcher in place.watchers.values():
            await watcher.seal()
        await place.at(closes_at(hour))
        await place.reveal(1)
        await claim_all()  # nobody has found the trap: until claims are over there is nothing else to do
        opened, _ = await convict(place, far, c)

        # 2. They ask for their shares within a day, and are paid then: once, and all alike. No reorg loses a share.
        chain = place.watchers[lazy].chain
        before = await free()
        await claim_all()
        asked = {(one.case_id, one.validator) for one in await chain.all_events(BountyShared)}
        assert asked == {(opened.case_id, place.fixture.key(name).address) for name in (called, standby, far)}
        place.watchers[called].journal.traps.rewind(0)
        assert await free() == before
        closes = (await chain.call(court.bounty_of(opened.case_id))).closes_at
        assert 0 < closes - (await chain.head()).timestamp <= SHARING_SECONDS
        await place.at(closes)
        for _ in range(2):
            await claim_all()
        terms = place.terms
        slashed = terms.worker_stake * terms.slash_bps // BASIS_POINTS
        share = slashed * terms.bounty_bps // BASIS_POINTS // 3
        after = await free()
        assert {name: after[name] - before[name] for name in VALIDATORS} == {
            called: share,
            standby: share,
            far: share,
            lazy: 0,
        }
        assert (await chain.call(court.bounty_of(opened.case_id))).left == 0
        for watcher in place.watchers.values():
            assert watcher.journal.traps.bounties(watcher.chain.signer.address) == []


async def test_challenger_takes_bounty_that_nobody_shares(
    own_anvil: Anvil, built_contracts: None, tmp_path: Path
) -> None:
    """So it is with evidence of a pool that was found after the seal."""
    async with trap_place(own_anvil, tmp_path) as place:
        c = await place.commit(0, 0, picked=False, ticket=False)
        opened, _ = await convict(place, "v2", c)
        chain = place.watchers["v2"].chain
        operator = place.fixture.key("operator of v2").address
        before = await chain.call(registry.free_balance(operator))
        bounty = await chain.call(court.bounty_of(opened.case_id))
        await place.watchers["v2"].claim()
        assert await chain.call(registry.free_balance(operator)) == before
        await place.at(bounty.closes_at)
        for watcher in place.watchers.values():
            await watcher.claim()
        assert await chain.call(registry.free_balance(operator)) == before + bounty.amount
        assert place.watchers["v2"].journal.traps.why(c.node, c.index, "bounty") == "done"
