"""Behind one name are servers that differ in head, index, receipts and pending counts: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from muster.chain.client import Chain
from muster.chain.cursor import EventCursor
from muster.contracts import registry, token
from muster.contracts.registry import Deposited
from muster.errors import TRANSIENT
from testbed.chain.balancer import Balancer, Server, balanced
from testbed.chain.contracts import deploy_on, funded_on
from testbed.chain.senders import Start
from testbed.waiting import BOUND

EVENTS, SENT = 1_000, 200
AT_ONCE = 8
SERVERS = (
    Server(),
    Server(head=1),
    Server(head=2, pool=False),
    Server(index=3, receipts=1),
    Server(receipts=4),
    Server(pool=False),
)


async def follow(cursor: EventCursor, delivered: Counter[int]) -> None:
    """Deal with events until all are there."""
    while delivered.total() < EVENTS:
        try:
            batch = await cursor.poll()
        except TRANSIENT:
            batch = None
        if batch is not None:
            assert batch.rewound_to is None
            delivered.update(event.amount for event in batch if isinstance(event, Deposited))
            await cursor.ack()
        await asyncio.sleep(0.05)


async def deposit(chain: Chain, amounts: range, at_once: int) -> None:
    """Send a transaction for each amount, so many at a time."""
    left = iter(amounts)

    async def send() -> None:
        for amount in left:
            await chain.send(registry.deposit(amount))

    await asyncio.gather(*(send() for _ in range(at_once)))


async def ready(chain: Chain) -> None:
    await chain.send(token.faucet())
    await chain.send(token.approve(chain.addresses.registry, 10**22))


def differing(balancer: Balancer, seed: int) -> None:
    """Let each call be answered by any of the servers."""
    chosen = random.Random(seed)
    balancer.server = lambda: chosen.choice(SERVERS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_each_event_is_delivered_and_each_transaction_sent_once(
    start_anvil: Start, built_contracts: None, tmp_path: Path, seed: int
) -> None:
    anvil = start_anvil(block_time=0.5)
    place = await asyncio.to_thread(deploy_on, anvil, tmp_path)
    first, second = funded_on(anvil, 2)
    delivered: Counter[int] = Counter()
    async with balanced(anvil) as balancer:
        settings = place.settings.model_copy(update={"rpc_url": balancer.url})
        async with (
            await Chain.connect(place.settings, first, journal_folder=tmp_path / "direct") as direct,
            await Chain.connect(settings, second, journal_folder=tmp_path / "balanced") as chain,
            await Chain.connect(settings) as watcher,
        ):
            await asyncio.gather(ready(direct), ready(chain))
            anvil.request("anvil_mine", hex(8))  # so that every server knows it
            differing(balancer, seed)
            began = time.monotonic()
            cursor = EventCursor(watcher, tmp_path / "place.json", [Deposited])
            async with asyncio.timeout(4 * BOUND):
                await asyncio.gather(
                    follow(cursor, delivered),
                    deposit(chain, range(1, SENT + 1), AT_ONCE),
                    deposit(direct, range(SENT + 1, EVENTS + 1), 5 * AT_ONCE),
                )
            seconds = time.monotonic() - began
            assert chain.sender is not None
            assert chain.sender.journal.pending() == []
    sent = int(anvil.request("eth_getTransactionCount", second.address, "latest"), 16) - 2
    print(f"{len(delivered)} events delivered, {max(delivered.values())} times at most; {sent} sent; {seconds:.0f} s")
    assert delivered == Counter(range(1, EVENTS + 1))
    assert sent == SENT
