"""The masters of a run's private tests, from wherever they are: revealed on chain, or given by the orchestrator."""

from __future__ import annotations

from dataclasses import dataclass, field

from muster.chain.reads import ChainReader
from muster.clients.orchestrator import OrchestratorClient
from muster.contracts import court
from muster.errors import CheckError, UnreachableError
from muster.grading.envelope import KeyExchange
from muster.protocol.masters import check_master, earlier_master
from muster.protocol.terms import Terms


@dataclass
class RunMasters:
    """The masters of one run. What was learnt once stays in memory, and gives those of all earlier epochs."""

    chain: ChainReader
    client: OrchestratorClient
    run: int
    terms: Terms
    key: KeyExchange | None = None
    """This validator's; without one only what was revealed on chain is known."""
    _latest: tuple[int, bytes] = field(default=(0, b""), init=False, repr=False)

    async def get(self, epoch: int) -> bytes:
        """Return the master of an epoch, checked against the terms. Raises UnreachableError when no source has it."""
        if self._latest[0] < epoch:
            self._latest = await self._fetch(epoch)
        known, master = self._latest
        return earlier_master(master, known, epoch)

    async def revealed(self) -> tuple[int, bytes]:
        """Return the last epoch whose master is on chain, 0 for none, and that master."""
        shown = await self.chain.call(court.masters(self.run))
        return shown.epochs, shown.latest

    async def _fetch(self, epoch: int) -> tuple[int, bytes]:
        shown, latest = await self.revealed()
        if shown >= epoch:
            return shown, latest
        if self.key is None:
            raise UnreachableError(
                f"the master of epoch {epoch} is not revealed yet", hint="only validators have it before its epoch ends"
            )
        try:
            master = await self.client.master(self.run, epoch, self.key)
            check_master(self.terms, epoch, master)
        except CheckError as error:
            raise UnreachableError(
                f"the orchestrator gives no master of epoch {epoch}: {error}", hint="ask the run's owner"
            ) from error
        return epoch, master
