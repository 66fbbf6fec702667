"""Read what lasts only minutes from the orchestrator: who serves weights, what nodes say of their machines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection

from muster.clients.orchestrator import OrchestratorClient
from muster.errors import TRANSIENT, CheckError, MusterError, StorageError
from muster.ledger.database import Database
from muster.ledger.queries import NodeRecord, members_of
from muster.ledger.statements import upsert
from muster.ledger.tables import machines
from muster.protocol.announcements import CURRENT_KINDS, CurrentDocument, MachineReport, Said, clean_device
from muster.protocol.messages import Message, RelayOffer
from muster.protocol.receipts import open_text
from muster.runtime import telemetry
from muster.runtime.loop import IDLE, Next, PollLoop
from muster.shardcast.fetch.connection import url_problem

POLL_SECONDS: Final = 5.0

log = telemetry.logger("explorer")


class ListedRelay(Message):
    """Who serves weights, and whose it is."""

    url: str
    operator: str
    """Empty for one of the run's owner."""


@dataclass(eq=False)
class Current:
    """The list of what is current in one run. Start it with `reading`."""

    run: int
    client: OrchestratorClient
    database: Database
    relays: Sequence[ListedRelay] = field(default=(), init=False)
    _opened: dict[str, tuple[Said, str]] = field(default_factory=dict, init=False)
    """What the documents of the last list say, and who signed them, by signature: recovering a key takes long."""

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
        said = await asyncio.to_thread(self._open, found.said)
        relays = dict.fromkeys(found.own, "")

        def write(connection: Connection) -> None:
            known = {one.address: one for one in filter(None, members_of(connection, [node for _, node, _ in said]))}
            for one, node, received in said:
                member = known.get(node)
                if member is not None and isinstance(one, RelayOffer):
                    relays.setdefault(one.url.rstrip("/"), member.operator)
                elif member is not None and isinstance(one, MachineReport):
                    upsert(connection, machines, _row(one, member, received))

        await self.database.write(write, news=False)
        self.relays = [ListedRelay(url=url, operator=by) for url, by in relays.items() if not url_problem(url)]
        return IDLE

    def _open(self, said: Sequence[CurrentDocument]) -> list[tuple[Said, str, float]]:
        """Return what documents of this run say, who signed each, and when it came; others are left out. Blocks."""
        opened, found = dict[str, tuple[Said, str]](), []
        for one in said:
            signed = one.signed
            message = CURRENT_KINDS.get(signed.kind)
            if message is None or signed.run != self.run:
                continue
            try:
                earlier = self._opened.get(signed.signature + signed.text)
                read = earlier or open_text(self.client.domain, signed, signed.kind, message)
            except MusterError as error:
                log.warning("left out", kind=signed.kind, reason=str(error))
                continue
            opened[signed.signature + signed.text] = read
            found.append((*read, one.received))
        self._opened = opened
        return found


def _row(said: MachineReport, node: NodeRecord, received: float) -> dict[str, Any]:
    speed = said.tokens_per_second if node.role == "worker" else 0.0
    row = {"node": node.address, "device": clean_device(said.device), "received": received, "tokens_per_second": speed}
    return said.model_dump(include={"devices", "gas_hours"}) | row
