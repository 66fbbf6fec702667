"""Wages on a real chain: what Python puts into a tree of totals, the contract pays, once, and never takes back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from muster.chain.client import Chain, event_of
from muster.constants import HOUR_SECONDS, TOKEN
from muster.contracts import token, wages
from muster.contracts.wages import Claimed, Funded, Posted, TakenBack
from muster.errors import RevertError
from muster.protocol.looks import wages_tree
from muster.rollouts.leaves import LeafTree
from testbed.chain.contracts import Deployment
from testbed.runs.run_fixture import VALIDATORS, RunFixture


@pytest.fixture(scope="module")
def run_fixture(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    folder: Path = tmp_path_factory.mktemp("wages")
    return asyncio.run(RunFixture.build(folder, deployment.settings, seed="wages", workers=()))


async def post(run_fixture: RunFixture, totals: dict[str, int], total: int) -> LeafTree:
    tree = wages_tree(run_fixture.run, totals)
    async with run_fixture.chain("trainer") as trainer:
        posted = event_of(await trainer.send(wages.post(run_fixture.run, tree.root, total)), Posted)
    assert (posted.run, posted.root, posted.sum) == (run_fixture.run, tree.root, total)
    return tree


async def claim(chain: Chain, run: int, tree: LeafTree, totals: dict[str, int], name: str) -> int:
    """What `name` is paid. Its leaf is at the place of its address among the others."""
    place = sorted(totals, key=lambda address: int(address, 16)).index(name)
    receipt = await chain.send(wages.claim(run, tree.root, name, totals[name], tree.proof(place)))
    claimed = event_of(receipt, Claimed)
    assert (claimed.run, claimed.validator) == (run, name)
    return claimed.amount


async def test_wages_are_posted_claimed_once_and_what_is_posted_is_not_taken_back(run_fixture: RunFixture) -> None:
    run = run_fixture.run
    validators: list[str] = [run_fixture.key(name).address for name in VALIDATORS]
    async with run_fixture.chain("owner") as owner, run_fixture.chain("stranger") as anybody:
        await owner.send(token.approve(owner.addresses.wages, 100 * TOKEN))
        funded = event_of(await owner.send(wages.fund(run, 100 * TOKEN)), Funded)
        assert (funded.run, funded.from_, funded.amount) == (run, owner.signer.address, 100 * TOKEN)

        first = {address: (place + 1) * TOKEN for place, address in enumerate(validators)}
        tree = await post(run_fixture, first, 10 * TOKEN)
        payees = [run_fixture.key(f"operator of {name}").address for name in VALIDATORS]
        before = [await anybody.call(token.balance_of(payee)) for payee in payees]
        assert [await claim(anybody, run, tree, first, one) for one in validators[:3]] == [TOKEN, 2 * TOKEN, 3 * TOKEN]
        with pytest.raises(RevertError, match=f"run {run} owes {validators[0]} no wage"):
            await claim(anybody, run, tree, first, validators[0])
        with pytest.raises(RevertError, match="is not under the root"):
            await claim(anybody, run, tree, {**first, validators[0]: 2 * TOKEN}, validators[0])

        second = {address: total + 5 * TOKEN for address, total in first.items()}
        later = await post(run_fixture, second, 30 * TOKEN)
        with pytest.raises(RevertError, match="came to 30 MUST and cannot fall to 29 MUST"):
            await post(run_fixture, second, 29 * TOKEN)
        with pytest.raises(RevertError, match="has 100 MUST for wages, and 101 MUST are to be posted"):
            await post(run_fixture, second, 101 * TOKEN)
        await owner.send(wages.announce_take_back(run, 500 * TOKEN))
        with pytest.raises(RevertError, match="can be taken back for a day from"):
            await owner.send(wages.take_back(run))
        async with run_fixture.local_chain() as dev:
            await dev.advance(24 * HOUR_SECONDS)
        assert event_of(await owner.send(wages.take_back(run)), TakenBack).amount == 70 * TOKEN

        # The last validator claims by both roots, and everybody has what the latest says.
        assert await claim(anybody, run, tree, first, validators[3]) == 4 * TOKEN
        assert [await claim(anybody, run, later, second, one) for one in validators] == [5 * TOKEN] * 4
        paid = [await anybody.call(token.balance_of(payee)) for payee in payees]
        assert [after - had for after, had in zip(paid, before, strict=True)] == list(second.values())
        pot = await anybody.call(wages.pot(run))
        assert (pot.funded, pot.posted, pot.claimed) == (30 * TOKEN, 30 * TOKEN, 30 * TOKEN)
        solvency = await anybody.solvency()
        assert solvency.solvent
        assert solvency.wages_tokens == solvency.wages_books == 0
