"""Say when the seals of an hour close, and what is hidden until then: the one home of these rules. Pure.

Where a run has traps, validators are paid for what they find by themselves. So what one of them found is secret
until the seals of the commitment's hour have closed. `closes_at` and the two functions after it are
twins of `contracts/libraries/Windows.sol`.
"""

from __future__ import annotations

from typing import Final

from muster.constants import HOUR_SECONDS
from muster.protocol.terms import Terms
from muster.protocol.windows import end_of

CLOSING_HOURS: Final = 2
"""Hours after the end of an hour in which its seals count as in time. Mirrors Windows.CLOSING_HOURS."""

SHOWING_HOURS: Final = 24
"""Hours after the end of an hour by which the masters of its traps are shown. Mirrors Windows.SHOWING_HOURS."""

CLAIMING_HOURS: Final = 48
"""The same, until which prizes of its traps are claimed. Mirrors Windows.CLAIMING_HOURS."""


def closes_at(hour: int) -> int:
    """Return the second from which a seal of an hour is late."""
    return end_of(hour) + CLOSING_HOURS * HOUR_SECONDS


def masters_due_at(hour: int) -> int:
    """Return the second from which the master of an hour's traps counts as withheld."""
    return end_of(hour) + SHOWING_HOURS * HOUR_SECONDS


def claims_end_at(hour: int) -> int:
    """Return the second until which who found a trap of an hour can claim its prize."""
    return end_of(hour) + CLAIMING_HOURS * HOUR_SECONDS


def oldest_open(now: int) -> int:
    """Return the first hour whose seals have not closed at second `now`."""
    return now // HOUR_SECONDS - CLOSING_HOURS


def verdicts_hidden(terms: Terms, committed_at: int, now: int) -> bool:
    """Return whether nothing public may depend on verdicts about a commitment yet. Seconds of the chain's clock."""
    return terms.has_traps and now < closes_at(committed_at // HOUR_SECONDS)
