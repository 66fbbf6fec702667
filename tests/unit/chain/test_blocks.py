"""The newest blocks: what one holds is certain, whatever the servers behind an endpoint lack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.chain import blocks
from muster.chain.blocks import KNOWN, NEAR, RecentBlocks, bloom_of
from muster.chain.cursor import EventCursor
from muster.chain.provider import RpcError
from muster.chain.reads import ChainReader
from muster.chain.types import AddressBook, Block
from muster.contracts.registry import Deposited
from muster.errors import ChainError, MalformedError, UnreachableError
from muster.settings.schema import ChainSettings

BOOK = AddressBook(31337, *("0x" + f"{number:040x}" for number in range(1, 8)), from_block=1)
ALL, OURS, OTHERS = (1 << 2048) - 1, 0, 1
"""Blooms: one of a busy chain, one that holds an event of ours, and one that holds none."""
BLOCK_SECONDS = 2.0
POLL = 0.5
UNKNOWN = RpcError("eth_getBlockReceipts", {"code": -32601, "message": "the method does not exist"})


def hash_of(number: int, fork: str = "") -> str:
    return f"0x{fork:0>32}{number:032x}"


class Endpoint:
    """A chain with a transaction in each block, of which some emit Deposited. Counts what it is asked."""

    def __init__(self) -> None:
        self.head = 0
        self.bloom = ALL
        self.deposits: set[int] = set()
        self.receipts = True
        self.receipts_of: int | None = None
        """The block, without events, whose receipts a server gives for any other."""
        self.hides: Callable[[str, int], bool] = lambda method, number: False
        """Whether a server that lacks its index answers."""
        self.fork = ""
        self.lacks = -1
        """A block of which a server has the head alone."""
        self.calls = self.trips = 0

    async def request(self, method: str, *params: Any) -> Any:
        self.trips += 1
        return self.answer(method, params[0])

    async def batch(self, requests: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        self.trips += -(-len(requests) // 10)
        return [self.answer(method, params[0]) for method, params in requests]

    answers = batch

    def answer(self, method: str, asked: Any) -> Any:
        self.calls += 1
        if method == "eth_getBlockByNumber":
            number = self.head if asked == "latest" else int(asked, 16)
            return self.block(number) if number <= self.head else None
        if method == "eth_getLogs" and "blockHash" not in asked:
            return [self.log(n) for n in self.deposits if int(asked["fromBlock"], 16) <= n <= int(asked["toBlock"], 16)]
        number = int((asked["blockHash"] if method == "eth_getLogs" else asked)[-32:], 16)
        logs = [self.log(number)] if number in self.deposits else []
        if method == "eth_getLogs":
            return [] if self.hides(method, number) else logs
        if not self.receipts:
            raise UNKNOWN
        if self.receipts_of is not None:
            logs, asked = [], hash_of(self.receipts_of, self.fork)
        receipts = [{"blockHash": asked, "logs": logs}, {"blockHash": asked, "logs": []}]
        return receipts[self.hides(method, number) :]

    def block(self, number: int) -> dict[str, Any]:
        bits = bloom_of(bytes.fromhex(BOOK.registry[2:])) | bloom_of(Deposited.ABI.topic)
        return {
            "number": hex(number),
            "timestamp": hex(2 * number),
            "hash": hash_of(number, self.fork),
            "parentHash": hash_of(max(number - 1, 0), self.fork),
            "logsBloom": hex(self.bloom or bits),
            "transactions": [] if number == self.lacks else [f"0xa{number:063x}", f"0xb{number:063x}"],
        }

    def log(self, number: int) -> dict[str, Any]:
        return {
            "address": BOOK.registry,
            "topics": ["0x" + Deposited.ABI.topic.hex(), f"0x{7:064x}"],
            "data": f"0x{number:064x}",
            "blockNumber": hex(number),
            "blockHash": hash_of(number, self.fork),
            "transactionHash": f"0x{number:064x}",
            "logIndex": "0x0",
        }


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    time = SimpleNamespace(now=0.0)
    monkeypatch.setattr(blocks, "time", SimpleNamespace(monotonic=lambda: time.now))
    return time


def reader(endpoint: Endpoint, **options: Any) -> ChainReader:
    web3: Any = SimpleNamespace(provider=endpoint)
    return ChainReader(web3, BOOK, ChainSettings.model_validate(options))


class Followed:
    """A cursor beside the blocks as they come; each block's delay, and the deposits that were delivered."""

    def __init__(self, endpoint: Endpoint, clock: SimpleNamespace, path: Path, **options: Any) -> None:
        self.endpoint, self.clock = endpoint, clock
        self.cursor = EventCursor(reader(endpoint, **options), path / "place.json", [Deposited])
        self.delivered: list[int] = []
        self.latest = 0.0
        """The longest that a block took to be dealt with, in seconds."""

    async def poll(self) -> None:
        batch = await self.cursor.poll()
        for number in range(batch.first, batch.last + 1):
            self.latest = max(self.latest, self.clock.now - number * BLOCK_SECONDS)
        self.delivered += [event.amount for event in batch if isinstance(event, Deposited)]
        await self.cursor.ack()

    async def until(self, last: int, polls: int = 4) -> None:
        """Let the chain grow to this block, and poll so many times a block."""
        for number in range(self.endpoint.head + 1, last + 1):
            self.endpoint.head = number
            for part in range(polls):
                self.clock.now = number * BLOCK_SECONDS + part * BLOCK_SECONDS / polls
                await self.poll()


@pytest.mark.parametrize(("receipts", "latest"), [(True, 0.0), (False, 10.0)])
async def test_busy_blocks_without_events_take_few_requests(
    endpoint: Endpoint, clock: SimpleNamespace, tmp_path: Path, receipts: bool, latest: float
) -> None:
    """The control: every bloom may hold an event of ours, and no block does."""
    endpoint.receipts, count = receipts, 10_000 if receipts else 500
    followed = Followed(endpoint, clock, tmp_path)
    await followed.until(count, polls=1 if receipts else 4)
    assert followed.delivered == []
    assert followed.latest <= latest
    if receipts:
        assert endpoint.calls / count <= 2.2
        assert endpoint.trips / count <= 2.2


async def test_quiet_blocks_take_one_request(endpoint: Endpoint, clock: SimpleNamespace, tmp_path: Path) -> None:
    endpoint.bloom = OTHERS
    await Followed(endpoint, clock, tmp_path).until(500, polls=1)
    assert endpoint.calls == endpoint.trips == 1 + 500


@pytest.mark.parametrize("bloom", [ALL, OURS], ids=["busy", "ours"])
@pytest.mark.parametrize(
    "hidden", [("eth_getLogs",), ("eth_getBlockReceipts",), ("eth_getLogs", "eth_getBlockReceipts")]
)
@pytest.mark.parametrize("receipts", [True, False])
async def test_an_event_that_a_server_has_not_indexed_is_delivered_once(
    endpoint: Endpoint, clock: SimpleNamespace, tmp_path: Path, bloom: int, hidden: tuple[str, ...], receipts: bool
) -> None:
    endpoint.bloom, endpoint.receipts, endpoint.deposits = bloom, receipts, {5, 20, 21, 40}
    endpoint.hides = lambda method, number: method in hidden and clock.now < number * BLOCK_SECONDS + 8
    followed = Followed(endpoint, clock, tmp_path)
    await followed.until(60)
    assert followed.delivered == [5, 20, 21, 40]
    assert followed.latest <= 10.0


@pytest.mark.parametrize("another", [None, 3])
async def test_receipts_that_never_come_are_not_waited_for(
    endpoint: Endpoint, clock: SimpleNamespace, tmp_path: Path, another: int | None
) -> None:
    endpoint.deposits, endpoint.receipts_of = {5, 20}, another
    endpoint.hides = lambda method, number: another is None and method == "eth_getBlockReceipts"
    followed = Followed(endpoint, clock, tmp_path)
    await followed.until(60)
    assert followed.delivered == [5, 20]
    assert followed.latest <= 10.0


async def test_no_receipts_of_a_block_without_a_list_of_transactions_prove_nothing(
    endpoint: Endpoint, clock: SimpleNamespace, tmp_path: Path
) -> None:
    block, answer = endpoint.block, endpoint.answer
    endpoint.block = lambda number: {key: value for key, value in block(number).items() if key != "transactions"}
    endpoint.answer = lambda method, asked: [] if method == "eth_getBlockReceipts" else answer(method, asked)
    endpoint.deposits = {5}
    followed = Followed(endpoint, clock, tmp_path)
    await followed.until(10)
    assert followed.delivered == [5]


async def test_the_head_is_that_of_what_is_certain(endpoint: Endpoint, clock: SimpleNamespace, tmp_path: Path) -> None:
    """Who acts at the head knows every event up to it, less the blocks that are not confirmed."""
    endpoint.receipts = False
    for confirmations in (0, 3):
        endpoint.head = 0
        followed = Followed(endpoint, clock, tmp_path / str(confirmations), confirmations=confirmations)
        followed.cursor.path.parent.mkdir()
        await followed.until(30)
        assert followed.cursor.head is not None
        batch = await followed.cursor.poll()
        assert followed.cursor.head.number == batch.first - 1 + confirmations
        assert 30 - 5 <= batch.first - 1 + confirmations <= 30


async def test_deep_blocks_are_asked_for_together(endpoint: Endpoint, clock: SimpleNamespace, tmp_path: Path) -> None:
    endpoint.head, endpoint.deposits = 5_000, {1, 4_000, 5_000 - NEAR, 5_001 - NEAR, 5_000}
    followed = Followed(endpoint, clock, tmp_path)
    await followed.poll()
    assert followed.delivered == sorted(endpoint.deposits)
    assert endpoint.calls == 1 + NEAR + NEAR + 2


@pytest.mark.parametrize("change", [{"blockHash": hash_of(3, "f")}, {"blockNumber": "0x4"}])
async def test_logs_of_another_block_are_refused(endpoint: Endpoint, change: dict[str, Any]) -> None:
    log = endpoint.log

    def changed(number: int) -> dict[str, Any]:
        return log(number) | change

    endpoint.log = changed  # type: ignore[method-assign]
    endpoint.head, endpoint.deposits, endpoint.receipts = 3, {3}, False
    chain = reader(endpoint)
    head = await chain.head()
    with pytest.raises(MalformedError, match="eth_getLogs: a log "):
        await chain.events_under(head, [Deposited], 3, 3)
    with pytest.raises(MalformedError, match="eth_getLogs: a log "):
        await chain.events([Deposited], 3, 3)


async def test_another_block_than_was_asked_for_is_refused(endpoint: Endpoint) -> None:
    block = endpoint.block
    endpoint.block = lambda number: block(number + 1)  # type: ignore[method-assign]
    endpoint.head = 9
    with pytest.raises(MalformedError, match="the answer is block 6, and 5 was asked for"):
        await reader(endpoint).blocks([5])


async def test_a_block_whose_transactions_a_server_lacks_is_asked_for_again(
    endpoint: Endpoint, clock: SimpleNamespace, tmp_path: Path
) -> None:
    endpoint.deposits = {5, 20}
    followed = Followed(endpoint, clock, tmp_path)
    await followed.until(19)
    endpoint.head = endpoint.lacks = 20
    with pytest.raises(MalformedError, match="block 20 has logs, and no transactions"):
        await followed.poll()
    endpoint.lacks = -1
    await followed.poll()
    assert followed.delivered == [5, 20]


async def test_blocks_of_two_chains_are_not_read_as_one(endpoint: Endpoint) -> None:
    endpoint.head = 20
    chain = reader(endpoint)
    head = await chain.head()
    endpoint.fork = "f"
    with pytest.raises(UnreachableError, match="blocks 19 and 20 are of different chains"):
        await chain.events_under(head, [Deposited], 10, 20)


async def test_an_endpoint_without_logs_of_a_block_is_an_error(endpoint: Endpoint) -> None:
    def refuse(method: str, number: int) -> bool:
        if method == "eth_getLogs":
            raise RpcError(method, {"code": -32000, "message": "unknown block"})
        return True

    endpoint.head, endpoint.hides = 3, refuse
    with pytest.raises(ChainError, match="unknown block"):
        await reader(endpoint).settled_head(0)


async def test_few_blocks_are_remembered(endpoint: Endpoint) -> None:
    provider: Any = endpoint
    recent = RecentBlocks(provider, BOOK)
    for number in range(2 * KNOWN):
        block = Block(number, 0, number.to_bytes(32), transactions=0)
        assert await recent.settle([block]) == [()]
    assert len(vars(recent)["_known"]) == KNOWN
