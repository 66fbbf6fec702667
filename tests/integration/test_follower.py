"""The follower on a real chain and a real database: what it keeps when the answers of the endpoint disagree."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Table, delete, select

from muster.chain import reads
from muster.chain.client import Chain
from muster.constants import HOUR_SECONDS
from muster.contracts import court
from muster.errors import RefusedError, StorageError, UnreachableError
from muster.ledger import chain_follower as follower
from muster.ledger import tables
from muster.ledger.chain_follower import Follower
from muster.ledger.database import Database
from muster.ledger.queries import Queries
from muster.protocol.kinds import kind_of
from testbed.chain.anvil import Anvil
from testbed.chain.balancer import always, balanced, first, never
from testbed.chain.contracts import deploy_on
from testbed.runs.run_fixture import VALIDATORS, RunFixture, some_hash

Start = Callable[..., Anvil]
pytestmark = pytest.mark.usefixtures("built_contracts")


class Followed:
    """A follower, and what it wrote."""

    def __init__(self, follower: Follower, database: Database, queries: Queries) -> None:
        self.follower = follower
        self.queries = queries
        self._database = database

    async def content(self, table: Table) -> Sequence[Any]:
        return await self._database.read(lambda connection: connection.execute(select(table)).all())

    async def rows(self, table: Table) -> int:
        return len(await self.content(table))

    async def of_chain(self) -> dict[str, Sequence[Any]]:
        """Return what is known from the chain, without how far it was read."""
        known = {*tables.FROM_CHAIN, tables.counts} - {tables.places, tables.undo}
        return {table.name: await self.content(table) for table in known}

    async def place(self) -> int:
        return max(row.block for row in await self.content(tables.places))

    async def put_back(self, place: int) -> None:
        """Make the database as it was at a place before the first checkpoint."""

        def write(connection: Connection) -> None:
            connection.execute(delete(tables.checkpoints))
            connection.execute(delete(tables.undo))
            connection.execute(delete(tables.places).where(tables.places.c.block > place))

        await self._database.write(write)

    async def members(self) -> int:
        return await self.rows(tables.nodes)


@asynccontextmanager
async def following(run_fixture: RunFixture, url: str, database_url: str) -> AsyncIterator[Followed]:
    """A follower of a run_fixture's run, through the endpoint at `url`."""
    settings = run_fixture.settings.model_copy(update={"rpc_url": url})
    database = await Database.open(database_url, "the run of a test")
    try:
        async with await Chain.connect(settings) as chain:
            terms = await chain.terms(run_fixture.run)
            queries = Queries(database, run_fixture.run, terms, groups_wanted=16)
            yield Followed(Follower(chain, database, queries, settings), database, queries)
    finally:
        await database.close()


async def test_a_server_that_lags_empties_nothing(start_anvil: Start, tmp_path: Path, database_url: str) -> None:
    anvil = start_anvil()
    run_fixture = await RunFixture.build_on(anvil, tmp_path, seed="lags", workers=())
    async with balanced(anvil) as balancer, following(run_fixture, balancer.url, database_url) as followed:
        assert await followed.follower.poll() is True
        assert await followed.members() == len(VALIDATORS)
        head = followed.follower.head_number

        balancer.head, balancer.lags = run_fixture.book.from_block, always
        for _ in range(2):
            with pytest.raises(UnreachableError, match=f"the endpoint is behind: it does not know block {head}"):
                await followed.follower.poll()
            assert await followed.members() == len(VALIDATORS)

        balancer.lags = never
        await run_fixture.publish(0)
        assert await followed.follower.poll() is True
        assert (await followed.members(), await followed.rows(tables.checkpoints)) == (len(VALIDATORS), 1)


async def test_payments_and_members_carry_their_block_time(
    start_anvil: Start, tmp_path: Path, database_url: str
) -> None:
    """The follower writes nothing of a block that a server of the endpoint does not know yet."""
    anvil = start_anvil()
    run_fixture = await RunFixture.build_on(anvil, tmp_path, seed="times", workers=("w1",))
    async with balanced(anvil) as balancer, following(run_fixture, balancer.url, database_url) as followed:
        balancer.head = run_fixture.book.from_block
        asks_for_times = first(1, '"eth_getBlockByNumber", "params": ["0x')
        balancer.lags = lambda text: "eth_getLogs" not in text and asks_for_times(text)
        with pytest.raises(UnreachableError, match="the endpoint is behind: it does not know block"):
            await followed.follower.poll()
        assert await followed.members() == 0
        assert await followed.follower.poll() is True
        for node in await followed.content(tables.nodes):
            assert node.joined == int(anvil.request("eth_getBlockByNumber", hex(node.block), False)["timestamp"], 16)
            assert anvil.request("eth_getTransactionReceipt", node.transaction)["blockNumber"] == hex(node.block)


async def test_the_hour_that_a_quorum_sealed_is_read(
    start_anvil: Start, tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "OBSERVE_SECONDS", 0)
    anvil = start_anvil()
    run_fixture = await RunFixture.build_on(anvil, tmp_path, seed="seals", workers=())
    async with following(run_fixture, anvil.url, database_url) as followed, run_fixture.local_chain() as dev:
        await run_fixture.publish(0)
        await followed.follower.poll()
        hour = followed.follower.head_time // HOUR_SECONDS
        assert followed.queries.chain.sealed_through == hour - 1
        await dev.advance(HOUR_SECONDS)
        for name in VALIDATORS[:2]:
            async with run_fixture.chain(name) as chain:
                await run_fixture.seal(chain, name, hour)
        await followed.follower.poll()
        assert followed.queries.chain.sealed_through == hour
        sealers = {(run_fixture.key(name).address, hour) for name in VALIDATORS[:2]}
        assert {tuple(row) for row in await followed.content(tables.seals)} == {(*seal, 1) for seal in sealers}


async def test_a_database_put_back_from_a_backup_is_read_on_from_there(
    start_anvil: Start, tmp_path: Path, database_url: str
) -> None:
    """Nothing tells us: connections that broke meanwhile were replaced."""
    anvil = start_anvil()
    run_fixture = await RunFixture.build_on(anvil, tmp_path, seed="backup", workers=())
    async with following(run_fixture, anvil.url, database_url) as followed:
        assert await followed.follower.poll() is True
        backup = await followed.place()
        await run_fixture.publish(0)
        assert await followed.follower.poll() is True
        assert await followed.rows(tables.checkpoints) == 1

        await followed.put_back(backup)
        assert await followed.rows(tables.checkpoints) == 0
        await run_fixture.publish(1)
        with pytest.raises(StorageError, match="its place in the chain is another one"):
            await followed.follower.poll()
        assert await followed.rows(tables.checkpoints) == 0
        assert await followed.follower.poll() is True
        assert await followed.rows(tables.checkpoints) == 2


async def test_a_chain_that_stays_shorter_was_reorganised(
    start_anvil: Start, tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    anvil = start_anvil()
    run_fixture = await RunFixture.build_on(anvil, tmp_path, seed="shorter", workers=())
    before = anvil.request("evm_snapshot")
    await run_fixture.publish(0)
    async with following(run_fixture, anvil.url, database_url) as followed:
        assert await followed.follower.poll() is True
        assert anvil.request("evm_revert", before) is True
        with pytest.raises(UnreachableError, match="the endpoint is behind"):
            await followed.follower.poll()
        assert await followed.rows(tables.checkpoints) == 1

        monkeypatch.setattr(reads, "BEHIND_SECONDS", 0)
        assert await followed.follower.poll() is True
        assert (await followed.members(), await followed.rows(tables.checkpoints)) == (len(VALIDATORS), 0)
        assert followed.follower.head_number == int(anvil.request("eth_blockNumber"), 16)


async def test_reorg_undoes_what_is_gone_and_asks_for_nothing_older(
    start_anvil: Start, tmp_path: Path, database_url: str
) -> None:
    depth = 10
    anvil = start_anvil()
    run_fixture = await RunFixture.build_on(anvil, tmp_path, seed="reorg", workers=("w1",))
    await run_fixture.publish(0)
    await run_fixture.commit("w1", 0, some_hash("kept"))
    asked: list[str] = []
    async with balanced(anvil) as balancer, following(run_fixture, balancer.url, database_url) as followed:
        balancer.fails = lambda text: asked.extend(re.findall("eth_getBlockReceipts|eth_getLogs", text)) or False
        assert await followed.follower.poll() is True
        before, place = await followed.of_chain(), await followed.place()

        await run_fixture.commit("w1", 1, some_hash("lost"))
        await run_fixture.publish(1)
        async with run_fixture.chain("v1") as chain:
            accused = run_fixture.key("w1").address, 0, 0, bytes.fromhex(some_hash("kept")[2:])
            await chain.send(court.open_case(court.Target(*accused), kind_of("data_missing"), 0, bytes(32)))
        assert await followed.follower.poll() is True
        assert [await followed.rows(table) for table in (tables.commitments, tables.checkpoints, tables.cases)] == [
            2,
            2,
            1,
        ]
        made = followed.follower.head_number - place
        anvil.request("anvil_mine", hex(depth - made))
        assert await followed.follower.poll() is True

        assert asked
        asked.clear()
        async with run_fixture.local_chain() as dev:
            await dev.reorg(depth, drop=True)
        assert await followed.follower.poll() is True
        assert await followed.of_chain() == before
        assert asked == [], "the new blocks are empty"


async def test_deep_reorg_is_read_again_in_pieces_and_said(
    start_anvil: Start, tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    span = 32
    for name, value in {"LOG_SPAN": span, "PIECES": 1, "REORG_BLOCKS": 4}.items():
        monkeypatch.setattr(follower, name, value)
    anvil = start_anvil()
    settings = (await asyncio.to_thread(deploy_on, anvil, tmp_path)).settings
    anvil.request("anvil_mine", hex(span))
    run_fixture = await RunFixture.build(tmp_path, settings, seed="deep", workers=())
    async with following(run_fixture, anvil.url, database_url) as followed, run_fixture.local_chain() as dev:
        assert await followed.follower.poll() is False
        assert await followed.follower.poll() is True
        anvil.request("anvil_mine", hex(6))
        assert await followed.follower.poll() is True
        before = await followed.of_chain()
        await dev.reorg(5, drop=True)

        assert await followed.follower.poll() is False
        assert await followed.members() == 0
        with pytest.raises(RefusedError, match="reading the chain again after a deep reorganisation") as refused:
            followed.follower.expect_complete()
        assert refused.value.status == 503
        assert followed.follower.stale_since is not None
        async with following(run_fixture, anvil.url, database_url) as restarted:
            assert await restarted.follower.poll() is True
            assert restarted.follower.catching_up == ""
            assert await restarted.of_chain() == before


async def test_blocks_of_many_small_log_queries_are_kept(
    start_anvil: Start, tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LOG_SPAN": 32, "PIECES": 1}.items():
        monkeypatch.setattr(follower, name, value)
    anvil = start_anvil()
    settings = (await asyncio.to_thread(deploy_on, anvil, tmp_path)).settings
    anvil.request("anvil_mine", hex(32 + reads.LOG_QUERIES))
    run_fixture = await RunFixture.build(tmp_path, settings, seed="long", workers=())
    async with following(run_fixture, anvil.url, database_url) as followed:
        assert await followed.follower.poll() is False
        before = await followed.place()
        followed.follower.chain.log_span.refuse(2)
        assert await followed.follower.poll() is False
        assert await followed.place() - before == reads.LOG_QUERIES


async def test_before_the_first_look_it_is_said_that_there_was_none(
    start_anvil: Start, database_url: str, tmp_path: Path
) -> None:
    anvil = start_anvil()
    run_fixture = await RunFixture.build_on(anvil, tmp_path, seed="unready", workers=())
    began = time.monotonic()
    async with following(run_fixture, anvil.url, database_url) as followed:
        (reason,) = followed.follower.unready()
        assert re.fullmatch(r"following the chain: not read yet, [0-9]+ s after the start", reason)
        assert 0 < followed.follower.silence_seconds < time.monotonic() - began
        async with followed.follower.following():
            while followed.follower.unready():
                await followed.follower.next_poll()
