"""The one poll loop: poll, wait for an event or a bounded time, and try again after a transient error.

The log says why a loop waits: at once for a new reason, and at most once a minute while it lasts; and when it goes on.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

from muster.errors import TRANSIENT
from muster.runtime.retries import Repeats


class Next(Enum):
    """What a loop does after a poll that gives no reason."""

    AGAIN = "poll again at once"
    IDLE = "wait without a log line"


@dataclass(frozen=True)
class Waiting:
    """The loop logs this reason, then waits."""

    reason: str


JITTER: Final = 0.1
"""Share by which a wait is shorter or longer, so that processes that began together do not ask together."""

AGAIN, IDLE = Next.AGAIN, Next.IDLE
PollOutcome = Next | Waiting
Poll = Callable[[], Awaitable[PollOutcome]]
T = TypeVar("T")


@dataclass(eq=False)
class PollLoop:
    """One loop of a process. Every wait ends with its event, or after `seconds`, more or less."""

    log: Any
    what: str
    """Names the loop in the log."""
    seconds: float
    transient: tuple[type[Exception], ...] = field(default=TRANSIENT, kw_only=True)
    """Errors that are logged and waited on, unless they are `fatal`."""
    fatal: tuple[type[Exception], ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        self._repeats = Repeats()
        self._waits = False
        """Whether its last line says why it waits."""

    @asynccontextmanager
    async def running(self, poll: Poll) -> AsyncIterator[None]:
        """Run beside the block. What is not transient ends the loop, and not the block."""
        task = asyncio.create_task(self.run(poll), name=self.what)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def run(self, poll: Poll, event: asyncio.Event | None = None) -> None:
        """Call `poll` until cancelled. Raises what is not transient."""
        event = event or asyncio.Event()
        while True:
            outcome = await self._attempt(poll, event)
            if isinstance(outcome, Waiting):
                self._say(outcome.reason, self.log.info)
            else:
                self._go_on()
            if outcome is not AGAIN:
                await wait_for_event(event, self.seconds * random.uniform(1 - JITTER, 1 + JITTER))

    async def until_done(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat `attempt` until it returns, and return its result. Raises what is not transient."""
        found = await self._attempt(attempt, asyncio.Event())
        self._go_on()
        return found

    async def _attempt(self, attempt: Callable[[], Awaitable[T]], event: asyncio.Event) -> T:
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
        elif not self._waits:
            self.log.debug("waiting", what=self.what, reason=reason)
        self._waits = True

    def _go_on(self) -> None:
        if self._waits:
            self.log.debug("goes on", what=self.what)
        self._waits = False


async def wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, or until `seconds` are over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
