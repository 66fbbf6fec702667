"""Read what lasts only minutes from the orchestrator: who serves weights, what nodes say of their machines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from eth_utils.address import to_checksum_address
from sqlalchemy import Connection

from muster.clients.orchestrator import OrchestratorClient
from muster.errors import TRANSIENT, CheckError, StorageError
from muster.ledger.database import Database
from muster.ledger.queries import members_of
from muster.ledger.statements import upsert
from muster.ledger.tables import machines
from muster.protocol.announcements import CurrentMachine, CurrentRelay, clean_device
from muster.runtime import telemetry
from muster.runtime.loop import IDLE, Next, PollLoop
from muster.shardcast.fetch.connection import url_problem

POLL_SECONDS: Final = 5.0

log = telemetry.logger("explorer")


@dataclass(eq=False)
class Current:
    """The list of what is current in one run. Start it with `reading`."""

    run: int
    client: OrchestratorClient
    database: Database
    relays: Sequence[CurrentRelay] = field(default=(), init=False)

    @property
    def urls(self) -> tuple[str, ...]:
        """Return base URLs that serve weights."""
        return tuple(one.url for one in self.relays)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Read while the block runs."""
        loop = PollLoop(log, "current", POLL_SECONDS, transient=(*TRANSIENT, StorageError, CheckError))
        async with loop.running(self.poll):
            yield

    async def poll(self) -> Next:
        """Read the list. Raises TRANSIENT errors, CheckError, StorageError."""
        found = await self.client.current(self.run)
        self.relays = [one for one in found.relays if not url_problem(one.url)]
        said: dict[str, CurrentMachine] = {to_checksum_address(one.node): one for one in found.machines}

        def write(connection: Connection) -> None:
            known = members_of(connection, list(said))
            for one in filter(None, known):
                upsert(connection, machines, _row(one.address, said[one.address]))

        await self.database.write(write, news=False)
        return IDLE


def _row(node: str, said: CurrentMachine) -> dict[str, Any]:
    return said.model_dump() | {"node": node, "device": clean_device(said.device)}
