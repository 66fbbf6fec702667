"""Tell a run's orchestrator about a node's machine, its speed and its gas.

The run's page shows it; nothing is decided by it, nothing waits for it, and no failure of it stops any work. A worker
and a validator with `report_machine = false` say nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from typing import Final

from muster.chain.gas import GasBalance
from muster.clients.orchestrator import OrchestratorClient
from muster.errors import MusterError
from muster.protocol.announcements import MachineReport, clean_device
from muster.runtime import telemetry
from muster.runtime.loop import IDLE, Next, PollLoop

REPORT_SECONDS: Final = 120.0
"""Between two reports."""
FIRST_SECONDS: Final = 15.0
"""Between the first two; from then on the pause doubles, up to REPORT_SECONDS."""

Clock = Callable[[], float]
_log = telemetry.logger("machine")


class TokenRate:
    """How fast a worker generates: the speed of its last generation, times the share of time in which it generates.

    Counting tokens as they are finished would say 0 for most reports of a worker whose generations take many minutes.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._speed = 0.0
        """Tokens a second of the last generation."""
        self._busy = 0.0
        """Seconds of generations that ended since the rate was taken."""
        self._under_way: float | None = None
        """Since when one is under way, or the rate was taken meanwhile."""
        self._taken = clock()

    @contextmanager
    def generating(self) -> Iterator[Callable[[int], None]]:
        """Time one generation; it calls what is yielded with the number of its tokens."""
        begun = self._under_way = self._clock()
        tokens = 0

        def count(made: int) -> None:
            nonlocal tokens
            tokens += made

        try:
            yield count
        finally:
            now = self._clock()
            self._busy += now - self._under_way
            self._under_way = None
            if tokens and now > begun:
                self._speed = tokens / (now - begun)

    def take(self) -> float:
        """Return tokens a second over the time since the last call."""
        now = self._clock()
        passed, self._taken = now - self._taken, now
        busy, self._busy = self._busy, 0.0
        if self._under_way is not None:
            busy += now - self._under_way
            self._under_way = now
        return self._speed * min(busy / passed, 1.0) if passed > 0 else 0.0


@dataclass(eq=False)
class MachineReporter:
    """Reports one node's machine."""

    client: OrchestratorClient
    run_id: int
    rate: TokenRate
    device: Callable[[], str]
    """Names what the node computes on; may block."""
    devices: int = 1
    """How many of them it uses."""
    _: KW_ONLY
    gas: Callable[[], Awaitable[GasBalance]] | None = None
    """Reads how long the node's ether lasts; without it, or while it fails, nothing is said of that."""
    clock: Clock = time.monotonic

    def __post_init__(self) -> None:
        self._pause = FIRST_SECONDS
        self._due = self.clock()

    async def run(self) -> None:
        """Report until cancelled. What goes wrong is logged, and the next report is sent all the same."""
        await PollLoop(_log, "machine report", FIRST_SECONDS, transient=(MusterError,)).run(self.poll)

    async def poll(self) -> Next:
        """Send a report if one is due. Raises as `OrchestratorClient.say`."""
        now = self.clock()
        if now < self._due:
            return IDLE
        self._due, self._pause = now + self._pause, min(2 * self._pause, REPORT_SECONDS)
        device = clean_device(await asyncio.to_thread(self.device))
        report = MachineReport(
            run=self.run_id,
            device=device,
            devices=self.devices,
            tokens_per_second=min(self.rate.take(), 1e9),
            gas_hours=await self._gas_hours(),
        )
        await self.client.say("machine", report)
        return IDLE

    async def _gas_hours(self) -> float | None:
        with suppress(MusterError):
            return None if self.gas is None else (await self.gas()).hours
        return None
