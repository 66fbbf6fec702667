"""The one retry rule of clients: try again with growing pauses, and log it at most once a minute.

A client raises `TryAgainError` for what another attempt may mend. `retry` makes the attempts, within a bounded time;
stamina calls `log_retry` before each but the first.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import stamina
import structlog
from stamina.instrumentation import RetryDetails

TRY_AGAIN_STATUSES: Final = frozenset({425, 429, 502, 503, 504})
"""HTTP statuses of a service that is busy, restarting, or has not read the chain as far as we have."""

MAX_RETRY_AFTER_SECONDS: Final = 10.0
"""Longest wait that a server may ask for before the next attempt."""

SAY_AGAIN_SECONDS: Final = 60.0
"""The same failure of the same service is logged again after this long, with the number of retries since."""

MAX_REMEMBERED: Final = 64
"""Keys that are remembered; the oldest is forgotten first."""

_VARYING: Final = re.compile(r"0[xX][0-9a-fA-F]+|\b[0-9a-f]{16,}\b|[0-9]+")
"""Hashes and numbers."""

T = TypeVar("T")


class TryAgainError(Exception):
    """An attempt failed in a way that another one may not.

    `service` names what was called, for the log. `wait`: the seconds that it asks to wait before the next attempt.
    """

    def __init__(self, message: str, *, service: str, request: str, hint: str = "", wait: float | None = None) -> None:
        super().__init__(message)
        self.service = service
        self.request = request
        self.hint = hint
        self.wait = wait


async def retry(attempt: Callable[[bool], Awaitable[T]], *, attempts: int, seconds: float) -> T:
    """Call `attempt` until it returns, and return its result; the argument says whether an attempt failed before.

    Raises the last TryAgainError after `attempts`, TimeoutError when `seconds` are over, and every other error at once.
    """
    async with asyncio.timeout(seconds):
        async for context in stamina.retry_context(
            on=_pause, attempts=attempts, timeout=None, wait_initial=0.2, wait_max=3, wait_jitter=0.3
        ):
            with context:
                return await attempt(context.num > 1)
    raise AssertionError("a retry loop ends by returning or raising")


def _pause(error: Exception) -> bool | float:
    """Return whether to try again, or the seconds to wait: what the server asks for, and a random part of it more."""
    if not isinstance(error, TryAgainError):
        return False
    return True if error.wait is None else error.wait + random.uniform(0, max(0.5, error.wait / 2))


def retry_after(value: str) -> float | None:
    """Return the seconds of a Retry-After header, bounded; None for none, or for a date."""
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        return None
    return min(float(value), MAX_RETRY_AFTER_SECONDS)


class Repeats:
    """Counts repeated events by key, and says when one is due for another log line.

    The second part of a key is a reason: another number or hash in it makes no other event.
    """

    def __init__(self, seconds: float = SAY_AGAIN_SECONDS) -> None:
        self._seconds = seconds
        self._said: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def count(self, key: tuple[str, str], now: float) -> int | None:
        """Return how often this happened since it was last logged, this time included; None when it is not due yet."""
        key = key[0], _VARYING.sub("#", key[1])
        said_at, quiet = self._said.get(key, (None, 0))
        if said_at is not None and now - said_at < self._seconds:
            self._said[key] = said_at, quiet + 1
            return None
        self._said[key] = now, 0
        self._said.move_to_end(key)
        while len(self._said) > MAX_REMEMBERED:
            self._said.popitem(last=False)
        return quiet + 1


_REPEATS: Final = Repeats()


def log_retry(details: RetryDetails) -> None:
    """Log that a request will be tried again, at most once a minute for each service and reason."""
    error = details.caused_by
    service, request = getattr(error, "service", details.name), getattr(error, "request", "")
    reason = str(error) or type(error).__name__
    times = _REPEATS.count((service, reason), time.monotonic())
    if times is None:
        return
    values = {"service": service, "request": request, "reason": reason, "times": times}
    structlog.get_logger("muster.runtime.retries").warning("trying again", **values)
