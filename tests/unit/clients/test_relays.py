"""The order in which one node uses the directory's sources."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from muster.clients.relays import FIRST, MEASURED_SECONDS, Relays
from muster.errors import UnreachableError
from muster.settings.schema import ShardcastSettings
from muster.shardcast.fetch.bounds import FetchBounds
from muster.shardcast.fetch.delta_fetch import fetch_step
from muster.shardcast.fetch.fetch import FetchRequest
from muster.shardcast.fetch.sources import MAX_SOURCES, SourceReport
from testbed.http import Reply, serving

LISTED = [f"http://{number}.example" for number in range(64)]


async def listed(run: int) -> list[str]:
    return LISTED


CLIENT: Any = SimpleNamespace(relays=listed, url="https://run.example")


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


def test_strangers_may_have_chosen_what_only_the_directory_of_a_public_run_lists() -> None:
    assert relays().public
    assert not Relays(ShardcastSettings(relays=LISTED), CLIENT, 1).public
    for url in ("http://127.0.0.1:8600", "http://localhost:8600", "http://10.1.2.3", "http://[::1]:8600"):
        own: Any = SimpleNamespace(relays=listed, url=url)
        assert not Relays(ShardcastSettings(), own, 1).public


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1"])
async def test_no_private_address_is_asked_whose_name_was_public_when_it_was_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    asked, find = list[str](), socket.getaddrinfo

    def answer(request: Any) -> Reply:
        asked.append(request.path)
        return Reply(status=404)

    async def anchored(step: int) -> bytes:
        return bytes(32)

    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more, **options: find(address, *more, **options))
    with serving(answer) as url:
        source = f"http://relay.example:{urlsplit(url).port}"
        for public in (True, False):
            request = FetchRequest(
                bytes(32), 1, 0, [source], tmp_path, public=public, bounds=FetchBounds(give_up_seconds=0.5)
            )
            with pytest.raises(UnreachableError):
                await fetch_step(request, anchored)
            assert bool(asked) == (not public)
