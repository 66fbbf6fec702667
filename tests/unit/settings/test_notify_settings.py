"""The webhook's URL: which may be set, and that nothing shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.errors import ConfigError
from muster.settings.schema import check_webhook
from muster.settings.sources import load_settings, mask_setting


@pytest.mark.parametrize(
    "url",
    ["https://hooks.slack.com/services/T0/B0/x", "http://127.0.0.1:9/x", "http://[::1]/x", "http://localhost/x"],
)
def test_https_and_this_machine_are_taken(url: str) -> None:
    assert check_webhook(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "http://chat.example.org/secret",
        "http://127.0.0.1.example.org/secret",
        "http://localhost.example.org/secret",
        "http://10.0.0.1/secret",
        "ftp://chat.example.org/secret",
        "file:///etc/secret",
        "https:///secret",
        "secret",
        "https://chat.example.org/secret\r\nX: y",
        "https://chat.example.org/sec ret",
        "https://chat.example.org:99999/secret",
        "https://[::1/secret",
        "https://chät.example.org/secret",
    ],
)
def test_others_are_refused_without_being_shown(url: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^it (is no URL|must begin with https://)"):
        check_webhook(url)
    with pytest.raises(ConfigError) as caught:
        load_settings(None, {"notify.webhook": url})
    assert "setting notify.webhook = " in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_webhook_is_shown_by_its_host() -> None:
    assert mask_setting("notify.webhook", "https://a:b@chat.example.org:8/s?t=u") == "https://chat.example.org/…"
    assert mask_setting("notify.webhook", "secret") == "…"
    assert mask_setting("notify.webhook", "") == ""
    assert mask_setting("chain.rpc_url", "https://rpc.example.org/v1") == "https://rpc.example.org/v1"


def test_unknown_events_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"setting notify\.events = "):
        load_settings(None, {"notify.events": ["rejected", "everything"]})
