"""Which base URLs an address from a page may have."""

from __future__ import annotations

import pytest

from muster.clients.join import base_urls
from muster.errors import UsageError


@pytest.mark.parametrize(
    ("url", "bases"),
    [
        ("http://127.0.0.1:8600", ["http://127.0.0.1:8600"]),
        (" https://run.example/ ", ["https://run.example"]),
        ("https://run.example/join?x=1#y", ["https://run.example", "https://run.example/join"]),
        ("http://[::1]:8600/a//b/", ["http://[::1]:8600", "http://[::1]:8600/a", "http://[::1]:8600/a/b"]),
        ("http://x/1/2/3/4/5/6", [f"http://x{path}" for path in ("", "/1", "/1/2", "/1/2/3", "/1/2/3/4")]),
    ],
)
def test_the_shortest_base_comes_first(url: str, bases: list[str]) -> None:
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
def test_what_is_no_url_of_an_orchestrator(url: str) -> None:
    with pytest.raises(UsageError, match="is no URL") as caught:
        base_urls(url)
    assert caught.value.hint.startswith("copy it from the join box")


def test_a_password_in_a_url_is_not_taken_and_not_shown() -> None:
    with pytest.raises(UsageError, match="has no user name or password") as caught:
        base_urls("http://ada:secret@run.example")
    assert "secret" not in str(caught.value) + caught.value.hint
