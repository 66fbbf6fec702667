"""The order in which one node uses the directory's sources."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

from muster.clients.relays import FIRST, MEASURED_SECONDS, Relays
from muster.settings.schema import ShardcastSettings
from muster.shardcast.fetch.sources import MAX_SOURCES, SourceReport

LISTED = [f"http://{number}.example" for number in range(64)]


async def listed(run: int) -> list[str]:
    return LISTED


CLIENT: Any = SimpleNamespace(relays=listed)


def relays(node: int = 0, clock: float = 0.0) -> Relays:
    return Relays(ShardcastSettings(), CLIENT, 1, clock=lambda: clock, salt=bytes([node]))


async def test_owner_relays_stay_first_and_the_rest_spreads_over_nodes() -> None:
    orders = [await relays(node).urls() for node in range(200)]
    assert all(sorted(order) == sorted(LISTED) and order[:FIRST] == LISTED[:FIRST] for order in orders)
    used = Counter(url for order in orders for url in order[FIRST:MAX_SOURCES])
    even = 200 * (MAX_SOURCES - FIRST) / (len(LISTED) - FIRST)
    assert all(even / 2 < used[url] < even * 2 for url in LISTED[FIRST:])


async def test_order_is_stable_when_another_source_leaves() -> None:
    node = relays()
    before = await node.urls()
    node.own = before[10]
    assert await node.urls() == [*before[:10], *before[11:]]


async def test_slow_and_failing_sources_are_left_for_an_hour() -> None:
    now = 0.0
    node = Relays(ShardcastSettings(), CLIENT, 1, clock=lambda: now, salt=b"")
    before = await node.urls()
    fast, slow, dead = before[5:8]
    reports = [
        SourceReport(fast, bytes=10**8, seconds=1),
        SourceReport(slow, bytes=10**3, seconds=1),
        SourceReport(dead, failures=1),
    ]
    await node.report(bytes(32), reports)
    order = await node.urls()
    assert order[5] == fast
    assert min(order.index(slow), order.index(dead)) >= MAX_SOURCES
    now = MEASURED_SECONDS
    assert await node.urls() == before


def test_chosen_relays_keep_their_order() -> None:
    chosen = list(reversed(LISTED))
    assert asyncio.run(Relays(ShardcastSettings(relays=chosen), None, 1).urls()) == chosen
