"""Wait for a condition: what a test asserts is that something happens, never how soon.

The bound is one that only a broken program reaches, however busy the machine. The pause grows with the time that has
passed, so that what is quick is seen at once and what is slow is asked for ten times a second.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

BOUND: Final = 400.0
"""Seconds after which a test gives up. pytest's own limit (pyproject.toml) leaves room for more than one such wait."""
SHORTEST_PAUSE: Final = 0.005
LONGEST_PAUSE: Final = 0.1


async def until(
    condition: Callable[[], T | Awaitable[T]], what: str | Callable[[], object] = "", seconds: float | None = None
) -> T:
    """Return the first true value of a condition, which may be a coroutine function. `what` is said after BOUND."""
    for pause in _pauses(what, seconds):
        found = condition()
        value = await found if inspect.isawaitable(found) else found
        if value:
            return value
        await asyncio.sleep(pause)
    raise AssertionError("unreachable")


def wait_until(condition: Callable[[], T], what: str | Callable[[], object] = "", seconds: float | None = None) -> T:
    """Return the first true value of a condition, in a thread without an event loop. `what` is said after BOUND."""
    for pause in _pauses(what, seconds):
        if found := condition():
            return found
        time.sleep(pause)
    raise AssertionError("unreachable")


def _pauses(what: str | Callable[[], object], seconds: float | None = None) -> Iterator[float]:
    """Yield how long to wait before the next look. Raises AssertionError once it has been so many, BOUND by default."""
    began, bound = time.monotonic(), seconds or BOUND
    while (passed := time.monotonic() - began) < bound:
        yield min(max(passed / 10, SHORTEST_PAUSE), LONGEST_PAUSE)
    raise AssertionError(f"not within {bound:g} s: {what() if callable(what) else what or 'the condition'}")
