"""List what lasts only minutes, open to everybody: who serves weights, and what nodes said last of their machines."""

from __future__ import annotations

import time
from typing import Final

from sqlalchemy import Connection, select

from muster.ledger.tables import machines, nodes
from muster.protocol.announcements import CurrentList, CurrentMachine
from orchestrator.service import OrchestratorService

SAID_SECONDS: Final = 600.0
"""For so long a machine is current after its node reported it."""
MAX_MACHINES: Final = 10_000


async def current_list(service: OrchestratorService) -> bytes:
    """Return the list as JSON."""

    def read(connection: Connection) -> CurrentList:
        query = select(machines).join(nodes, nodes.c.address == machines.c.node)
        query = query.where(nodes.c.status == "active", machines.c.received >= time.time() - SAID_SECONDS)
        rows = connection.execute(query.order_by(machines.c.node).limit(MAX_MACHINES))
        said = [CurrentMachine.of(row) for row in rows]
        return CurrentList(relays=service.relay_directory.known(connection), machines=said)

    return (await service.database.read(read)).model_dump_json().encode()
