"""What is answered before the framework, and what is left to it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from muster.errors import StorageError
from muster.protocol.messages import Demand
from orchestrator.demand_board import LOOK_SECONDS, DemandBoard
from orchestrator.hot_reads import HotReads
from testbed.waiting import BOUND

DEMAND = "/v1/runs/3/demand"
PASSED = [{"type": "passed on"}]


class Asked:
    """Queries whose demand a test sets, and the application around them."""

    def __init__(self) -> None:
        self.now: Demand | Exception = Demand(run=3, step=2, wanted=True, waiting_groups=5)
        self.connection = SimpleNamespace(on_lost=None, transport=SimpleNamespace(is_closing=lambda: False))
        self.board = DemandBoard(self)  # type: ignore[arg-type]
        self._hot = HotReads(self._app, 3, self.board)

    async def demand(self) -> Demand:
        if isinstance(self.now, Exception):
            raise self.now
        return self.now

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        await send(PASSED[0])

    async def get(self, path: str, query: bytes = b"", method: str = "GET") -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            sent.append(message)

        state = {"connection": self.connection}
        scope = {"type": "http", "path": path, "query_string": query, "method": method, "state": state}
        await self._hot(scope, None, send)  # type: ignore[arg-type]
        return sent

    def change(self, **changes: Any) -> None:
        assert isinstance(self.now, Demand)
        self.now = self.now.model_copy(update=changes)


@pytest.fixture
def asked() -> Asked:
    return Asked()


async def test_demand_is_answered_as_it_is_now(asked: Asked) -> None:
    for waiting in (5, 6):
        asked.now = Demand(run=3, step=2, wanted=True, waiting_groups=waiting)
        start, body = await asked.get(DEMAND)
        assert start["status"] == 200
        assert Demand.model_validate_json(body["body"]) == asked.now


async def test_health_is_answered(asked: Asked) -> None:
    assert (await asked.get("/healthz"))[1]["body"] == b'{"status":"alive"}'


@pytest.mark.parametrize(
    ("path", "query", "method"),
    [
        ("/v1/runs/4/demand", b"", "GET"),
        ("/v1/runs/4/demand", b"wait=1&seen=2-1-1", "GET"),
        (DEMAND, b"", "POST"),
        (DEMAND, b"wait=1&seen=2-1-1", "POST"),
        (DEMAND, b"unknown=1", "GET"),
        (DEMAND, b"wait=31&seen=2-1-1", "GET"),
        ("/readyz", b"", "GET"),
    ],
)
async def test_all_else_is_the_routes(asked: Asked, path: str, query: bytes, method: str) -> None:
    assert await asked.get(path, query, method) == PASSED


async def test_route_refuses_what_the_database_cannot_answer(asked: Asked) -> None:
    asked.now = StorageError("database: gone")
    assert await asked.get(DEMAND) == PASSED


def hold(asked: Asked, seconds: int = 30, seen: str = "2-1-1") -> asyncio.Task[list[dict[str, Any]]]:
    return asyncio.create_task(asked.get(DEMAND, f"wait={seconds}&seen={seen}".encode()))


async def test_answer_names_its_tag(asked: Asked) -> None:
    start, _ = await asked.get(DEMAND)
    assert (b"etag", b'W/"2-1-1"') in start["headers"]


@pytest.mark.parametrize("changes", [{"wanted": False}, {"waiting_groups": 0}, {"step": 3}])
async def test_held_answer_comes_when_it_is_of_use(asked: Asked, changes: dict[str, Any]) -> None:
    held = [hold(asked) for _ in range(100)]
    asked.change(newcomers=4, able_workers=9, waiting_groups=6)
    await asyncio.sleep(2 * LOOK_SECONDS)
    assert not any(one.done() for one in held), "no worker does anything else for that"
    asked.change(**changes)
    for start, body in await asyncio.wait_for(asyncio.gather(*held), BOUND):
        assert start["status"] == 200
        assert Demand.model_validate_json(body["body"]) == asked.now


async def test_held_answer_comes_when_its_time_is_over(asked: Asked) -> None:
    assert len(await asyncio.wait_for(hold(asked, 1), BOUND)) == 2


async def test_unseen_answer_comes_at_once(asked: Asked) -> None:
    assert len(await asyncio.wait_for(hold(asked, 30, "1-1-1"), 1)) == 2


async def test_nothing_is_held_for_a_lost_connection_or_a_stopped_service(asked: Asked) -> None:
    lost = hold(asked)
    await asyncio.sleep(0.01)
    asked.connection.on_lost()
    await asyncio.wait_for(lost, 1)
    assert asked.connection.on_lost is None
    held = hold(asked)
    await asyncio.sleep(0.01)
    asked.board.stop()
    await asyncio.wait_for(asyncio.gather(held, hold(asked)), 1)


async def test_demand_is_not_looked_at_while_nobody_waits(asked: Asked) -> None:
    await hold(asked, 0)
    await asyncio.sleep(2 * LOOK_SECONDS)
    asked.now = AssertionError("looked at")
    await asyncio.sleep(2 * LOOK_SECONDS)
