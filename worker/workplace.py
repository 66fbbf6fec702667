"""What making work and delivering it share: chain, orchestrator, journal, and how to take turns at it.

Both halves look at the chain and the journal, do one thing and start over, so fresh work and work found after a
restart go the same way. What cannot be done yet is waited for, and the log says why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from muster import telemetry
from muster.chain.client import Chain
from muster.chain.contracts import registry, runs
from muster.errors import TRANSIENT, RevertError, UnfundedError
from muster.http import OrchestratorClient
from muster.process import wait_for_bell
from muster.settings import Settings
from muster.terms import Terms
from worker.decisions import Facts
from worker.journal import WorkJournal

SAY_AGAIN_SECONDS: Final = 60.0
"""A wait that goes on is mentioned again after this long."""

FATAL: Final = (RevertError, UnfundedError)
"""What only the operator can mend."""

log = telemetry.logger("worker")


@dataclass
class Workplace:
    """One node's place of work. `saved` rings when there is a new file, `delivered` when there is room for another."""

    settings: Settings
    chain: Chain
    client: OrchestratorClient
    terms: Terms
    journal: WorkJournal
    saved: asyncio.Event = field(default_factory=asyncio.Event)
    delivered: asyncio.Event = field(default_factory=asyncio.Event)
    _min_validators: int | None = None

    @property
    def run(self) -> int:
        return self.settings.run

    @property
    def weights(self) -> Path:
        """Folder of the checkpoints it holds."""
        return self.settings.worker.state_dir / "weights"

    @property
    def node(self) -> str:
        return self.chain.signer.address

    async def facts(self) -> Facts:
        """What the chain says now."""
        if self._min_validators is None:
            self._min_validators = await self.chain.ask(runs.min_validators())
        node, work, state, head = await asyncio.gather(
            self.chain.ask(registry.node(self.node)),
            self.chain.ask(runs.work(self.node)),
            self.chain.ask(runs.run_state(self.run)),
            self.chain.head(),
        )
        pay = self.terms.pay_of(node.work_class) if node.work_class < len(self.terms.classes) else 0
        return Facts(node, work, state, self.run, pay, self._min_validators, head.timestamp)

    async def anchor(self, step: int, facts: Facts) -> bytes | None:
        """The anchor of a step; None when the chain does not have it."""
        return (await self.chain.checkpoint(self.run, step)).anchor if step < facts.state.steps else None


class Patience:
    """Waits, and says why when that is news or was last said a while ago."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._said, self._said_at = "", 0.0

    async def wait(self, reason: str, bell: asyncio.Event | None = None) -> None:
        """Wait `seconds`, or until the bell rings."""
        if reason != self._said or time.monotonic() - self._said_at > SAY_AGAIN_SECONDS:
            log.info("waiting", reason=reason)
            self._said, self._said_at = reason, time.monotonic()
        await wait_for_bell(bell or asyncio.Event(), self._seconds)


async def take_turns(turn: Callable[[], Awaitable[str]], bell: asyncio.Event, seconds: float) -> None:
    """Call `turn` for ever. When it says why there is nothing to do, wait until the bell rings or `seconds` are over.

    Raises what only the operator can mend.
    """
    patience = Patience(seconds)
    while True:
        bell.clear()
        try:
            reason = await turn()
        except TRANSIENT as error:
            if isinstance(error, FATAL):
                raise
            reason = str(error)
        if reason:
            await patience.wait(reason, bell)
