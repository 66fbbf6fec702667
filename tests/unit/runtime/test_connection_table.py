"""Which connections go first when there is no room, and how much room there is."""

from __future__ import annotations

import pytest

from muster.runtime.connection_table import (
    MEMBER_IDLE,
    OWNED_CONNECTIONS,
    STRANGER_IDLE,
    STRANGER_WAITING,
    Candidate,
    ConnectionTable,
    Owner,
    address_group,
    connection_budget,
    first_to_go,
)


class Connection:
    """An open connection without a socket."""

    def __init__(self, address: str, since: float = 0.0, *, busy: bool = False, proxied: bool = False) -> None:
        self.address, self.since, self.busy, self.proxied = address, since, busy, proxied
        self.owner: Owner | None = None
        self.closed = ""

    def close_for_room(self, why: str) -> None:
        self.closed = why


def filled(budget: int, *connections: Connection) -> ConnectionTable:
    """Make a table with connections that have been served."""
    table = ConnectionTable(budget)
    for connection in connections:
        table.add(connection, connection.since)
        table.head_arrived(connection)
    return table


def test_ranks_go_in_order_and_the_largest_party_first() -> None:
    candidates = [
        (Candidate(MEMBER_IDLE, "m", 0), "member"),
        (Candidate(STRANGER_IDLE, "a", 5), "a5"),
        (Candidate(STRANGER_IDLE, "a", 6), "a6"),
        (Candidate(STRANGER_IDLE, "a", 7), "a7"),
        (Candidate(STRANGER_IDLE, "b", 1), "b1"),
        (Candidate(STRANGER_IDLE, "b", 2), "b2"),
        (Candidate(STRANGER_WAITING, "c", 9), "slow"),
    ]
    assert first_to_go(candidates, 100) == ["slow", "a5", "b1", "a6", "b2", "a7", "member"]
    assert first_to_go(candidates, 2) == ["slow", "a5"]
    assert first_to_go([], 3) == []


def test_room_is_made_at_strangers_cost() -> None:
    member, idle, busy = Connection("a", 1), Connection("b", 2), Connection("c", 3, busy=True)
    table = filled(3, member, idle, busy)
    table.claim(member, Owner("0x1", is_trainer=False))
    newest = Connection("d", 4)
    table.add(newest, 4)
    assert [one.closed for one in (member, idle, busy, newest)] == ["", "room", "", ""]
    table.head_arrived(newest)
    newest.busy = True
    late, later = Connection("e", 5, busy=True), Connection("f", 6)
    table.add(late, 5)
    assert (member.closed, late.closed) == ("room", ""), "members' go when no stranger's is left"
    table.add(later, 6)
    assert (busy.closed, later.closed, len(table)) == ("", "full", 3), "who is being served stays"


def test_a_newcomer_has_a_moment_to_ask() -> None:
    table = ConnectionTable(2)
    young, old, newest = Connection("a", 9), Connection("b", 1), Connection("c", 10)
    for connection in (old, young, newest):
        table.add(connection, connection.since)
    assert [one.closed for one in (old, young, newest)] == ["room", "", ""]
    last = Connection("d", 10.1)
    table.add(last, 10.1)
    assert [one.closed for one in (young, newest, last)] == ["", "", "full"]


def test_a_member_owns_so_many_connections_and_no_more() -> None:
    connections = [Connection("a", i) for i in range(OWNED_CONNECTIONS + 1)]
    table = filled(1000, *connections)
    owner = Owner("0x1", is_trainer=False)
    for connection in connections:
        table.claim(connection, owner)
    assert [one.owner for one in connections] == [owner] * OWNED_CONNECTIONS + [None]
    table.remove(connections[0])
    table.remove(connections[0])
    table.claim(connections[-1], owner)
    assert connections[-1].owner == owner


def test_a_trusted_proxy_is_no_stranger() -> None:
    table = ConnectionTable(2)
    proxied, stranger, newest = Connection("p", 1, proxied=True), Connection("s", 2), Connection("n", 10)
    for connection in (proxied, stranger, newest):
        table.add(connection, connection.since)
    assert [one.closed for one in (proxied, stranger, newest)] == ["", "room", ""]


@pytest.mark.parametrize(
    ("host", "group"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("", ""),
        ("a unix socket", "a unix socket"),
    ],
)
def test_address_group_is_the_host_or_its_ipv6_prefix(host: str, group: str) -> None:
    assert address_group(host) == group


@pytest.mark.parametrize(
    ("descriptors", "budget", "backlog"),
    [(20_000, 18_720, 1024), (1024, 512, 256), (64, 32, 16), (1 << 20, 65_536, 1024), (1, 1, 1)],
)
def test_connections_leave_descriptors_for_the_rest(descriptors: int, budget: int, backlog: int) -> None:
    assert connection_budget(descriptors) == (budget, backlog)
