"""The one poll loop: poll, wait for an event or a bounded time, and try again after a transient error.

The log says why a loop waits: at once for a new reason, and at most once a minute while it lasts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from muster.errors import TRANSIENT
from muster.runtime.retries import Repeats

Poll = Callable[[], Awaitable[bool | str | None]]
"""One poll. True or "" polls again at once; a reason is logged, then waited on; False or None waits without a log."""

T = TypeVar("T")


@dataclass(eq=False)
class PollLoop:
    """One loop of a process. Every wait ends with its event, or after `seconds`."""

    log: Any
    what: str
    """Names the loop in the log."""
    seconds: float
    transient: tuple[type[Exception], ...] = field(default=TRANSIENT, kw_only=True)
    """Errors that are logged and waited on, unless they are `fatal`."""
    fatal: tuple[type[Exception], ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        self._repeats = Repeats()

    async def run(self, poll: Poll, event: asyncio.Event | None = None) -> None:
        """Call `poll` until cancelled. Raises what is not transient."""
        event = event or asyncio.Event()
        while True:
            outcome = await self.until_done(poll, event)
            if outcome is not True and outcome != "":
                if outcome:
                    self._say(outcome, self.log.info)
                await wait_for_event(event, self.seconds)

    async def until_done(self, attempt: Callable[[], Awaitable[T]], event: asyncio.Event | None = None) -> T:
        """Repeat `attempt` until it returns, and return its result. Raises what is not transient."""
        event = event or asyncio.Event()
        while True:
            event.clear()
            try:
                return await attempt()
            except self.transient as error:
                if isinstance(error, self.fatal):
                    raise
                self._say(str(error), self.log.warning)
            await wait_for_event(event, self.seconds)

    def _say(self, reason: str, log: Callable[..., object]) -> None:
        times = self._repeats.count((self.what, reason), time.monotonic())
        if times is not None:
            log("waiting", what=self.what, reason=reason, **({"times": times} if times > 1 else {}))


async def wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, or until `seconds` are over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
