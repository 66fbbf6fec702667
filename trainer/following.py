"""Follow a run's log and chain into the trainer's journal: verdicts, commitments, cases, convictions, shown links.

What is trained on (`trainer.accepted_work`) and what is paid for looking (`trainer.looks`) is read from the journal.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from eth_utils.address import to_checksum_address

from muster.chain.cursor import EventCursor
from muster.chain.reads import ChainReader
from muster.clients.looks import read_call, shown_links
from muster.clients.orchestrator import OrchestratorClient
from muster.contracts.court import CaseOpened, CaseResolved
from muster.contracts.registry import Convicted
from muster.contracts.runs import HourSealed, WorkCommitted
from muster.errors import ChainError, CheckError
from muster.protocol.messages import Verdict
from muster.protocol.receipts import check_verdict
from muster.protocol.terms import Terms
from muster.runtime import telemetry
from muster.runtime.retries import Repeats
from muster.verification.rules import CommittedWork
from trainer.look_journal import LookJournal

KINDS: Final = (WorkCommitted, HourSealed, CaseOpened, CaseResolved, Convicted)
CALLS: Final = 4
"""Commitments of which it is read at the same time who is called to them."""

log = telemetry.logger("trainer")


@dataclass(eq=False)
class Follower:
    """Follows one run. `follow` may be called by several tasks."""

    chain: ChainReader
    client: OrchestratorClient
    run: int
    terms: Terms
    journal: LookJournal
    _following: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def __post_init__(self) -> None:
        self._cursor = EventCursor(self.chain, self.journal.path.parent / "cursor.json", KINDS, run=self.run)
        self._repeats = Repeats()

    async def follow(self) -> None:
        """Take in new verdicts, then what the chain has: a link that is shown comes after the verdicts of its hour.

        Raises TRANSIENT errors.
        """
        async with self._following:
            while True:
                given, place = await self.client.verdicts(self.run, self.journal.place)
                came = await asyncio.to_thread(self._checked, given)
                if not given:
                    break
                self.journal.keep_verdicts(came, place)
            more = True
            while more:
                batch = await self._cursor.poll()
                seals = [event for event in batch if isinstance(event, HourSealed)]
                seals = [event for event in seals if event.hour > self.journal.last_hour]
                self.journal.record(batch, await shown_links(self.chain, seals))
                await self._cursor.ack()
                more = batch.more
            await self._read_calls(self.journal.uncalled())

    def _checked(self, came: Sequence[tuple[Verdict, int]]) -> list[tuple[Verdict, int]]:
        """Return those that their validators signed, with addresses as the chain writes them."""
        kept = []
        for verdict, second in came:
            try:
                check_verdict(self.client.domain, verdict)
            except CheckError as error:
                log.warning("ignoring a verdict", validator=verdict.validator, reason=str(error))
                continue
            of = {name: to_checksum_address(getattr(verdict, name)) for name in ("validator", "node")}
            kept.append((verdict.model_copy(update=of), second))
        return [(verdict, second) for verdict, second in kept if verdict.run == self.run]

    async def _read_calls(self, works: Sequence[CommittedWork]) -> None:
        """Read who is called to commitments. One of which that cannot be had now is read again the next time."""
        gate = asyncio.Semaphore(CALLS)

        async def read(c: CommittedWork) -> None:
            try:
                async with gate:
                    self.journal.know(await read_call(self.chain, self.client, self.terms, c))
            except (CheckError, ChainError) as error:
                if self._repeats.count(("call", str(error)), time.monotonic()) is not None:
                    log.warning("who is called to a commitment is not known", node=c.node, index=c.index, reason=error)

        await asyncio.gather(*map(read, works))
