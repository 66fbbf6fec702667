"""Readers of pages and of their documents are sent to the explorer that the settings name."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from explorer.routes import documents, pages
from orchestrator.app import create_app

SHOWN = [
    re.sub("{[^}]*}", "7", route.path)
    for route in (*documents.routes, *pages.routes)
    if isinstance(route, APIRoute)
]  # fmt: skip


def app_of(explorer_url: str) -> FastAPI:
    settings = SimpleNamespace(orchestrator=SimpleNamespace(explorer_url=explorer_url, url="https://run.example"))
    service: Any = SimpleNamespace(settings=settings)
    return create_app(service)


async def answer(app: FastAPI, path: str) -> tuple[int, dict[bytes, bytes], bytes]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"before=3", "headers": [], "root_path": ""}
    await app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1].get("body", b"")


async def test_every_address_of_an_explorer_is_sent_on() -> None:
    app = app_of("https://explorer.example/")
    assert len(SHOWN) > 35
    for path in SHOWN:
        status, headers, _ = await answer(app, path)
        found = status, headers.get(b"location", b"").decode()
        assert found == (308, f"https://explorer.example{path}?before=3"), path


async def test_without_an_explorer_a_sentence_says_who_shows_pages() -> None:
    status, headers, body = await answer(app_of(""), "/leaderboard")
    assert (status, headers[b"content-type"]) == (410, b"application/problem+json")
    assert b"pages and their documents are an explorer's" in body
    assert b"muster explorer https://run.example" in body
