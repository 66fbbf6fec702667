"""Signed requests: bound to every field and to a short time, whatever the headers are."""

from __future__ import annotations

from contextlib import suppress

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.constants import REQUEST_LIFETIME_SECONDS
from muster.errors import MalformedError, MismatchError
from muster.protocol.hashes import content_hash
from muster.protocol.requests import (
    HEADER_BODY,
    HEADER_EXPIRY,
    HEADER_NONCE,
    HEADER_SIGNATURE,
    host_as_sent,
    host_of,
    sign_request,
    verify_request,
)
from testbed.samples.messages import ELSEWHERE, HERE, KEY, NOW
from testbed.suite.cpu_time import cpu_at_most
from testbed.suite.examples import up_to

URL = "http://Example.org:8600/v1/verdicts?a=1&b=%20x"


def verified(headers: dict[str, str], **changes: object) -> str:
    request: dict = {
        "method": "POST",
        "host": "example.org:8600",
        "path": "/v1/verdicts",
        "query": "a=1&b=%20x",
        "headers": headers,
        "now": NOW,
    }
    where = changes.pop("where", HERE)
    return verify_request(where, **(request | changes))[0]  # type: ignore[arg-type]


def signed(now: float = NOW) -> dict[str, str]:
    return sign_request(KEY, HERE, "POST", URL, content_hash(b"body"), now=now)


def test_request_is_bound_to_everything():
    headers = signed()
    assert verified(headers) == KEY.address
    changes: list[dict] = [
        {"method": "PUT"},
        {"host": "example.org"},
        {"path": "/v1/verdict"},
        {"query": "a=1"},
        {"headers": headers | {HEADER_BODY: "0x" + "00" * 32}},
        {"headers": headers | {HEADER_NONCE: "0x" + "00" * 32}},
        {"headers": headers | {HEADER_EXPIRY: str(int(headers[HEADER_EXPIRY]) + 1)}},
        *({"where": where} for where in ELSEWHERE),
    ]
    for change in changes:
        assert verified(**({"headers": headers} | change)) != KEY.address, change


# Bounded in time


def test_requests_live_at_most_their_lifetime():
    headers = signed()
    expiry = int(headers[HEADER_EXPIRY])
    assert expiry == NOW + REQUEST_LIFETIME_SECONDS // 2
    assert verified(headers, now=expiry - 1) == KEY.address
    assert verified(headers, now=expiry - REQUEST_LIFETIME_SECONDS) == KEY.address
    with pytest.raises(MismatchError, match="expired 0 s ago"):
        verified(headers, now=expiry)
    with pytest.raises(MismatchError, match="at most 60"):
        verified(headers, now=expiry - REQUEST_LIFETIME_SECONDS - 1)


def test_nonces_never_repeat():
    assert len({signed()[HEADER_NONCE] for _ in range(50)}) == 50


# Hostile headers


@pytest.mark.parametrize("name", [HEADER_BODY, HEADER_NONCE, HEADER_EXPIRY, HEADER_SIGNATURE])
def test_unsigned_requests_are_named_as_such(name):
    headers = signed()
    with pytest.raises(MalformedError, match=f"unsigned: the request has no {name} header"):
        verified({key: value for key, value in headers.items() if key != name})
    with pytest.raises(MalformedError, match="unsigned"):
        verified(headers | {name: ""})


def test_header_names_in_lower_case_work():
    assert verified({name.lower(): value for name, value in signed().items()}) == KEY.address


@settings(max_examples=up_to(200), deadline=None)
@given(
    name=st.sampled_from([HEADER_BODY, HEADER_NONCE, HEADER_EXPIRY, HEADER_SIGNATURE]),
    value=st.text(min_size=1, max_size=140) | st.binary(max_size=70).map(lambda raw: "0x" + raw.hex()),
)
def test_hostile_headers_never_crash(name, value):
    with suppress(MalformedError, MismatchError):
        assert verified(signed() | {name: value}) != KEY.address


# Hosts, and speed


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://Example.org/x", "example.org"),
        ("http://example.org:80/x", "example.org"),
        ("https://example.org:80", "example.org:80"),
        ("https://example.org:443", "example.org"),
        ("http://127.0.0.1:8600/", "127.0.0.1:8600"),
        ("http://[::1]:8600/", "[::1]:8600"),
        ("http://user:pass@example.org/", "example.org"),
        ("https://example.org./", "example.org"),
        ("https://MÜNCHEN.example:8600", "xn--mnchen-3ya.example:8600"),
        ("https://xn--mnchen-3ya.example.:8600/", "xn--mnchen-3ya.example:8600"),
        ("https://straße.de/", "xn--strae-oqa.de"),
    ],
)
def test_a_host_has_one_form(url, host):
    assert host_of(url) == host
    assert host_as_sent(httpx2.Request("GET", url).headers["host"]) == host


@pytest.mark.parametrize("host", ["[2001:DB8::1]", "[2001:0db8:0:0::1]", "[2001:db8:0:0:0:0:0:1]"])
def test_an_address_of_ipv6_has_one_form(host):
    assert host_of(f"https://{host}:8600/") == "[2001:db8::1]:8600"


def test_what_is_no_host_name_is_refused():
    with pytest.raises(MalformedError, match="has no host name"):
        host_of("https://a\u2260b..example/")


def test_a_thousand_requests_a_minute_cost_little():
    """Signing and verifying 50 takes less than a twentieth of a minute of one core."""
    with cpu_at_most(60 / 20):
        for _ in range(50):
            verified(signed())
