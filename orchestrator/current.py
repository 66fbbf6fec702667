"""Keep what lasts only minutes, open to everybody: who offers to serve weights, what nodes say of their machines.

A document is signed by an active node, and so is the request that brings it: nobody else can send an earlier one again.
The last of a node and kind counts, for CURRENT_SECONDS. None of it is part of the log, or leads to pay.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, or_, select

from muster.errors import MusterError
from muster.ledger.database import Database
from muster.ledger.statements import upsert
from muster.ledger.tables import current, nodes
from muster.protocol.announcements import CURRENT_KINDS
from muster.protocol.eip712 import Domain
from muster.protocol.messages import RelayOffer, SignedText
from muster.protocol.receipts import open_text
from muster.runtime import problems, telemetry
from orchestrator.auth import Caller
from orchestrator.log import WRONG_KEY
from orchestrator.relay_directory import CURRENT_SECONDS, RelayDirectory

MAX_SAID: Final = 10_000
"""Documents in the list."""
SAID: Final = telemetry.counter("current_documents", "Offers and reports of machines received", ("kind",))


@dataclass(eq=False)
class CurrentDocuments:
    """What is current in one run. One per service."""

    where: Domain
    run: int
    database: Database
    relays: RelayDirectory
    clock: Callable[[], float] = field(default=time.time, kw_only=True)

    async def take(self, caller: Caller, signed: SignedText) -> bool:
        """Take what a node says, in place of what it said before; return whether that was something else."""
        # 1. Who says it.
        if signed.run != self.run:
            raise problems.another_run(signed.run, self.run)
        if (message := CURRENT_KINDS.get(signed.kind)) is None:
            raise problems.malformed(
                f"nothing current is a {signed.kind}", f"kinds: {', '.join(sorted(CURRENT_KINDS))}"
            )
        try:
            said, signer = open_text(self.where, signed, signed.kind, message)
        except MusterError as error:
            raise problems.not_allowed(str(error), WRONG_KEY) from error
        if signer != caller.address:
            raise problems.not_allowed(f"the {signed.kind} is signed by {signer}, the request by {caller.address}")
        if caller.member is None or not caller.member.active:
            raise problems.not_allowed(f"{caller.address} is no active node of run {self.run}")
        # 2. Whether an offer can be listed.
        key = await self.relays.check(signer, said.url) if isinstance(said, RelayOffer) else ""
        row = {"kind": signed.kind, "node": signer, "key": key, "text": signed.to_bytes().decode()}

        def write(connection: Connection) -> bool:
            was = select(current.c.node).where(*(current.c[name] == row[name] for name in ("kind", "node", "key")))
            is_known = connection.execute(was.where(self._lasts)).first() is not None
            upsert(connection, current, row | {"received": self.clock()})
            return not is_known

        # 3. Without news: a report a second would undo what answers are kept.
        is_new = await self.database.write(write, news=False)
        SAID.labels(signed.kind).inc()
        return is_new

    async def list_json(self) -> bytes:
        """Return a `CurrentList` as JSON: relays that are listed, machines of active nodes."""

        def read(connection: Connection) -> bytes:
            shown = or_(current.c.key.in_(self.relays.listed(connection)), current.c.kind != "relay")
            query = select(*current.c["text", "received"]).join(nodes, nodes.c.address == current.c.node)
            query = query.where(self._lasts, shown, nodes.c.status == "active")
            found = connection.execute(query.order_by(current.c.kind.desc(), current.c.node).limit(MAX_SAID))
            said = [f'{{"signed":{row.text},"received":{row.received!r}}}' for row in found]  # the texts are JSON
            return f'{{"own":{json.dumps(self.relays.own)},"said":[{",".join(said)}]}}'.encode()

        return await self.database.read(read)

    @property
    def _lasts(self) -> Any:
        return current.c.received > self.clock() - CURRENT_SECONDS
