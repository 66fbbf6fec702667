"""What is answered before the framework, and what is left to it."""

from __future__ import annotations

from typing import Any

import pytest

from muster.errors import StorageError
from muster.protocol.messages import Demand
from orchestrator.demand_board import DemandBoard
from orchestrator.hot_reads import HotReads

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

        scope = {"type": "http", "path": path, "query_string": query, "method": method, "state": {}}
        await self._hot(scope, None, send)  # type: ignore[arg-type]
        return sent


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
    [("/v1/runs/4/demand", b"", "GET"), (DEMAND, b"", "POST"), (DEMAND, b"unknown=1", "GET"), ("/readyz", b"", "GET")],
)
async def test_all_else_is_the_routes(asked: Asked, path: str, query: bytes, method: str) -> None:
    assert await asked.get(path, query, method) == PASSED


async def test_route_refuses_what_the_database_cannot_answer(asked: Asked) -> None:
    asked.now = StorageError("database: gone")
    assert await asked.get(DEMAND) == PASSED
