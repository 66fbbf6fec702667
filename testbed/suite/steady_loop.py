"""An event loop whose clock stands still while the process is kept from running.

On a busy machine a process is not run for seconds at a time. With a clock on the wall, whatever is due meanwhile is due
before the data that arrived meanwhile is looked at: a test that tries a time-out of half a second then sees one that
no peer caused. Here time passes only while the loop waits in `select`, hardly more than it meant to wait, and what
has arrived is dealt with before what is due. So both ends of a connection that share a loop share its time, and a
time-out ends a wait for another process when that process has had as much time as the wait says.
"""

from __future__ import annotations

import asyncio
import selectors
import time
import warnings
from typing import Final

ALMOST: Final = 0.9
"""How much of the way to the next timer passes, at most, while something arrives."""
LATE: Final = 0.001
"""Seconds by which a timer may be late: after a sleep of one second, at least one second has passed."""


class SteadySelector(selectors.DefaultSelector):
    """A selector that adds up how long it has waited, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        began = time.monotonic()
        events = super().select(timeout)
        passed = time.monotonic() - began
        if timeout is not None:  # which is never negative
            passed = min(passed, timeout * ALMOST if events else timeout + LATE)
        self.waited += passed
        return events


class SteadyLoop(asyncio.SelectorEventLoop):
    """The event loop of all tests, also of those that call `asyncio.run`."""

    def __init__(self) -> None:
        self._steady = SteadySelector()
        self._began = time.monotonic()
        super().__init__(self._steady)

    def time(self) -> float:
        return self._began + self._steady.waited


def install() -> None:
    """Let every event loop of this process be a SteadyLoop from now on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of policies, in newer Pythons

        class SteadyPolicy(asyncio.DefaultEventLoopPolicy):
            _loop_factory = SteadyLoop

        asyncio.set_event_loop_policy(SteadyPolicy())
