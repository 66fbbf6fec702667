"""Bound what is under way in a server: slots by kind of request, shared fairly between parties, and a bounded queue."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import ExitStack
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from muster.runtime import telemetry
from muster.runtime.connection_table import ConnectionTable, address_group
from muster.runtime.http_limits import BoundedProtocol
from muster.runtime.problems import problem_response

ALWAYS: Final = frozenset({"/healthz", "/readyz", "/version"})
"""Answered without a slot."""
WAIT_SECONDS: Final = 5.0
"""Longest wait for a slot."""
REFUSED: Final = telemetry.counter("requests_refused", "Requests refused for want of room", ("kind",))
OPEN: Final = telemetry.gauge("connections", "Open connections")
OWNED: Final = telemetry.gauge("member_connections", "Open connections that are a member's or the trainer's")
CLOSED: Final = telemetry.counter("connections_closed_for_room", "Connections closed or refused for room", ("why",))


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
    """ASGI middleware around a whole application: a request holds a slot of its kind until its answer is sent."""

    def __init__(self, app: ASGIApp, slots_by_kind: dict[str, Slots]) -> None:
        self._app = app
        self.slots_by_kind = slots_by_kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ALWAYS:
            await self._app(scope, receive, send)
            return
        scope["path"] = scope["path"].removesuffix("\n")  # which the end of a route's pattern takes
        kind, party = await self.party(scope)
        await self._answer(kind, party, self._inner(kind, party, scope), scope, receive, send)

    async def party(self, scope: Scope) -> tuple[str, str]:
        """Return whose request it is: the kind of party, and its address."""
        return "reader", address_of(scope["state"]["connection"], Headers(scope=scope))

    def _inner(self, _kind: str, _party: str, _scope: Scope) -> ASGIApp:
        """Return what answers once there is a slot."""
        return self._app

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


def refuse(kind: str) -> ASGIApp:
    """Return the answer for want of a slot, and count it."""
    REFUSED.labels(kind).inc()
    detail = "more requests are under way than are answered here at once"
    return problem_response(503, "Too many requests", detail, "try again in a second")


def address_of(connection: BoundedProtocol, headers: Headers) -> str:
    """Return what counts as a request's address: behind a trusted proxy, the one that the proxy names."""
    if not connection.proxied:
        return connection.address
    lines = headers.getlist("x-forwarded-for")  # some proxies add a line to what the client sent
    return address_group(",".join(lines).rpartition(",")[2].strip()) or connection.address


def measure(table: ConnectionTable) -> None:
    """Let the metrics of connections count those of a table."""
    OPEN.set_function(lambda: len(table))
    OWNED.set_function(lambda: table.owned)
    table.on_close = lambda why: CLOSED.labels(why).inc()
