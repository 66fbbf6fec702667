"""Which sources of weights are asked at all: their list comes from an orchestrator, which is a stranger."""

from __future__ import annotations

import pytest

from muster.errors import ConfigError
from muster.shardcast.sources import check_urls


def test_base_urls_are_used_once_and_without_their_last_slash() -> None:
    assert check_urls(["http://a:8700/", "https://b/x", "http://a:8700"]) == ["http://a:8700", "https://b/x"]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nowhere",
        "file:///etc/passwd",
        "http://",
        "http://a?b",
        "http://a#b",
        "http://[a",
        "http://a\0b",
        "http://⒈a",
    ],
)
def test_what_is_no_base_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not the base URL of a relay"):
        check_urls([url])
