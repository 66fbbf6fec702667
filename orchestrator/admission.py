"""Admit requests when there are more than can be answered: health, the trainer, members, strangers.

Rules:

- `/healthz`, `/readyz` and `/version` are always answered.
- The trainer, members and strangers have slots of their own, so the many cannot take those of the few; so have
  strangers' requests for files, whose answers are long and may be read slowly. A request holds its slot until its
  answer is sent. Without a free slot it waits, for WAIT_SECONDS at most, in a bounded queue; beyond that it is
  refused: 503 with `Retry-After`, a problem document.
- A client that reads the page or its documents takes a slot of a separate kind, member or not. What these show
  is made in turns (`page/turns.py`), so they may wait.
- A member's upload takes a slot of a separate kind, since its file may arrive slowly (`upload_slots.py`).
- Of reads in LISTS, which may be as long as an answer gets, one is made at a time, signed or not, address by address;
  the trainer's need not wait. It is sent at its reader's speed, in a slot of its party.
- A proxy's question whether a signature is good (CHECK) takes a slot of a separate kind.
- A question for the demand that may be held (`demand_board.py`) takes a slot of a separate kind, of which a party has
  HELD_EACH. Where none is free, or it is signed, it is answered at once, as any other.
- A watcher of the run's state holds a slot of a separate kind for as long as it watches, and never waits for one.
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

import asyncio
import re
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, Literal, cast

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from muster.protocol.requests import HEADER_SIGNATURE
from muster.runtime import telemetry
from muster.runtime.connection_table import ConnectionTable, Owner, address_group
from muster.runtime.http_limits import BoundedProtocol
from orchestrator.database import LANE
from orchestrator.demand_board import DemandBoard
from orchestrator.hot_reads import HeldQuestion, wait_of
from orchestrator.problems import problem_response

ALWAYS: Final = frozenset({"/healthz", "/readyz", "/version"})
METRICS: Final = "/metrics"
"""Answered at either listener: Prometheus asks one port of each process."""
CHECK: Final = "/v1/signed"
"""Where a proxy asks whether a body that it is about to store is signed (deploy/nginx/muster.conf)."""
FILES: Final = ("/v1/files/", "/v1/evidence", "/v1/environments/")
LIVE: Final = re.compile(r"/v1/runs/[^/]+/live")
PAGE: Final = re.compile(
    r"/|/(leaderboard|events|join|explain|docs|robots\.txt)|/(nodes|operators|court|steps|rollouts|static)(/.*)?"
    r"|/v1/runs/[^/]+/(overview|feed|metrics|series|workers|validators|others|earnings)"
    r"|/v1/runs/[^/]+/(nodes|addresses|cases|checkpoints|rollouts|charts)(/.*)?"
)
"""What is made for people: `orchestrator/page/`."""
LISTS: Final = re.compile(r"/v1/runs/[^/]+/(log|events|environments|looks/[^/]+)")
"""What is read by a cursor, as much of it as one answer may have."""
HELD_EACH: Final = 64
"""Questions of one party that are held at the same time."""
WAIT_SECONDS: Final = 5.0
REFUSED: Final = telemetry.counter("requests_refused", "Requests refused for want of room", ("kind",))
OPEN: Final = telemetry.gauge("connections", "Open connections")
OWNED: Final = telemetry.gauge("member_connections", "Open connections that are a member's or the trainer's")
CLOSED: Final = telemetry.counter("connections_closed_for_room", "Connections closed or refused for room", ("why",))

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


def measure(tables: Sequence[ConnectionTable]) -> None:
    """Let the metrics of connections count those of all listeners."""
    OPEN.set_function(lambda: sum(map(len, tables)))
    OWNED.set_function(lambda: sum(table.owned for table in tables))
    for table in tables:
        table.on_close = lambda why: CLOSED.labels(why).inc()


class Slots:
    """`at_once` slots, of which one party gets `share` at most; `waiting` more requests may wait for one."""

    def __init__(self, at_once: int, waiting: int, *, share: float = 0.5) -> None:
        self._free = at_once
        self._most = max(1, int(at_once * share))
        self._waiting_most = waiting
        self._party_waiting_most = max(1, int(waiting * share))
        self._taken: Counter[str] = Counter()
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        """Waiting requests by party; the party served last is last."""
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """Return how many requests wait for a slot."""
        return self._waiting

    def take(self, party: str) -> bool:
        """Acquire a slot now; return False when none is free."""
        is_free = self._free > 0 and self._taken[party] < self._most
        if is_free:
            self._hold(party)
        return is_free

    async def acquire(self, party: str) -> bool:
        """Acquire a slot, now or within WAIT_SECONDS; return False when none becomes free."""
        if self.take(party):
            return True
        if self._waiting >= self._waiting_most or len(self._queues.get(party, ())) >= self._party_waiting_most:
            return False
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(party, deque()).append(slot)
        self._waiting += 1
        try:
            await asyncio.wait([slot], timeout=WAIT_SECONDS)
        except asyncio.CancelledError:
            if slot.done():
                self.release(party)
            raise
        finally:
            if not slot.done():
                self._forget(party, slot)
        return slot.done()

    def release(self, party: str) -> None:
        """Release a slot; the next party in turn gets it."""
        self._free += 1
        self._taken[party] -= 1
        if not self._taken[party]:
            del self._taken[party]
        for waiting in self._queues:
            if self._taken[waiting] < self._most:
                self._serve(waiting)
                return

    def _serve(self, party: str) -> None:
        queue = self._queues.pop(party)
        slot = queue.popleft()
        self._waiting -= 1
        if queue:
            self._queues[party] = queue
        self._hold(party)
        slot.set_result(None)

    def _hold(self, party: str) -> None:
        self._free -= 1
        self._taken[party] += 1

    def _forget(self, party: str, slot: asyncio.Future[None]) -> None:
        queue = self._queues[party]
        queue.remove(slot)
        self._waiting -= 1
        if not queue:
            del self._queues[party]


class Admission:
    """ASGI middleware around the whole application."""

    def __init__(
        self,
        app: ASGIApp,
        recognise: Recognise,
        table: ConnectionTable,
        watchers: int = 1000,
        listener: Listener | None = None,
    ) -> None:
        """`watchers` may watch at the same time, but never on more than half of the connections that there can be.

        listener: whose requests are answered here; None for all.
        """
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
            "viewer": Slots(128, 1024),
            "watcher": Slots(min(watchers, table.budget // 2), 0),
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
            REFUSED.labels(kind).inc()
            detail = "more requests are under way than this orchestrator answers at once"
            await problem_response(503, "Too many requests", detail, "try again in a second")(scope, receive, send)
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
        party = connection.owner.address if connection.owner is not None else _address(connection, headers)
        is_free = slots.take(party)
        if is_free:
            HeldQuestion(board, connection, cycle, wait, partial(slots.release, party))
        return is_free

    async def party(self, scope: Scope) -> tuple[str, str]:
        """Return whose request it is: the kind of party, and its address."""
        connection: BoundedProtocol = scope["state"]["connection"]
        headers, owner = Headers(scope=scope), connection.owner
        address = _address(connection, headers)
        if scope["path"] == CHECK:
            return "check", address
        if owner is None and HEADER_SIGNATURE in headers and await self._recognising.acquire(address):
            try:
                owner = await self._recognise(Request(scope))
            finally:
                self._recognising.release(address)
            if owner is not None and not connection.proxied:
                self.table.claim(connection, owner)
        if LIVE.fullmatch(scope["path"]):
            return "watcher", owner.address if owner is not None else address
        if PAGE.fullmatch(scope["path"]):
            return "viewer", owner.address if owner is not None else address
        if owner is None:
            return ("reader" if scope["path"].startswith(FILES) else "stranger"), address
        if scope["method"] == "PUT":
            return "uploader", owner.address
        return ("trainer" if owner.is_trainer else "member"), owner.address


def _address(connection: BoundedProtocol, headers: Headers) -> str:
    """Return what counts as a request's address: behind a trusted proxy, the one that the proxy names."""
    if not connection.proxied:
        return connection.address
    lines = headers.getlist("x-forwarded-for")  # some proxies add a line to what the client sent
    return address_group(",".join(lines).rpartition(",")[2].strip()) or connection.address
