"""Amounts and times as people read them; pure.

A document carries `Tokens`, `Ether`, `Moment` and `Duration`: integers, which JSON prints exactly, and which a table, a
sentence or an f-string shows with its unit.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, tzinfo
from typing import Final

from muster.constants import HOUR_SECONDS, TOKEN

SYMBOL: Final = "MUST"
"""Of `contracts/MusterToken.sol`."""

DIGITS: Final = 6
"""Significant digits of an amount of ether that are shown, and decimals of one in tokens; below one token, digits."""

DECIMALS: Final = 18
"""Of an amount of either."""

_AMOUNT: Final = re.compile(r"([0-9]{0,78}|[0-9]{1,3}(?:[,_][0-9]{3}){1,25})(?:\.([0-9]{0,18}))?")
"""Separators stand between thousands only; more digits than these fit in no 256 bits."""
_DAY: Final = 24 * HOUR_SECONDS
_UNITS: Final = (("day", _DAY), ("hour", HOUR_SECONDS), ("minute", 60), ("second", 1))


class Tokens(int):
    """Token wei."""

    def __str__(self) -> str:
        return f"{_rounded(self, max(DIGITS, len(str(abs(self))) - DECIMALS + DIGITS))} {SYMBOL}"

    @property
    def exact(self) -> str:
        """Return all of its digits, where rounding would hide what is wrong."""
        return f"{_rounded(self, len(str(self)) + DECIMALS)} {SYMBOL}"


class Ether(int):
    """Wei of the chain's own coin, which pays for gas."""

    def __str__(self) -> str:
        return f"{_rounded(self, DIGITS)} ETH"


class Moment(int):
    """Seconds since the epoch."""

    def __str__(self) -> str:
        return moment_text(self, time.time())


class Duration(int):
    """Seconds."""

    def __str__(self) -> str:
        return duration_text(self)


def decimal_amount(wei: int, separator: str = "") -> str:
    """Return an amount of 18 decimals exactly, without trailing zeros; `separator` stands between thousands."""
    whole, part = divmod(abs(wei), TOKEN)
    digits = f"{whole:,}".replace(",", separator)
    return ("-" if wei < 0 else "") + f"{digits}.{part:018d}".rstrip("0").rstrip(".")


def parse_amount(text: str) -> int:
    """Return the wei of a decimal amount such as 12.5 or 1,500.

    Raises ValueError, also for 1,5, which may mean one and a half.
    """
    found = _AMOUNT.fullmatch(text.strip())
    if found is None or not (found[1] or found[2]):
        raise ValueError("an amount in tokens is needed, for example 12.5 or 1,500")
    return int(re.sub("[,_]", "", found[1]) or 0) * TOKEN + int((found[2] or "0").ljust(18, "0"))


def moment_text(seconds: int, now: float, zone: tzinfo | None = None) -> str:
    """Return a moment in a time zone (None: this machine's), and how far it is from `now`."""
    try:
        there = datetime.fromtimestamp(int(seconds), UTC).astimezone(zone)
    except (OverflowError, ValueError, OSError):
        return f"second {int(seconds)}"
    distance = round(int(seconds) - now)
    away = f"in {duration_text(distance)}" if distance > 0 else f"{duration_text(-distance)} ago" if distance else "now"
    return f"{there:%Y-%m-%d %H:%M:%S %Z} ({away})"


def duration_text(seconds: int) -> str:
    """Return a length of time in its two largest units."""
    if seconds < 0:
        return f"-{duration_text(-int(seconds))}"
    left, parts = int(seconds), []
    for name, size in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count:,} {name}{'' if count == 1 else 's'}")
    return " ".join(parts[:2]) or "0 seconds"


def _rounded(wei: int, digits: int) -> str:
    """Return an amount rounded to so many significant digits, never in scientific notation."""
    drop = max(0, len(str(abs(wei))) - digits)
    return decimal_amount(round(int(wei), -drop), separator=",")
