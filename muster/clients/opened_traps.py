"""Opened traps as a run's orchestrator hands them out, checked: what it says wrongly of one counts as nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from muster.chain.reads import ChainReader
from muster.clients.orchestrator import OrchestratorClient
from muster.contracts import runs
from muster.errors import CheckError, MalformedError, MismatchError
from muster.protocol.messages import OpenedTrap
from muster.protocol.terms import Terms
from muster.protocol.traps import check_opened
from muster.runtime import telemetry
from muster.verification.rules import CommittedWork

MAX_PAGES: Final = 256
"""Pages of one epoch that are read: more traps than a run can have in it."""

KEPT_EPOCHS: Final = 64

log = telemetry.logger("traps")


@dataclass
class OpenedTraps:
    """The opened traps of one run, read once an epoch: when its master is shown, it has all of its tickets."""

    chain: ChainReader
    client: OrchestratorClient
    run: int
    terms: Terms
    _epochs: dict[int, dict[tuple[str, int], list[OpenedTrap]]] = field(default_factory=dict, init=False)

    async def get(self, c: CommittedWork, entropy: bytes, epoch: int, master: bytes) -> OpenedTrap | None:
        """Return the ticket and map of a commitment, checked; None where it has none that is good.

        `entropy`: of its node's draws. `master`: that which is shown of its epoch. Raises TRANSIENT errors.
        """
        for trap in (await self.listed(epoch)).get((c.node.lower(), c.index), []):
            try:
                await self._check(trap, c, entropy, epoch, master)
            except CheckError as error:
                log.warning("ignoring a trap that is none", node=c.node, index=c.index, reason=str(error))
            else:
                return trap
        del self._epochs[epoch]  # the next question is asked of the orchestrator again
        return None

    async def listed(self, epoch: int) -> dict[tuple[str, int], list[OpenedTrap]]:
        """Return what the orchestrator lists for an epoch, unchecked, by node (lower case) and index."""
        if epoch not in self._epochs:
            found = await self._read(epoch)
            while len(self._epochs) >= KEPT_EPOCHS:
                self._epochs.pop(next(iter(self._epochs)))
            self._epochs[epoch] = found
        return self._epochs[epoch]

    async def _check(self, trap: OpenedTrap, c: CommittedWork, entropy: bytes, epoch: int, master: bytes) -> None:
        """Raise CheckError unless this is the trap of a commitment."""
        ticket, keys = trap.ticket, await self.chain.keys(self.run)
        if (ticket.run, ticket.node.lower(), ticket.index) != (self.run, c.node.lower(), c.index):
            raise MismatchError("the ticket is of another commitment")
        if ticket.root != "0x" + c.root.hex():
            raise MismatchError("the ticket is of another root")
        where, committed = self.client.domain, await self.chain.call(runs.commitment(c.node, c.index))
        given = {"terms": self.terms, "keys": keys, "step": c.step, "entropy": entropy}
        check_opened(where, trap, epoch=epoch, master=master, **given)
        if ticket.stored_at >= committed.committed_at:
            raise MismatchError(f"the ticket is of second {ticket.stored_at}, the commitment of an earlier one")

    async def _read(self, epoch: int) -> dict[tuple[str, int], list[OpenedTrap]]:
        found: dict[tuple[str, int], list[OpenedTrap]] = {}
        cursor = 0
        for _ in range(MAX_PAGES):
            page = await self.client.traps(self.run, epoch, cursor)
            for trap in page.traps:
                found.setdefault((trap.ticket.node.lower(), trap.ticket.index), []).append(trap)
            if not page.traps:
                return found
            if page.cursor <= cursor:
                raise MalformedError(f"the orchestrator lists the traps of epoch {epoch} in a circle")
            cursor = page.cursor
        raise MalformedError(f"the orchestrator lists more than {MAX_PAGES} pages of traps of epoch {epoch}")
