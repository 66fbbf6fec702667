"""What reaches no route, of the orchestrator or of an explorer, and what is made once for all who ask."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.datastructures import QueryParams
from starlette.routing import Match

from explorer import app as explorer_app
from muster.runtime.connection_table import ConnectionTable
from muster.runtime.http_limits import HEADERS, QUERY_KEYS, bounded_config
from muster.runtime.http_server import LIMITS
from muster.runtime.kept import KeptAnswers
from orchestrator import app as app_module
from orchestrator.app import create_app
from testbed.waiting import BOUND

EACH_APP = pytest.mark.parametrize("make", [create_app, explorer_app.create_app], ids=["orchestrator", "explorer"])


@asynccontextmanager
async def noting(app: FastAPI) -> AsyncIterator[tuple[int, list[set[str]]]]:
    """Serve an application that only notes which routes each request reaches; yields its port and the notes."""
    reached: list[set[str]] = []

    async def note(scope: Any, receive: Any, send: Any) -> None:
        reached.append({route.path for route in app.routes if route.matches(scope)[0] is Match.FULL})  # type: ignore[attr-defined]
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(bounded_config(note, ConnectionTable(1000), LIMITS))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        yield listener.getsockname()[1], reached
        server.should_exit = server.force_exit = True
        await task


async def status_of(port: int, method: str, target: str, headers: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = "Connection: close\r\n" + "".join(f"A{number}: x\r\n" for number in range(headers - 1))
    writer.write(f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode())
    async with asyncio.timeout(BOUND):
        status = int((await reader.readline()).split()[1])
    writer.transport.abort()
    return status


@EACH_APP
async def test_a_request_with_too_many_keys_or_headers_reaches_no_route(make: Callable[[Any], FastAPI]) -> None:
    """At every path; one with as many as may be reaches each."""
    app = make(SimpleNamespace())
    routes = [(route.path, method) for route in app.routes for method in route.methods]  # type: ignore[attr-defined]
    assert len(routes) > 40
    async with noting(app) as (port, reached):
        for route, method in routes:
            path = re.sub("{[^}]*}", "7", route)
            for keys in (["k{}="] * (QUERY_KEYS + 1), ["k="] * (QUERY_KEYS + 1), [""] * (QUERY_KEYS + 1)):
                query = "&".join(keys).format(*range(len(keys)))
                assert await status_of(port, method, f"{path}?{query}", 1) == 431, (method, route)
            assert await status_of(port, method, path, HEADERS + 1) == 431, (method, route)
            assert reached == []
            query = "&".join(f"k{number}=" for number in range(QUERY_KEYS))
            assert await status_of(port, method, f"{path}?{query}", HEADERS) == 204, (method, route)
            assert route in reached.pop()


@pytest.mark.parametrize("separator", [";", "%26", "&amp;", "&;", "%0a&"])
def test_only_a_plain_ampersand_divides_keys(separator: str) -> None:
    """So those that are counted are those that the framework walks."""
    query = separator.join(f"k{number}=" for number in range(1000))
    assert len(QueryParams(query).multi_items()) <= 1 + query.count("&")


@EACH_APP
def test_the_framework_parses_no_body(make: Callable[[Any], FastAPI]) -> None:
    """Forms and JSON would come before the signature: routes read the body themselves."""
    app = make(SimpleNamespace())
    assert [route.path for route in app.routes if isinstance(route, APIRoute) and route.body_field is not None] == []


async def body_of(app: FastAPI, path: str) -> bytes:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [], "root_path": ""}
    await app(scope, receive, send)
    assert sent[0]["status"] == 200
    return b"".join(message.get("body", b"") for message in sent[1:])


async def test_metrics_are_made_once_a_second_and_the_document_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, made = 0.0, []

    async def scrape(_: Any) -> bytes:
        made.append("metrics")
        await asyncio.sleep(0)
        return b"%d" % len(made)

    def document(_: Any) -> bytes:
        made.append("document")
        return b"{}"

    monkeypatch.setattr(app_module, "scrape", scrape)
    monkeypatch.setattr(app_module, "openapi_document", document)
    app = create_app(cast(Any, SimpleNamespace(metrics=KeptAnswers(1.0, lambda: clock))))
    together = await asyncio.gather(*(body_of(app, "/metrics") for _ in range(64)))
    assert set(together) == {b"1"}
    clock = 0.9
    assert await body_of(app, "/metrics") == b"1"
    clock = 1.1
    assert await body_of(app, "/metrics") == b"2"
    assert [await body_of(app, "/openapi.json") for _ in range(64)] == [b"{}"] * 64
    assert made == ["metrics", "metrics", "document"]
