"""The follower on a real chain and a real database: what it keeps when the answers of the endpoint disagree."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from balancer import always, balanced, never
from house import VALIDATORS, House, deploy_on
from sqlalchemy import Table, select

from muster.chain import reads
from muster.chain.anvil import Anvil
from muster.chain.client import Chain
from muster.errors import UnreachableError
from orchestrator import follower, tables
from orchestrator.database import Database
from orchestrator.follower import Follower
from orchestrator.ledger import Ledger

Start = Callable[..., Anvil]
pytestmark = pytest.mark.usefixtures("built_contracts")


class Followed:
    """A follower, and what it wrote."""

    def __init__(self, follower: Follower, database: Database) -> None:
        self.follower = follower
        self._database = database

    async def rows(self, table: Table) -> int:
        return len(await self._database.read(lambda connection: connection.execute(select(table)).all()))

    async def members(self) -> int:
        return await self.rows(tables.nodes)


@asynccontextmanager
async def following(house: House, url: str) -> AsyncIterator[Followed]:
    """A follower of a house's run, through the endpoint at `url`."""
    settings = house.settings.model_copy(update={"rpc_url": url})
    database = await Database.open(f"sqlite:///{house.folder}/orchestrator.db", "the run of a test")
    try:
        async with await Chain.connect(settings) as chain:
            terms = await chain.terms(house.run)
            ledger = Ledger(database, house.run, terms, batch_groups=8, demand_batches=2)
            yield Followed(Follower(chain, database, ledger, settings), database)
    finally:
        await database.close()


async def test_a_server_that_lags_empties_nothing(start_anvil: Start, tmp_path: Path) -> None:
    anvil = start_anvil()
    house = await House.build(tmp_path, await deploy_on(anvil, tmp_path), seed="lags", workers=())
    async with balanced(anvil) as balancer, following(house, balancer.url) as followed:
        assert await followed.follower.look() is True
        assert await followed.members() == len(VALIDATORS)
        head = followed.follower.head_number

        balancer.head, balancer.lags = house.book.from_block, always
        for _ in range(2):
            with pytest.raises(UnreachableError, match=f"the endpoint is behind: it does not know block {head}"):
                await followed.follower.look()
            assert await followed.members() == len(VALIDATORS)

        balancer.lags = never
        await house.publish(0)
        assert await followed.follower.look() is True
        assert (await followed.members(), await followed.rows(tables.checkpoints)) == (len(VALIDATORS), 1)


async def test_a_chain_that_stays_shorter_was_reorganised(
    start_anvil: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anvil = start_anvil()
    house = await House.build(tmp_path, await deploy_on(anvil, tmp_path), seed="shorter", workers=())
    before = anvil.request("evm_snapshot")
    await house.publish(0)
    async with following(house, anvil.url) as followed:
        assert await followed.follower.look() is True
        assert anvil.request("evm_revert", before) is True
        with pytest.raises(UnreachableError, match="the endpoint is behind"):
            await followed.follower.look()
        assert await followed.rows(tables.checkpoints) == 1

        monkeypatch.setattr(reads, "BEHIND_SECONDS", 0)
        assert await followed.follower.look() is True
        assert (await followed.members(), await followed.rows(tables.checkpoints)) == (len(VALIDATORS), 0)
        assert followed.follower.head_number == int(anvil.request("eth_blockNumber"), 16)


async def test_after_a_reorg_a_long_chain_is_read_anew_at_once(
    start_anvil: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members that registered more blocks after the deployment than are read in one look are never missing."""
    span = 32
    monkeypatch.setattr(follower, "LOG_SPAN", span)
    anvil = start_anvil()
    settings = await deploy_on(anvil, tmp_path)
    anvil.request("anvil_mine", hex(span))
    house = await House.build(tmp_path, settings, seed="long", workers=())
    async with following(house, anvil.url) as followed, house.devchain() as dev:
        assert await followed.follower.look() is False
        assert await followed.members() == 0
        assert await followed.follower.look() is True
        assert await followed.members() == len(VALIDATORS)
        await dev.reorg(1)
        assert await followed.follower.look() is True
        assert await followed.members() == len(VALIDATORS)
