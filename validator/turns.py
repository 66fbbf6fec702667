"""In a run with traps: whom a validator inspects first, and what it leaves to others.

It inspects first what it is called for (`muster.protocol.calls`): there a look is paid, alone or not. Of the rest
each has its turn after a time that its call hash says, and is inspected then if it still waits for a verdict.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from muster.chain.reads import ChainReader
from muster.clients.orchestrator import OrchestratorClient
from muster.contracts import registry, runs
from muster.protocol.calls import call_hash, is_called, turn_after
from muster.protocol.terms import Terms
from muster.runtime import telemetry
from muster.verification.rules import CommittedWork
from validator.journal import ValidatorJournal

AT_ONCE: Final = 64
"""Commitments whose turns are taken at a time."""

log = telemetry.logger("validator")


@dataclass
class Turns:
    """The order in which one validator of a run with traps inspects."""

    chain: ChainReader
    client: OrchestratorClient
    journal: ValidatorJournal
    terms: Terms
    link_of: Callable[[int], bytes]
    """Returns the link of this validator's hash chain for an hour. It is secret until that is sealed."""

    async def take(self, before_block: int) -> None:
        """Find out of all new commitments whether this validator is called for them. Raises TRANSIENT errors."""
        while fresh := self.journal.traps.without_turn(self.journal.first_hour, before_block, AT_ONCE):
            now = (await self.chain.head()).timestamp
            for c in fresh:
                call, committed_at, called = await self.call_of(c)
                wait = 0 if called else turn_after(call, self.terms) - (now - committed_at)
                self.journal.traps.take_turn(c, called=called, retry_at=time.time() + max(0, wait))

    async def call_of(self, c: CommittedWork) -> tuple[int, int, bool]:
        """Return a commitment's call hash, the second in which it was made, and whether this validator is called."""
        source = await self.chain.draw_source(c.node)
        call = call_hash(link=self.link_of(c.hour), entropy=source.entropy, node=c.node, index=c.index)
        committed_at = (await self.chain.call(runs.commitment(c.node, c.index))).committed_at
        validators = await self.chain.call(registry.validators_at(c.run, committed_at))
        return call, committed_at, is_called(call, validators, self.terms.accepts_required)

    async def is_due(self, c: CommittedWork) -> bool:
        """Return whether to inspect a commitment whose turn has come; pass over it if others did meanwhile.

        A file that came late is inspected again by those that missed it. Raises TRANSIENT errors.
        """
        if self.journal.traps.is_called(c) or self.journal.second_look(c) is not None:
            return True
        if await self.client.still_waits(c.run, c.node, c.index, c.root):
            return True
        self.journal.traps.pass_over(c)
        log.debug("left to others", node=c.node, index=c.index)
        return False
