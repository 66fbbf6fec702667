"""What is answered before the framework, and what is left to it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from muster.errors import StorageError
from muster.protocol.messages import Demand
from orchestrator.demand_board import LOOK_SECONDS, SLICE, DemandAnswer, DemandBoard
from orchestrator.hot_reads import HotReads
from testbed.waiting import BOUND

DEMAND = "/v1/runs/3/demand"
PASSED = [{"type": "passed on"}]


class Asked:
    """Queries whose demand a test sets, and the application around them."""

    def __init__(self) -> None:
        self.now: Demand | Exception = Demand(run=3, step=2, wanted=True, waiting_groups=5)
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

        scope = {"type": "http", "path": path, "query_string": query, "method": method}
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
        assert (b"x-content-type-options", b"nosniff") in start["headers"]
        assert Demand.model_validate_json(body["body"]) == asked.now


@pytest.mark.parametrize(
    ("path", "query", "method"),
    [
        ("/v1/runs/4/demand", b"", "GET"),
        ("/v1/runs/4/demand", b"wait=1&seen=2-1-1", "GET"),
        (DEMAND, b"", "POST"),
        (DEMAND, b"wait=1&seen=2-1-1", "POST"),
        (DEMAND, b"unknown=1", "GET"),
        (DEMAND, b"wait=31&seen=2-1-1", "GET"),
        ("/healthz", b"", "GET"),
        ("/readyz", b"", "GET"),
    ],
)
async def test_all_else_is_the_routes(asked: Asked, path: str, query: bytes, method: str) -> None:
    assert await asked.get(path, query, method) == PASSED


async def test_route_refuses_what_the_database_cannot_answer(asked: Asked) -> None:
    asked.now = StorageError("database: gone")
    assert await asked.get(DEMAND) == PASSED


async def test_answer_names_its_tag(asked: Asked) -> None:
    start, _ = await asked.get(DEMAND)
    assert (b"etag", b'W/"2-1-1"') in start["headers"]


async def test_a_question_that_is_not_held_is_answered_at_once(asked: Asked) -> None:
    assert len(await asyncio.wait_for(asked.get(DEMAND, b"wait=30&seen=2-1-1"), 1)) == 2


# --- The board


class Held:
    """A question that is held, and what was delivered."""

    def __init__(self, asked: Asked, seconds: float = 30, seen: str = "2-1-1") -> None:
        self.answer: asyncio.Future[DemandAnswer | None] = asyncio.get_running_loop().create_future()
        asked.board.hold(seen, seconds, self.deliver)

    def deliver(self, answer: DemandAnswer | None) -> None:
        self.answer.set_result(answer)

    async def demand(self) -> Demand | None:
        answer = await asyncio.wait_for(self.answer, BOUND)
        return None if answer is None else Demand.model_validate_json(answer.body)


@pytest.mark.parametrize("changes", [{"wanted": False}, {"waiting_groups": 0}, {"step": 3}])
async def test_held_answer_comes_when_it_is_of_use(asked: Asked, changes: dict[str, Any]) -> None:
    held = [Held(asked) for _ in range(2 * SLICE)]
    asked.change(newcomers=4, able_workers=9, waiting_groups=6)
    await asyncio.sleep(2 * LOOK_SECONDS)
    assert not any(one.answer.done() for one in held), "no worker does anything else for that"
    asked.change(**changes)
    assert [await one.demand() for one in held] == [asked.now] * len(held)


async def test_held_answer_comes_when_its_time_is_over(asked: Asked) -> None:
    assert await Held(asked, 0.1).demand() == asked.now


async def test_unseen_answer_comes_at_once_while_others_are_held(asked: Asked) -> None:
    other = Held(asked)
    assert await Held(asked, 30, "1-1-1").demand() == asked.now
    assert await Held(asked, 30, "1-1-1").demand() == asked.now
    assert not other.answer.done()


async def test_question_that_no_answer_can_be_made_for_is_left_to_its_route(asked: Asked) -> None:
    asked.now = StorageError("database: gone")
    assert await Held(asked, 0.1).demand() is None


async def test_nothing_is_held_for_a_lost_connection_or_a_stopped_service(asked: Asked) -> None:
    lost, held = Held(asked, 0.1), Held(asked)
    assert asked.board.forget(lost.deliver)
    assert not asked.board.forget(lost.deliver)
    await asyncio.sleep(0.01)
    asked.board.stop()
    assert await held.demand() == asked.now
    assert await Held(asked).demand() == asked.now
    await asyncio.sleep(0.2)
    assert not lost.answer.done()


async def test_demand_is_not_looked_at_while_none_is_held(asked: Asked) -> None:
    await Held(asked, 0).demand()
    await asyncio.sleep(2 * LOOK_SECONDS)
    asked.now = AssertionError("looked at")
    await asyncio.sleep(2 * LOOK_SECONDS)
