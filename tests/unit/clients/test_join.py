"""Which base URLs an address from a page may have."""

from __future__ import annotations

from typing import Any

import pytest

from muster.clients import join
from muster.clients.join import base_urls
from muster.errors import RefusedError, UsageError


@pytest.mark.parametrize(
    ("url", "bases"),
    [
        ("http://127.0.0.1:8600", ["http://127.0.0.1:8600"]),
        (" https://run.example/ ", ["https://run.example"]),
        ("https://run.example/join?x=1#y", ["https://run.example/join", "https://run.example"]),
        ("http://[::1]:8600/a//b/", ["http://[::1]:8600/a/b", "http://[::1]:8600/a", "http://[::1]:8600"]),
        ("http://x/1/2/3/4/5/6", [f"http://x{path}" for path in ("/1/2/3/4", "/1/2/3", "/1/2", "/1", "")]),
    ],
)
def test_the_longest_base_comes_first(url: str, bases: list[str]) -> None:
    assert base_urls(url) == bases


@pytest.mark.parametrize(
    "url",
    [
        "",
        "run.example",
        "run.example:8600",
        "ftp://run.example",
        "http://",
        "http://x:port",
        "http://[::1",
        "http://x/\x1b[2J",
        'http://x/"',
        "http://x/a b",
        "file:///etc",
    ],
)
def test_invalid_orchestrator_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is no URL") as caught:
        base_urls(url)
    assert caught.value.hint.startswith("copy it from the join box")


def test_a_password_in_a_url_is_not_taken_and_not_shown() -> None:
    with pytest.raises(UsageError, match="has no user name or password") as caught:
        base_urls("http://ada:secret@run.example")
    assert "secret" not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://run.example/second", "/second"),
        ("http://run.example/second/leaderboard?list=workers", "/second"),
        ("http://run.example/leaderboard", ""),
    ],
)
async def test_typed_run_is_found_when_two_share_a_proxy(url: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is served at the root, the other below /second."""

    class Answers:
        def __init__(self, base: str, **_: Any) -> None:
            self.base = base

        async def __aenter__(self) -> Answers:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def join_document(self) -> str:
            if self.base not in ("http://run.example", "http://run.example/second"):
                raise RefusedError("Not Found", status=404, title="Not Found")
            return self.base

    async def taken(document: str, *_: Any, **__: Any) -> str:
        return document

    monkeypatch.setattr(join, "OrchestratorClient", Answers)
    monkeypatch.setattr(join, "check_run", taken)
    assert await join.fetch_run(url) == f"http://run.example{found}"
