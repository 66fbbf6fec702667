"""Amounts and times for people: exact values, and the same integers in JSON."""

from __future__ import annotations

import json
from datetime import UTC, timedelta, timezone

import pytest

from muster.runtime.units import (
    Duration,
    Ether,
    Moment,
    Tokens,
    decimal_amount,
    duration_text,
    moment_text,
    parse_amount,
)

TOKEN = 10**18
NINE_HOURS_EAST = timezone(timedelta(hours=9), "JST")


@pytest.mark.parametrize(
    ("wei", "text"),
    [
        (0, "0 MUST"),
        (1, "0.000000000000000001 MUST"),
        (209 * TOKEN, "209 MUST"),
        (1_500_500_000_000_000_000_000, "1,500.5 MUST"),
        (-TOKEN // 2, "-0.5 MUST"),
        (10**27 + 1, "1,000,000,000 MUST"),
        (9_100 * TOKEN + 1, "9,100 MUST"),
        (123_456_789_123_456_789 * 10**9, "123,456,789.123457 MUST"),
        (1_234_567_890, "0.00000000123457 MUST"),
    ],
)
def test_tokens_have_six_decimals_and_less_than_one_six_digits(wei: int, text: str) -> None:
    assert str(Tokens(wei)) == f"{Tokens(wei)}" == text
    assert parse_amount(decimal_amount(abs(wei))) == abs(wei)


@pytest.mark.parametrize(
    ("wei", "text"),
    [
        (0, "0 ETH"),
        (1, "0.000000000000000001 ETH"),
        (20_000_000_000_000_000, "0.02 ETH"),
        (123_456_789_012_345_678, "0.123457 ETH"),
        (1_234_567_890 * TOKEN, "1,234,570,000 ETH"),
        (999_999_900_000_000_000, "1 ETH"),
    ],
)
def test_ether_has_six_digits(wei: int, text: str) -> None:
    assert str(Ether(wei)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 seconds"),
        (1, "1 second"),
        (61, "1 minute 1 second"),
        (7_200, "2 hours"),
        (90_061, "1 day 1 hour"),
        (604_800, "7 days"),
        (86_401, "1 day 1 second"),
        (-1, "-1 second"),
    ],
)
def test_a_duration_has_two_units(seconds: int, text: str) -> None:
    assert duration_text(seconds) == str(Duration(seconds)) == text


def test_a_moment_has_a_zone_and_a_distance() -> None:
    assert moment_text(1_796_073_876, 1_796_073_876 - 604_800, UTC) == "2026-11-30 21:24:36 UTC (in 7 days)"
    assert moment_text(1_796_073_876, 1_796_073_936.4, NINE_HOURS_EAST) == "2026-12-01 06:24:36 JST (1 minute ago)"
    assert moment_text(1_796_073_876, 1_796_073_876, UTC) == "2026-11-30 21:24:36 UTC (now)"
    assert moment_text(2**256 - 1, 0, UTC) == f"second {2**256 - 1}"


def test_json_has_the_integers() -> None:
    document = {"a": Tokens(209 * TOKEN), "b": Ether(1), "c": Moment(1_796_073_876), "d": Duration(60)}
    assert json.dumps(document) == f'{{"a": {209 * TOKEN}, "b": 1, "c": 1796073876, "d": 60}}'


@pytest.mark.parametrize(
    ("text", "wei"),
    [
        ("12.5", 25 * TOKEN // 2),
        (" 1,500.5 ", 15_005 * 10**17),
        ("1_000_000", 10**24),
        (".5", TOKEN // 2),
        ("7.", 7 * TOKEN),
        ("0", 0),
    ],
)
def test_an_amount_is_read_exactly(text: str, wei: int) -> None:
    assert parse_amount(text) == wei


@pytest.mark.parametrize(
    "text", ["1,5", "1,50.5", "1,,500", ",500", "1500,000", "1.5,000", "\u0661\u0662", "-1", "1e5", ".", "", "9" * 5000]
)
def test_an_amount_that_could_mean_two_things_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"an amount in tokens is needed, for example 12\.5 or 1,500"):
        parse_amount(text)
