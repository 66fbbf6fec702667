"""Track open connections: whose they are, and which of them is closed first when descriptors run short.

Rules:

- A connection is a stranger's until it has carried a valid signed request of a node of the run or of its trainer; then
  it is that member's, until it closes. A member can own OWNED_CONNECTIONS; its others stay strangers'.
- Idle connections cost memory and a descriptor, nothing else. Connections are closed for room only when more than
  `budget` are open, a hundredth of the budget at a time.
- Closed first: strangers' connections on which no request's head has arrived within HEAD_GRACE_SECONDS, or that belong
  to an address with more than HEADS_PER_ADDRESS of these. Then strangers' idle ones, then members' idle ones.
- Within each of these groups the address (or member) with the most connections loses the one that has waited longest.
  So one address cannot displace others, and no number of connections per address has to be chosen: a reverse proxy
  or a local swarm may hold as many as there is room for.
- If none of these is left, the address (or member) with the most connections loses its slowest answers, as long as it
  has more than the new connection's. Else the new one is refused: it may ask for health, and nothing else.
- Beyond HEADS_PER_ADDRESS unfinished heads an address loses its oldest, once that is HEAD_GRACE_SECONDS old, whether
  descriptors are short or not.
- Origins and relays claim no connection, so all of theirs are strangers'.
- An IPv6 address stands for its /64. The addresses of `proxies` are neither strangers nor limited in heads.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

HEADS_PER_ADDRESS: Final = 256
HEAD_GRACE_SECONDS: Final = 5.0
OWNED_CONNECTIONS: Final = 64
REFUSED_CONNECTIONS: Final = 16
"""Connections beyond the budget that stay open until they are answered."""

MAX_CONNECTIONS: Final = 65_536
"""However many the descriptors allow: so many idle connections take about a gigabyte of memory."""

STRANGER_WAITING, STRANGER_IDLE, MEMBER_IDLE = range(3)
"""Ranks, in the order in which connections are closed."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Owner:
    """The member whose connection it is."""

    address: str
    is_trainer: bool


class Tracked(Protocol):
    """What the table knows of a connection."""

    address: str
    """Its `address_group`."""
    proxied: bool
    owner: Owner | None
    busy: bool
    """A request is under way."""
    since: float
    """Loop time at which its present wait began."""

    def speed(self, now: float) -> float:
        """Return the bytes per second of its answer, since its present wait began."""
        ...

    def close_for_room(self, why: str) -> None:
        """Close it, with an answer that can be read where one is awaited."""
        ...


@dataclass(frozen=True)
class Candidate:
    """A connection that may be closed."""

    rank: int
    party: str
    """The address or member it counts for."""
    since: float


Item = TypeVar("Item")


def first_to_go(candidates: Sequence[tuple[Candidate, Item]], count: int) -> list[Item]:
    """Return the `count` connections to close first, by the rules above."""
    parties: dict[tuple[int, str], list[tuple[float, Item]]] = defaultdict(list)
    for candidate, item in sorted(candidates, key=lambda pair: pair[0].since):
        parties[candidate.rank, candidate.party].append((candidate.since, item))
    # One goes when its party, from which the older ones have gone, has more left than any other of the rank.
    ordered = [
        ((rank, place - len(waiting), waiting[0][0], party), item)
        for (rank, party), waiting in parties.items()
        for place, (_, item) in enumerate(waiting)
    ]
    return [item for _, item in sorted(ordered, key=lambda pair: pair[0])[:count]]


def address_group(host: str) -> str:
    """Return what counts as one address for limits: an IPv4 address, or the /64 of an IPv6 one."""
    address = _parsed(host)
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
    return str(address or host)


def _parsed(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _party(connection: Tracked) -> str:
    return connection.address if connection.owner is None else connection.owner.address


class ConnectionTable:
    """Keeps the open connections of one server. Not for several threads."""

    def __init__(self, budget: int, proxies: Iterable[Network] = ()) -> None:
        self.budget = budget
        self._proxies = tuple(proxies)
        self._open: dict[Tracked, None] = {}
        self.refused: dict[Tracked, None] = {}
        """Connections for which there was no room, which do not count."""
        self._waiting: dict[str, dict[Tracked, None]] = defaultdict(dict)
        """Strangers' connections by address on which a head is awaited, oldest first."""
        self._owned: Counter[str] = Counter()
        self.on_close: Callable[[str], object] = lambda _: None
        """Called when a connection is closed or refused for room, with the reason."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def owned(self) -> int:
        """Return how many connections are a member's."""
        return self._owned.total()

    def is_proxy(self, host: str) -> bool:
        """Return whether connections from this address are a trusted proxy's."""
        address = _parsed(host) if self._proxies else None
        return address is not None and any(address in network for network in self._proxies)

    def add(self, connection: Tracked, now: float) -> None:
        """Note a new connection; close others, or else the new one, where there is no room."""
        self._open[connection] = None
        self.head_awaited(connection, now)
        if len(self._open) > self.budget:
            self._make_room(connection, now)

    def remove(self, connection: Tracked) -> None:
        """Forget a connection that is closed or about to be."""
        self.refused.pop(connection, None)
        if self._open.pop(connection, connection) is None:
            self.head_arrived(connection)
            if connection.owner is not None:
                self._owned[connection.owner.address] -= 1
                if not self._owned[connection.owner.address]:
                    del self._owned[connection.owner.address]

    def head_awaited(self, connection: Tracked, now: float) -> None:
        """Note that a request's head is awaited: from a connection's opening, or from the head's first byte."""
        if connection.owner is not None or connection.proxied or connection in self.refused:
            return
        heads = self._waiting[connection.address]
        heads[connection] = None
        if len(heads) > HEADS_PER_ADDRESS:
            oldest = next(iter(heads))
            if now - oldest.since > HEAD_GRACE_SECONDS:
                self._close(oldest, "slow heads")

    def head_arrived(self, connection: Tracked) -> None:
        """Note that no head is awaited any more."""
        heads = self._waiting.get(connection.address)
        if heads is not None:
            heads.pop(connection, None)
            if not heads:
                del self._waiting[connection.address]

    def claim(self, connection: Tracked, owner: Owner) -> None:
        """Make a connection a member's, unless that member owns enough of them."""
        if connection in self._open and connection.owner is None and self._owned[owner.address] < OWNED_CONNECTIONS:
            connection.owner = owner
            self._owned[owner.address] += 1

    def _make_room(self, newest: Tracked, now: float) -> None:
        candidates = [
            (candidate, connection)
            for connection in self._open
            if connection is not newest and (candidate := self._candidate(connection, now)) is not None
        ]
        going = first_to_go(candidates, max(1, self.budget // 100)) or self._beyond_their_share(newest, now)
        for connection in going:
            self._close(connection, "room")
        if not going:
            self._refuse(newest)

    def _beyond_their_share(self, newest: Tracked, now: float) -> list[Tracked]:
        """Return the slowest of the party with the most connections, where the newest one's party has fewer."""
        parties: dict[str, list[Tracked]] = defaultdict(list)
        for connection in self._open:
            if not connection.proxied:
                parties[_party(connection)].append(connection)
        largest = max(parties.values(), key=len, default=[])
        surplus = len(largest) - len(parties[_party(newest)])

        def pace(connection: Tracked) -> tuple[bool, float]:
            return now - connection.since <= HEAD_GRACE_SECONDS, connection.speed(now)

        return sorted(largest, key=pace)[: min(surplus, max(1, self.budget // 100))]

    def _refuse(self, newest: Tracked) -> None:
        self.on_close("full")
        self.remove(newest)
        self.refused[newest] = None
        if len(self.refused) > REFUSED_CONNECTIONS:
            waiting = [(Candidate(STRANGER_WAITING, one.address, one.since), one) for one in self.refused]
            self._close(first_to_go(waiting, 1)[0], "full")

    def _candidate(self, connection: Tracked, now: float) -> Candidate | None:
        if connection.busy:
            return None
        if connection.owner is not None or connection.proxied:
            return Candidate(MEMBER_IDLE, _party(connection), connection.since)
        heads = self._waiting.get(connection.address, {})
        if connection not in heads:
            return Candidate(STRANGER_IDLE, connection.address, connection.since)
        if now - connection.since > HEAD_GRACE_SECONDS or len(heads) > HEADS_PER_ADDRESS:
            return Candidate(STRANGER_WAITING, connection.address, connection.since)
        return None

    def _close(self, connection: Tracked, why: str) -> None:
        self.on_close(why)
        self.remove(connection)
        connection.close_for_room(why)


def connection_budget(descriptors: int) -> tuple[int, int]:
    """Return how many connections a process with so many descriptors may hold, and how many may be accepted at once.

    Set aside are those that are accepted in one go, before they can be counted, and some for files and databases.
    """
    backlog = max(1, min(1024, descriptors // 4))
    reserved = backlog + min(256, descriptors // 4)
    return max(1, min(MAX_CONNECTIONS, descriptors - reserved)), backlog
