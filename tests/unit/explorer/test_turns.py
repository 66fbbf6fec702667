"""Public pages take a bounded share of the process's time, and light use never waits."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import Connection
from starlette.requests import Request

from explorer import turns
from explorer.overview import RunIdentity
from explorer.site import PROBLEM, Page, Site
from explorer.turns import BURST_SECONDS, SHARE, TimeShare
from muster.ledger.database import Database
from testbed.runs.recorded_run import SampleRun
from testbed.samples.terms import terms_of
from testbed.waiting import BOUND

OWNER = "0x" + "e" * 40


class Clock:
    """A clock that advances only by sleeping and working."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.slept = 0.0
        monkeypatch.setattr(turns.asyncio, "sleep", self.sleep)

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds

    def work(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def pieces(made: TimeShare, clock: Clock, count: int, seconds: float) -> None:
    for _ in range(count):
        async with made.turn():
            clock.work(seconds)


async def test_burst_runs_at_once_and_flood_gets_its_share(clock: Clock) -> None:
    made = TimeShare(clock)
    began = clock.now
    await pieces(made, clock, 10, BURST_SECONDS / 10)
    assert clock.slept == 0
    await pieces(made, clock, 1000, 0.02)
    worked = BURST_SECONDS + 20.0
    assert clock.now - began == pytest.approx((worked - BURST_SECONDS) / SHARE, abs=0.1)


async def test_a_rest_brings_no_more_than_a_burst(clock: Clock) -> None:
    made = TimeShare(clock)
    clock.work(3600)
    await pieces(made, clock, 1, BURST_SECONDS + 1.0)
    assert clock.slept == 0
    earned = (BURST_SECONDS + 1.0) * SHARE  # while it worked
    await pieces(made, clock, 1, 0.0)
    assert clock.slept == pytest.approx(max(0.0, 1.0 - earned) / SHARE)
    await pieces(made, clock, 1, 3.0)
    await pieces(made, clock, 1, 0.0)
    assert clock.slept == pytest.approx(3.0 / SHARE - 3.0)


async def test_one_piece_at_a_time_and_one_that_fails_gives_its_turn_back() -> None:
    made, under_way, most = TimeShare(), 0, 0

    async def piece(fails: bool) -> None:
        nonlocal under_way, most
        async with made.turn():
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            if fails:
                raise ValueError("no")

    done = await asyncio.gather(*(piece(number % 2 == 0) for number in range(6)), return_exceptions=True)
    assert [isinstance(one, ValueError) for one in done] == [True, False] * 3
    assert most == 1


async def test_uncached_pages_leave_half_of_the_time_to_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests for ever new addresses render a page each; together these take half of the time."""
    monkeypatch.setattr(turns, "BURST_SECONDS", 0.05)
    known = RunIdentity(1, 31337, "", "", OWNER, {}, terms_of())
    site = Site(known, "http://run.example", lambda: 0)

    def chain_time() -> int:  # called while a page is made
        time.sleep(0.05)
        return 0

    monkeypatch.setattr(site, "_chain_time", chain_time)

    async def make() -> dict[str, str]:
        return {"title": "a", "detail": "b", "hint": ""}

    def request(number: int) -> Request:
        return Request({"type": "http", "method": "GET", "path": "/", "query_string": b"x=%d" % number, "headers": []})

    began = time.monotonic()
    answers = await asyncio.gather(*(site.respond(request(number), PROBLEM, make) for number in range(12)))
    assert [answer.status_code for answer in answers] == [200] * 12
    assert time.monotonic() - began > (11 * 0.05 - 0.05) / SHARE * 0.9


@pytest.mark.parametrize("refresh", [8, 0])
async def test_a_page_says_how_often_it_is_fetched_again(refresh: int) -> None:
    known = RunIdentity(1, 31337, "", "", OWNER, {}, terms_of())
    site = Site(known, "http://run.example", lambda: 0)

    async def make() -> dict[str, str]:
        return {"title": "a", "detail": "b", "hint": ""}

    request = Request({"type": "http", "path": "/", "query_string": b"", "headers": []})
    answer = await site.respond(request, Page("/", "problem.html", refresh=refresh), make)
    found = re.search(rb'data-refresh="(\d+)"', bytes(answer.body))
    assert (int(found[1]) if found else 0) == refresh


async def test_one_document_is_read_at_a_time_and_members_find_places(database_url: str, tmp_path: Path) -> None:
    database = await Database.open(database_url, "a test")
    source, under_way, most, go = SampleRun(database, tmp_path).source, 0, 0, threading.Event()

    def read(_: Connection) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        assert go.wait(BOUND)
        under_way -= 1

    looking = [asyncio.create_task(source.read(read)) for _ in range(20)]
    assert await database.read(lambda _: 7) == 7
    go.set()
    await asyncio.gather(*looking)
    assert most == 1
    await database.close()
