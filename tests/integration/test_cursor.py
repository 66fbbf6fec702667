"""The event cursor against a real Anvil: at least once, in order, across restarts and reorgs."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from muster.chain import blocks, provider, reads
from muster.chain.anvil import LocalChain
from muster.chain.blocks import NEAR
from muster.chain.client import Chain
from muster.chain.cursor import REMEMBERED_BLOCKS, EventBatch, EventCursor
from muster.chain.events import decode_logs
from muster.chain.reads import LOG_QUERIES, LOG_SPAN
from muster.chain.types import TxRequest
from muster.contracts import registry, token
from muster.contracts.registry import Deposited, FreeWithdrawn
from muster.contracts.token import Transfer
from muster.errors import ConfigError, UnreachableError
from muster.settings.schema import ChainSettings
from testbed.chain.anvil import Anvil
from testbed.chain.balancer import Server, always, balanced, first, never
from testbed.chain.contracts import Deployment, deploy_on, funded_on
from testbed.waiting import BOUND

Start = Callable[..., Anvil]


@pytest.fixture
def place(start_anvil: Start, built_contracts: None, tmp_path: Path) -> Deployment:
    """A deployment on a chain of the test's own."""
    return deploy_on(start_anvil(), tmp_path)


@asynccontextmanager
async def depositor(place: Deployment) -> AsyncIterator[Chain]:
    """A chain whose key has tokens to deposit: each deposit is one block with one event."""
    (signer,) = funded_on(place.anvil, 1)
    async with await Chain.connect(place.settings, signer) as chain:
        await chain.send(token.faucet())
        await chain.send(token.approve(chain.addresses.registry, 10**22))
        yield chain


def cursor_on(chain: Chain, path: Path, span: int = LOG_SPAN) -> EventCursor:
    return EventCursor(chain, path / "place.json", [Deposited, FreeWithdrawn], span=span)


def amounts(batch: EventBatch) -> list[int]:
    return [event.amount for event in batch if isinstance(event, Deposited)]


async def drain(cursor: EventCursor) -> list[int]:
    """Amounts of everything that is there, acknowledged."""
    found: list[int] = []
    while True:
        batch = await cursor.poll()
        found += amounts(batch)
        await cursor.ack()
        if not batch.more:
            return found


async def test_events_come_in_order_with_their_place_and_only_of_the_kinds_asked(
    place: Deployment, tmp_path: Path
) -> None:
    async with depositor(place) as chain:
        cursor = cursor_on(chain, tmp_path)
        receipts = [
            await chain.send(registry.deposit(1)),
            await chain.send(registry.deposit(2)),
            await chain.send(registry.withdraw_free(3)),
        ]
        batch = await cursor.poll()
        one, two, three = batch
        assert (type(one), type(two), type(three)) == (Deposited, Deposited, FreeWithdrawn)
        sent = [event for receipt in receipts for event in receipt.events if not isinstance(event, Transfer)]
        assert [one, two, three] == sent
        assert two.at.block == receipts[1].block
        assert two.at.transaction == receipts[1].hash
        assert two.at.block_hash == await chain.block_hash(two.at.block)
        assert batch.first == chain.addresses.from_block
        assert batch.last == three.at.block
        assert not batch.more


async def test_cursor_redelivers_unacknowledged_events_after_restart(place: Deployment, tmp_path: Path) -> None:
    async with depositor(place) as chain:
        cursor = cursor_on(chain, tmp_path)
        await chain.send(registry.deposit(1))
        assert amounts(await cursor.poll()) == [1]
        await chain.send(registry.deposit(2))
        assert amounts(await cursor.poll()) == [1, 2]
        assert amounts(await cursor_on(chain, tmp_path).poll()) == [1, 2]
        await cursor.ack()
        await cursor.ack()
        assert amounts(await cursor.poll()) == []
        await chain.send(registry.deposit(3))
        assert amounts(await cursor_on(chain, tmp_path).poll()) == [3]
        assert amounts(await cursor.poll()) == [3]


async def test_a_long_history_is_read_in_bounded_batches(place: Deployment, tmp_path: Path) -> None:
    async with depositor(place) as chain:
        for amount in range(1, 8):
            await chain.send(registry.deposit(amount))
        cursor = cursor_on(chain, tmp_path, span=3)
        batches = []
        while not batches or batches[-1].more:
            batches.append(await cursor.poll())
            await cursor.ack()
        assert [amount for batch in batches for amount in amounts(batch)] == list(range(1, 8))
        assert all(batch.last - batch.first + 1 <= 3 for batch in batches)
        assert all(after.first == before.last + 1 for before, after in itertools.pairwise(batches))


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_reorg_takes_the_cursor_back_and_is_announced(
    place: Deployment, tmp_path: Path, restarted: bool
) -> None:
    async with depositor(place) as chain:
        cursor = cursor_on(chain, tmp_path)
        dev = await LocalChain.open(chain.web3)
        kept = await chain.send(registry.deposit(1))
        assert await drain(cursor) == [1]
        await chain.send(registry.deposit(2))
        await chain.send(registry.deposit(3))
        assert await drain(cursor) == [2, 3]
        await dev.reorg(2, drop=True)
        await chain.send(registry.deposit(4))

        if restarted:
            cursor = cursor_on(chain, tmp_path)
        batch = await cursor.poll()
        assert batch.rewound_to == kept.block
        assert batch.first == kept.block + 1
        assert amounts(batch) == [4]
        again = cursor_on(chain, tmp_path)
        assert (await again.poll()).rewound_to == kept.block, "announced until it is acknowledged"
        await cursor.ack()
        assert (await cursor.poll()).rewound_to is None
        assert (await cursor_on(chain, tmp_path).poll()).rewound_to is None
        assert await chain.call(registry.free_balance(chain.signer.address)) == 5


async def test_a_reorg_without_new_blocks_is_announced_once(place: Deployment, tmp_path: Path) -> None:
    async with depositor(place) as chain:
        cursor = cursor_on(chain, tmp_path)
        await chain.send(registry.deposit(1))
        await drain(cursor)
        await (await LocalChain.open(chain.web3)).reorg(1, drop=True)
        batch = await cursor.poll()
        assert batch.rewound_to is not None
        assert amounts(batch) == []
        await cursor.ack()
        assert (await cursor.poll()).rewound_to is None


async def test_a_reorg_deeper_than_memory_begins_at_the_first_block(place: Deployment, tmp_path: Path) -> None:
    async with depositor(place) as chain:
        cursor = cursor_on(chain, tmp_path)
        await chain.send(registry.deposit(1))
        dev = await LocalChain.open(chain.web3)
        for _ in range(REMEMBERED_BLOCKS + 2):
            await dev.mine()
            await drain(cursor)
        await dev.reorg(REMEMBERED_BLOCKS + 1, drop=True)
        batch = await cursor.poll()
        assert batch.rewound_to == chain.addresses.from_block - 1
        assert amounts(batch) == [1]


async def test_a_server_that_lags_takes_nothing_back(place: Deployment, tmp_path: Path) -> None:
    async with balanced(place.anvil) as balancer:
        settings = place.settings.model_copy(update={"rpc_url": balancer.url})
        async with depositor(place) as chain, await Chain.connect(settings) as watcher:
            cursor = cursor_on(watcher, tmp_path)
            first = await chain.send(registry.deposit(1))
            assert await drain(cursor) == [1]
            await chain.send(registry.deposit(2))
            assert await drain(cursor) == [2]

            balancer.head, balancer.lags = first.block, always
            for _ in range(2):
                with pytest.raises(UnreachableError, match="the endpoint is behind"):
                    await cursor.poll()
            balancer.lags = never
            await chain.send(registry.deposit(3))
            batch = await cursor.poll()
            assert batch.rewound_to is None
            assert amounts(batch) == [3]


async def test_events_that_a_server_does_not_have_yet_are_not_left_out(place: Deployment) -> None:
    async with balanced(place.anvil) as balancer:
        settings = place.settings.model_copy(update={"rpc_url": balancer.url})
        async with depositor(place) as chain, await Chain.connect(settings) as watcher:
            first, last = await chain.send(registry.deposit(1)), await chain.send(registry.deposit(2))
            balancer.head, balancer.lags = first.block, lambda text: "eth_getLogs" in text
            with pytest.raises(UnreachableError, match=f"the endpoint is behind: it does not know block {last.block}"):
                await watcher.events([Deposited], first.block, last.block)
            found = await watcher.events([Deposited], first.block, first.block)
            assert [event.at.block for event in found] == [first.block]


@pytest.mark.parametrize("receipts", [0, 100])
async def test_an_event_of_a_block_that_a_server_has_not_indexed_is_delivered(
    place: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receipts: int
) -> None:
    """The server has the block, and answers that it has no logs. Its receipts it may have."""
    monkeypatch.setattr(blocks, "SETTLE_SECONDS", 0.5)
    async with balanced(place.anvil) as balancer:
        settings = place.settings.model_copy(update={"rpc_url": balancer.url})
        async with depositor(place) as chain, await Chain.connect(settings) as watcher:
            cursor = cursor_on(watcher, tmp_path)
            await drain(cursor)
            balancer.server = lambda: Server(index=100, receipts=receipts)
            await chain.send(registry.deposit(1))
            found = await drain(cursor)
            assert found == ([] if receipts else [1])
            balancer.server = Server
            await chain.send(registry.deposit(2))
            async with asyncio.timeout(BOUND):
                while len(found) < 2:
                    found += await drain(cursor)
            assert found == [1, 2]


async def test_endpoint_with_log_queries_of_one_block_is_followed(place: Deployment, tmp_path: Path) -> None:
    def is_wide(text: str) -> bool:
        calls = json.loads(text)
        asked = [call["params"][0] for call in calls if call["method"] == "eth_getLogs"] if "fromBlock" in text else []
        return any(int(one["toBlock"], 16) > int(one["fromBlock"], 16) for one in asked)

    async with balanced(place.anvil) as balancer:
        settings = place.settings.model_copy(update={"rpc_url": balancer.url})
        async with depositor(place) as chain, await Chain.connect(settings) as watcher:
            balancer.error = {"code": -32614, "message": "eth_getLogs is limited to a 1 range"}
            balancer.fails = lambda text: "eth_getLogs" in text and is_wide(text)
            cursor = cursor_on(watcher, tmp_path)
            await chain.send(registry.deposit(1))
            place.anvil.request("anvil_mine", hex(NEAR))
            assert await drain(cursor) == [1]
            place.anvil.request("anvil_mine", hex(LOG_QUERIES + NEAR))
            await chain.send(registry.deposit(2))
            batch = await cursor.poll()
            assert (amounts(batch), batch.last - batch.first + 1) == ([], LOG_QUERIES), "what is read is kept"
            assert await drain(cursor) == [2]


async def test_rate_limit_does_not_shrink_log_queries(place: Deployment, tmp_path: Path) -> None:
    async with balanced(place.anvil) as balancer:
        settings = place.settings.model_copy(update={"rpc_url": balancer.url})
        async with depositor(place) as chain, await Chain.connect(settings) as watcher:
            balancer.error = {"code": -32005, "message": "Too Many Requests"}
            balancer.fails = first(1, "eth_getLogs")
            await chain.send(registry.deposit(1))
            assert await drain(cursor_on(watcher, tmp_path)) == [1]
            assert watcher.log_span.blocks == LOG_SPAN


async def test_log_query_with_oversized_answer_is_split(place: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    async with depositor(place) as chain:
        mined = [await chain.send(registry.deposit(amount)) for amount in (1, 2, 3, 4)]
        monkeypatch.setattr(provider, "MAX_ANSWER_BYTES", 4_000)  # a block and two of its logs
        found = await chain.events([Deposited], mined[0].block, mined[-1].block)
        assert [event.amount for event in found if isinstance(event, Deposited)] == [1, 2, 3, 4]
        assert chain.log_span.blocks < 4


async def test_a_chain_that_stays_shorter_was_reorganised(
    place: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with depositor(place) as chain:
        cursor = cursor_on(chain, tmp_path)
        kept = await chain.send(registry.deposit(1))
        assert await drain(cursor) == [1]
        before = place.anvil.request("evm_snapshot")
        await chain.send(registry.deposit(2))
        assert await drain(cursor) == [2]
        assert place.anvil.request("evm_revert", before) is True

        with pytest.raises(UnreachableError, match="the endpoint is behind"):
            await cursor.poll()
        monkeypatch.setattr(reads, "BEHIND_SECONDS", 0)
        batch = await cursor.poll()
        assert batch.rewound_to == kept.block
        assert amounts(batch) == []


async def test_a_shorter_chain_with_another_block_was_reorganised(place: Deployment, tmp_path: Path) -> None:
    async with depositor(place) as chain:
        cursor = cursor_on(chain, tmp_path)
        kept = await chain.send(registry.deposit(1))
        assert await drain(cursor) == [1]
        before = place.anvil.request("evm_snapshot")
        for amount in (2, 3):
            await chain.send(registry.deposit(amount))
            assert await drain(cursor) == [amount]
        assert place.anvil.request("evm_revert", before) is True
        await chain.send(registry.deposit(4))
        batch = await cursor.poll()
        assert batch.rewound_to == kept.block
        assert amounts(batch) == [4]


async def test_confirmations_hold_events_back(place: Deployment, tmp_path: Path) -> None:
    settings = ChainSettings.model_validate(place.settings.model_dump() | {"confirmations": 2})
    async with depositor(place) as chain, await Chain.connect(settings) as watcher:
        cursor = cursor_on(watcher, tmp_path)
        dev = await LocalChain.open(chain.web3)
        await chain.send(registry.deposit(1))
        await dev.mine()
        assert amounts(await cursor.poll()) == []
        await dev.mine()
        assert amounts(await cursor.poll()) == [1]


async def test_a_silent_endpoint_is_an_error_until_it_answers(
    place: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with depositor(place) as chain, await Chain.connect(place.settings) as watcher:
        await chain.send(registry.deposit(1))
        cursor = cursor_on(watcher, tmp_path)
        monkeypatch.setattr(watcher.web3.provider, "timeout", 0.3)
        os.kill(place.anvil.pid, signal.SIGSTOP)
        with pytest.raises(UnreachableError, match="does not answer"):
            await cursor.poll()
        os.kill(place.anvil.pid, signal.SIGCONT)
        monkeypatch.undo()
        assert amounts(await cursor.poll()) == [1]


async def test_look_alikes_of_other_contracts_are_left_out(place: Deployment, tmp_path: Path) -> None:
    async with depositor(place) as chain:
        # Creation code that emits Deposited(address(0), 0) from an unrelated contract.
        emit = bytes.fromhex("5f7f") + Deposited.ABI.topic + bytes.fromhex("60205fa2")
        assert chain.sender is not None
        mined = await chain.sender.send(TxRequest(None, emit, "look-alike"))
        (log,) = mined.logs
        assert decode_logs([log | {"address": chain.addresses.registry}], chain.addresses)
        assert decode_logs([log], chain.addresses) == ()
        await chain.send(registry.deposit(9))
        assert amounts(await cursor_on(chain, tmp_path).poll()) == [9]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"of": 1}', "change kinds"])
async def test_a_position_that_is_damaged_or_of_something_else_starts_over(
    place: Deployment, tmp_path: Path, damage: str
) -> None:
    async with depositor(place) as chain:
        await chain.send(registry.deposit(1))
        cursor = cursor_on(chain, tmp_path)
        assert await drain(cursor) == [1]
        assert json.loads((tmp_path / "place.json").read_text())["next"] > chain.addresses.from_block
        if damage == "change kinds":
            other = EventCursor(chain, tmp_path / "place.json", [Deposited])
            assert amounts(await other.poll()) == [1]
            return
        (tmp_path / "place.json").write_text(damage)
        assert amounts(await cursor_on(chain, tmp_path).poll()) == [1]


async def test_time_travel_is_for_local_chains(place: Deployment) -> None:
    async with await Chain.connect(place.settings) as chain:
        dev = await LocalChain.open(chain.web3)
        before = (await chain.head()).timestamp
        assert await dev.advance(25 * 3600) >= before + 25 * 3600
        target = await dev.now() + 1_000
        assert await dev.advance_to(target) == target
        await dev.request("anvil_setChainId", 84_532)
        with pytest.raises(ConfigError, match="no local chain"):
            await LocalChain.open(chain.web3)
