"""Admit requests when there are more than can be answered: health, the trainer, members, strangers.

Rules:

- `/healthz`, `/readyz` and `/version` are always answered.
- The trainer, members and strangers have slots of their own, so the many cannot take those of the few; so have
  strangers' requests for files, whose answers are long and may be read slowly. A request holds its slot until its
  answer is sent. Without a free slot it waits, for WAIT_SECONDS at most, in a bounded queue; beyond that it is
  refused: 503 with `Retry-After`, a problem document.
- A member's upload takes a slot of a separate kind, since its file may arrive slowly (`upload_slots.py`).
- Of reads in LISTS, which may be as long as an answer gets, one is made at a time, signed or not, address by address;
  the trainer's need not wait. It is sent at its reader's speed, in a slot of its party.
- A proxy's question whether a signature is good (CHECK) takes a slot of a separate kind, and so does looking at the
  signature of a read.
- A question for the demand that may be held (`demand_board.py`), or at the end of the log (`log_tail.py`), takes a slot
  of a separate kind, of which a party has HELD_EACH. Where none is free, or a question for the demand is signed, it is
  answered at once, as any other.
- One address of strangers, or one member, gets at most half of its kind's slots and of the queue, and waiting requests
  are served address by address. So one address keeps no other out, and no limit has to be set for a proxy's.
- The party of a request follows from its connection (`muster/runtime/connection_table.py`), or from its own signature.
  Reads need no signature, but a signed read is answered as a member's. Such a signature counts once, within the bound
  of what is remembered: a replay gains a stranger a member's slot, and nothing else.
- Behind one of `orchestrator.trusted_proxies` the address is the last of `X-Forwarded-For`, and only a request's own
  signature makes it a member's: strangers share the proxy's connections.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, cast

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from muster.protocol.requests import HEADER_SIGNATURE
from muster.runtime.connection_table import ConnectionTable, Owner
from muster.runtime.http_limits import BoundedProtocol
from muster.runtime.slots import Admission, Slots, address_of
from orchestrator.demand_board import DemandBoard
from orchestrator.hot_reads import HeldQuestion, wait_of

CHECK: Final = "/v1/signed"
"""Where a proxy asks whether a body that it is about to store is signed (deploy/nginx/muster.conf)."""
FILES: Final = ("/v1/files/", "/v1/evidence", "/v1/environments/")
LISTS: Final = re.compile(r"/v1/runs/[^/]+/(log|looks/[^/]+)")
"""What is read by a cursor, as much of it as one answer may have."""
HELD_EACH: Final = 64
"""Questions of one party that are held at the same time."""

Recognise = Callable[[Request], Awaitable[Owner | None]]


class MemberAdmission(Admission):
    """Tells trainer, members and strangers apart."""

    def __init__(self, app: ASGIApp, recognise: Recognise, table: ConnectionTable) -> None:
        slots_by_kind = {
            "trainer": Slots(64, 512, share=1.0),
            "member": Slots(256, 4096),
            "uploader": Slots(4096, 0, share=1 / 1024),
            "stranger": Slots(128, 4096),
            "check": Slots(32, 2048),
            "list": Slots(1, 512, share=1 / 16),
            "reader": Slots(128, 1024),
            "held": Slots(table.budget // 4, 0, share=HELD_EACH / max(1, table.budget // 4)),
        }
        super().__init__(app, slots_by_kind)
        self._recognise = recognise
        self._table = table

    def _inner(self, kind: str, party: str, scope: Scope) -> ASGIApp:
        is_list = kind != "trainer" and scope["method"] == "GET" and LISTS.fullmatch(scope["path"])
        return partial(self._answer, "list", party, self._app) if is_list else self._app

    def hold(self, board: DemandBoard, run: int, connection: BoundedProtocol, cycle: RequestResponseCycle) -> bool:
        """Hold a question for the demand, where it may be held and needs no look at a signature; return whether."""
        scope = cast("Scope", cycle.scope)
        wait, headers = wait_of(scope, run), Headers(scope=scope)
        if wait is None or HEADER_SIGNATURE in headers:
            return False
        slots = self.slots_by_kind["held"]
        party = connection.owner.address if connection.owner is not None else address_of(connection, headers)
        is_free = slots.take(party)
        if is_free:
            HeldQuestion(board, connection, cycle, wait, partial(slots.release, party))
        return is_free

    async def party(self, scope: Scope) -> tuple[str, str]:
        connection: BoundedProtocol = scope["state"]["connection"]
        headers, owner = Headers(scope=scope), connection.owner
        address = address_of(connection, headers)
        if scope["path"] == CHECK:
            return "check", address
        checks = self.slots_by_kind["check"]
        if owner is None and HEADER_SIGNATURE in headers and await checks.acquire(address):
            try:
                owner = await self._recognise(Request(scope))
            finally:
                checks.release(address)
            if owner is not None and not connection.proxied:
                self._table.claim(connection, owner)
        if owner is None:
            return ("reader" if scope["path"].startswith(FILES) else "stranger"), address
        if scope["method"] == "PUT":
            return "uploader", owner.address
        return ("trainer" if owner.is_trainer else "member"), owner.address
