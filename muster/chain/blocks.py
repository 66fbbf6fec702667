"""The newest blocks of a chain, each with the events of ours in it.

Servers behind one endpoint differ: one may have a block and no index of its logs yet, and answers that there are none.
So an answer counts only for the block that it names. Blocks less than NEAR deep are asked for one by one, by hash.
Where a block's bloom does not rule our events out, its receipts decide, if there is one for each of its transactions.
Without them, ANSWERS answers in SETTLE_SECONDS must agree that it has no events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, Final, Literal

from muster.chain.events import EVENTS, decode_logs
from muster.chain.provider import BoundedProvider, RpcError, data
from muster.chain.types import AddressBook, Block
from muster.contracts.abi import CONTRACTS
from muster.contracts.codec import Event
from muster.errors import MalformedError, UnreachableError
from muster.protocol.hashes import keccak

NEAR: Final = 64
"""Blocks less deep than this are asked for by hash. Servers have indexed deeper ones long ago."""

ANSWERS: Final = 3
"""Equal answers that count where there are no receipts."""

SETTLE_SECONDS: Final = 9.0
"""From the first of these to the last: with a poll's pause an event is at most 10 s late."""

KNOWN: Final = 4 * NEAR
"""Blocks that are remembered; forks are among them."""

Which = int | Literal["latest"]


def behind(what: str) -> UnreachableError:
    """Return the error for an answer from before what is known already: it proves nothing."""
    return UnreachableError(
        f"the endpoint is behind: {what}", hint="try again; if it stays so, set chain.rpc_url to another endpoint"
    )


async def read_blocks(provider: BoundedProvider, which: Sequence[Which]) -> list[Block | None]:
    """Return blocks in as few round trips as the endpoint allows; None for one that it does not know.

    Raises MalformedError where an answer is no block, or another one.
    """
    names = [one if one == "latest" else hex(one) for one in which]
    answers = await provider.batch([("eth_getBlockByNumber", [name, False]) for name in names])
    return [block_in(answer, one) for answer, one in zip(answers, which, strict=True)]


def block_in(answer: Any, asked: Which) -> Block | None:
    """Read an answer of eth_getBlockByNumber; None where there is no such block. Raises MalformedError."""
    if answer is None:
        return None
    try:
        block = Block(
            int(answer["number"], 16),
            int(answer["timestamp"], 16),
            data(answer["hash"]),
            data(answer.get("parentHash") or ""),
            int(answer.get("logsBloom") or "-1", 16),
            len(answer["transactions"]) if "transactions" in answer else -1,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MalformedError(f"eth_getBlockByNumber: the answer is no block: {error!r}") from error
    if block.transactions == 0 and block.bloom > 0:
        raise MalformedError(f"eth_getBlockByNumber: block {block.number} has logs, and no transactions of them")
    if asked not in ("latest", block.number):
        raise MalformedError(f"eth_getBlockByNumber: the answer is block {block.number}, and {asked} was asked for")
    return block


def events_in(logs: Any, book: AddressBook, first: int, last: Block) -> tuple[Event, ...]:
    """Return our contracts' events in logs of blocks `first` to `last`. Raises MalformedError on another block's."""
    if not isinstance(logs, list):
        raise MalformedError("eth_getLogs: the answer is not a list")
    events = decode_logs(logs, book)
    for at in (event.at for event in events):
        if not first <= at.block <= last.number or (at.block == last.number and at.block_hash != last.hash):
            raise MalformedError(f"eth_getLogs: a log is of another block, {at.block} 0x{at.block_hash.hex()}")
    return events


def bloom_of(value: bytes) -> int:
    """Return the three bits that an address or a topic sets in a block's bloom (yellow paper, section 4.3.1)."""
    digest = keccak(value)
    bits = (int.from_bytes(digest[at : at + 2]) & 2047 for at in (0, 2, 4))
    return sum({1 << bit for bit in bits})


@dataclass
class _RecentBlock:
    """A block, and what is known of its events."""

    block: Block
    events: tuple[Event, ...] | None = None
    """Of our contracts; None while they are not certain."""
    answers: int = 0
    """Answers that it has none, in a row."""
    asked: float = 0.0
    """Monotonic seconds of the latest of them."""


class RecentBlocks:
    """The newest blocks of one endpoint, by hash. Its readers may ask at the same time."""

    def __init__(self, provider: BoundedProvider, book: AddressBook) -> None:
        self._provider = provider
        self._book = book
        self._known: dict[bytes, _RecentBlock] = {}
        self._lock = asyncio.Lock()

    async def line(self, head: Block, first: int) -> list[Block]:
        """Return blocks `first` to `head`, each the parent of the next; asks for those that are not known.

        Raises UnreachableError where answers are of different chains.
        """
        line = [head]
        while line[-1].number > first and (parent := self._known.get(line[-1].parent)):
            line.append(parent.block)
        missing = range(first, line[-1].number)
        for number, block in zip(reversed(missing), reversed(await read_blocks(self._provider, missing)), strict=True):
            if block is None:
                raise behind(f"it does not know block {number}")
            if block.hash != line[-1].parent:
                raise behind(f"its blocks {number} and {number + 1} are of different chains")
            line.append(block)
        for block in line:
            self._record(block)
        return line[::-1]

    async def settle(self, blocks: Sequence[Block]) -> list[tuple[Event, ...]]:
        """Return the events of our contracts in these blocks, up to the first block whose events are not certain yet.

        Raises UnreachableError or ChainError when the endpoint gives no answer.
        """
        async with self._lock:
            known = [self._record(block) for block in blocks]
            for one in known:
                if one.events is None:
                    one.events = await self._decide(one)
        return [one.events or () for one in takewhile(lambda one: one.events is not None, known)]

    def _record(self, block: Block) -> _RecentBlock:
        known = self._known.setdefault(block.hash, _RecentBlock(block))
        while len(self._known) > KNOWN:
            del self._known[next(iter(self._known))]
        return known

    @cached_property
    def _masks(self) -> list[int]:
        """Bits of a bloom that each event of ours sets: its contract's and its topic's."""
        return [bloom_of(data(getattr(self._book, name))) | bloom_of(topic) for name, topic in sorted(EVENTS)]

    async def _decide(self, one: _RecentBlock) -> tuple[Event, ...] | None:
        """Return a block's events; None while they are not certain. Asks every half of SETTLE_SECONDS at most."""
        block, now, name = one.block, time.monotonic(), "0x" + one.block.hash.hex()
        may_hold = not block.bloom or any(block.bloom & mask == mask for mask in self._masks)  # 0: it may not be kept
        if not may_hold or not block.transactions:
            return ()
        if one.answers and now < one.asked + SETTLE_SECONDS / 2:
            return None
        one.asked = now
        with suppress(RpcError, UnreachableError, MalformedError, KeyError, TypeError):  # unknown, slow, large, or none
            receipts = await self._provider.request("eth_getBlockReceipts", name)
            if receipts and [receipt["blockHash"] for receipt in receipts] == [name] * block.transactions:
                logs = [log for receipt in receipts for log in receipt["logs"]]
                return events_in(logs, self._book, block.number, block)
        question = {"blockHash": name, "address": sorted({getattr(self._book, contract) for contract in CONTRACTS})}
        logs = await self._provider.request("eth_getLogs", question)
        events = events_in(logs, self._book, block.number, block)
        one.answers += 1
        return events if events or one.answers >= ANSWERS else None
