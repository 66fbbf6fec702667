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
- A proxy's question whether a signature is good (CHECK) takes a slot of a separate kind.
- A question for the demand that may be held (`demand_board.py`) takes a slot of a separate kind, of which a party has
  HELD_EACH. Where none is free, or it is signed, it is answered at once, as any other.
- One address of strangers, or one member, gets at most half of its kind's slots and of the queue, and waiting requests
  are served address by address. So one address keeps no other out, and no limit has to be set for a proxy's.
- The party of a request follows from its connection (`muster/runtime/connection_table.py`), or from its own signature.
  Reads need no signature, but a signed read is answered as a member's. Such a signature counts once, within the bound
  of what is remembered: a replay gains a stranger a member's slot, and nothing else.
- With `orchestrator.public_port` there are two listeners, each with all of these limits and its own connections. One
  answers unsigned reads, the other all else. The readers of the database are apart in any case.
- Behind one of `orchestrator.trusted_proxies` the address is the last of `X-Forwarded-For`, and only a request's own
  signature makes it a member's: strangers share the proxy's connections.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import Final, Literal, cast

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from muster.ledger.database import LANE
from muster.protocol.requests import HEADER_SIGNATURE
from muster.runtime.connection_table import ConnectionTable, Owner
from muster.runtime.http_limits import BoundedProtocol
from muster.runtime.problems import problem_response
from muster.runtime.slots import Slots, address_of, refuse
from orchestrator.demand_board import DemandBoard
from orchestrator.hot_reads import HeldQuestion, wait_of

ALWAYS: Final = frozenset({"/healthz", "/readyz", "/version"})
METRICS: Final = "/metrics"
"""Answered at either listener: Prometheus asks one port of each process."""
CHECK: Final = "/v1/signed"
"""Where a proxy asks whether a body that it is about to store is signed (deploy/nginx/muster.conf)."""
FILES: Final = ("/v1/files/", "/v1/evidence", "/v1/environments/")
LISTS: Final = re.compile(r"/v1/runs/[^/]+/(log|environments|looks/[^/]+)")
"""What is read by a cursor, as much of it as one answer may have."""
HELD_EACH: Final = 64
"""Questions of one party that are held at the same time."""

POLLED: Final = re.compile(r"/v1/runs/[^/]+/(demand|accepted)")
"""What nodes ask all the time, mostly unsigned: it is answered from bytes (`hot_reads.py`)."""
MEMBERS: Final = ("trainer", "member", "uploader", "check")
"""Kinds of parties that take members' readers of the database."""

Recognise = Callable[[Request], Awaitable[Owner | None]]
Listener = Literal["members", "public"]

_ELSEWHERE: Final[dict[Listener, tuple[str, str]]] = {
    "members": ("this port answers unsigned reads only", "send signed requests and polls to the run's URL"),
    "public": ("this port answers signed requests and polls only", "send unsigned reads to the run's URL"),
}
"""What a request hears at the other listener than its own: detail and hint."""


def listener_of(scope: Scope) -> Listener:
    """Return which listener answers a request where there are two: `public` answers unsigned reads."""
    reads = scope["method"] in ("GET", "HEAD") and HEADER_SIGNATURE not in Headers(scope=scope)
    return "public" if reads and not POLLED.fullmatch(scope["path"]) else "members"


class Admission:
    """ASGI middleware around the whole application."""

    def __init__(
        self,
        app: ASGIApp,
        recognise: Recognise,
        table: ConnectionTable,
        listener: Listener | None = None,
    ) -> None:
        """Stand before an application. `listener`: whose requests are answered here; None for all."""
        self._app = app
        self._recognise = recognise
        self.table = table
        self._listener = listener
        self.slots_by_kind = {
            "trainer": Slots(64, 512, share=1.0),
            "member": Slots(256, 4096),
            "uploader": Slots(4096, 0, share=1 / 1024),
            "stranger": Slots(128, 4096),
            "check": Slots(32, 2048),
            "list": Slots(1, 512, share=1 / 16),
            "reader": Slots(128, 1024),
            "held": Slots(table.budget // 4, 0, share=HELD_EACH / max(1, table.budget // 4)),
        }
        self._recognising = Slots(32, 2048)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ALWAYS:
            await self._app(scope, receive, send)
            return
        scope["path"] = scope["path"].removesuffix("\n")  # which the end of a route's pattern takes
        if self._listener not in (None, right := listener_of(scope)) and scope["path"] != METRICS:
            await problem_response(421, "Misdirected request", *_ELSEWHERE[right])(scope, receive, send)
            return
        kind, party = await self.party(scope)
        LANE.set("members" if kind in MEMBERS else "public")
        is_list = kind != "trainer" and scope["method"] == "GET" and LISTS.fullmatch(scope["path"])
        app = partial(self._answer, "list", party, self._app) if is_list else self._app
        await self._answer(kind, party, app, scope, receive, send)

    async def _answer(self, kind: str, party: str, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer in a slot of this kind, which is free again when the answer is sent; a list's when it is made."""
        slots = self.slots_by_kind[kind]
        if not await slots.acquire(party):
            await refuse(kind)(scope, receive, send)
            return
        with ExitStack() as slot:
            slot.callback(slots.release, party)

            async def send_made(message: Message) -> None:
                slot.close()
                await send(message)

            await app(scope, receive, send_made if kind == "list" else send)

    def hold(self, board: DemandBoard, run: int, connection: BoundedProtocol, cycle: RequestResponseCycle) -> bool:
        """Hold a question for the demand, where it may be held and needs no look at a signature; return whether."""
        scope = cast("Scope", cycle.scope)
        wait, headers = wait_of(scope, run), Headers(scope=scope)
        if wait is None or HEADER_SIGNATURE in headers or self._listener == "public":
            return False
        slots = self.slots_by_kind["held"]
        party = connection.owner.address if connection.owner is not None else address_of(connection, headers)
        is_free = slots.take(party)
        if is_free:
            HeldQuestion(board, connection, cycle, wait, partial(slots.release, party))
        return is_free

    async def party(self, scope: Scope) -> tuple[str, str]:
        """Return whose request it is: the kind of party, and its address."""
        connection: BoundedProtocol = scope["state"]["connection"]
        headers, owner = Headers(scope=scope), connection.owner
        address = address_of(connection, headers)
        if scope["path"] == CHECK:
            return "check", address
        if owner is None and HEADER_SIGNATURE in headers and await self._recognising.acquire(address):
            try:
                owner = await self._recognise(Request(scope))
            finally:
                self._recognising.release(address)
            if owner is not None and not connection.proxied:
                self.table.claim(connection, owner)
        if owner is None:
            return ("reader" if scope["path"].startswith(FILES) else "stranger"), address
        if scope["method"] == "PUT":
            return "uploader", owner.address
        return ("trainer" if owner.is_trainer else "member"), owner.address
