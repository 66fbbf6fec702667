"""Readers at the end of the log wait until it grows, in slots of their own; others are answered at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.ledger.database import Database
from muster.ledger.statements import upsert
from muster.ledger.tables import meta
from muster.runtime.slots import Slots
from orchestrator import log_tail
from orchestrator.log_tail import LogTail
from testbed.waiting import BOUND

HEAD = 5


class Tail:
    """A log with five documents, and an application behind its tail that answers at once."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.answered: list[str] = []
        self.held = Slots(2, 0, share=1.0)
        self.tail = LogTail(self._answer, 1, database, self.held)

    async def _answer(self, scope: Any, _receive: Any, _send: Any) -> None:
        self.answered.append(scope["query_string"].decode())

    async def ask(self, query: str, path: str = "/v1/runs/1/log", method: str = "GET") -> None:
        connection = SimpleNamespace(address="203.0.113.1", proxied=False)
        scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": []}
        await self.tail(scope | {"state": {"connection": connection}}, None, None)  # type: ignore[arg-type]

    async def grow(self, head: int) -> None:
        row = {"key": "places", "value": str(head)}
        await self.database.write(lambda connection: upsert(connection, meta, row))

    def waiting(self, query: str) -> asyncio.Task[None]:
        return asyncio.create_task(self.ask(query))


@pytest.fixture
async def tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Tail]:
    monkeypatch.setattr(log_tail, "LOOK_SECONDS", 0.01)
    database = await Database.open(f"sqlite:///{tmp_path}/log.db", "a test")
    one = Tail(database)
    await one.grow(HEAD)
    yield one
    await database.close()


async def test_a_reader_at_the_end_waits_for_growth(tail: Tail) -> None:
    reader = tail.waiting(f"after={HEAD}&wait=30")
    done, _ = await asyncio.wait([reader], timeout=0.2)
    assert not done
    await tail.grow(HEAD + 1)
    await asyncio.wait_for(reader, BOUND)
    assert tail.answered == [f"after={HEAD}&wait=30"]
    assert (tail.held.take("a"), tail.held.take("b")) == (True, True), "both slots are free again"


@pytest.mark.parametrize(
    "query",
    [
        "after=5",
        "after=4&wait=30",
        "after=6&wait=30",
        "after=5&wait=31",
        "after=5&wait=x",
        "after=5&wait=-1",
        "wait=30",
    ],
)
async def test_others_are_answered_at_once(tail: Tail, query: str) -> None:
    """Who reads behind the end or beyond it, or waits in no way that there is."""
    await asyncio.wait_for(tail.ask(query), BOUND)
    await asyncio.wait_for(tail.ask("after=5&wait=30", path="/v1/runs/2/log"), BOUND)
    await asyncio.wait_for(tail.ask("after=5&wait=30", method="POST"), BOUND)
    assert tail.answered[0] == query


async def test_the_time_ends_a_wait(tail: Tail) -> None:
    await asyncio.wait_for(tail.ask(f"after={HEAD}&wait=1"), BOUND)
    assert tail.answered == [f"after={HEAD}&wait=1"]


async def test_without_a_slot_and_at_the_end_of_the_process_nobody_waits(tail: Tail) -> None:
    query = f"after={HEAD}&wait=30"
    readers = [tail.waiting(query) for _ in range(2)]
    await asyncio.wait(readers, timeout=0.2)
    assert not tail.held.take("another"), "both slots are held"
    await asyncio.wait_for(tail.ask(query), BOUND)
    assert tail.answered == [query]
    tail.tail.stop()
    await asyncio.wait_for(asyncio.gather(*readers), BOUND)
    await asyncio.wait_for(tail.ask(query), BOUND)
    assert tail.answered == [query] * 4
