"""Which connections go first when there is no room, and how much room there is."""

from __future__ import annotations

from collections import Counter

import pytest

from muster.runtime.connection_table import (
    MEMBER_IDLE,
    OWNED_CONNECTIONS,
    REFUSED_CONNECTIONS,
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
        self.pace = 0.0
        self.closed = ""

    def speed(self, now: float) -> float:
        return self.pace

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
    assert (busy.closed, list(table.refused), len(table)) == ("", [later], 3), "no party has more than another"


def busy_table(budget: int, **counts: int) -> tuple[ConnectionTable, dict[str, list[Connection]]]:
    """Make a table of requests under way since second 0, so many of each address, each faster than the one before."""
    parties = {name: [Connection(name, 0, busy=True) for _ in range(count)] for name, count in counts.items()}
    everyone = [one for connections in parties.values() for one in connections]
    for number, connection in enumerate(everyone):
        connection.pace = float(number)
    return filled(budget, *everyone), parties


def closed(connections: list[Connection]) -> list[bool]:
    return [one.closed == "room" for one in connections]


def test_the_party_with_the_most_loses_its_slowest_answer() -> None:
    table, parties = busy_table(6, many=4, few=2)
    parties["many"][2].pace = -1.0
    table.add(Connection("new", 10), 10)
    assert (closed(parties["many"]), closed(parties["few"])) == ([False, False, True, False], [False] * 2)


def test_an_answer_has_a_moment_before_it_is_slow() -> None:
    table, parties = busy_table(3, many=3)
    parties["many"][0].since = 8.0
    table.add(Connection("new", 10), 10)
    assert closed(parties["many"]) == [False, True, False]


def test_parties_end_with_equal_shares_and_push_each_other_out_no_more() -> None:
    table, parties = busy_table(256, many=256)
    everyone = parties["many"]
    for number in range(400):
        for name in ("new", "many"):
            late = Connection(name, 10 + number)
            table.add(late, late.since)
            everyone.append(late)
            if late not in table.refused:
                table.head_arrived(late)
                late.busy = True
    held = Counter(one.address for one in everyone if not one.closed and one not in table.refused)
    assert held.total() == len(table) == 256
    assert abs(held["new"] - held["many"]) <= 2
    assert "room" not in {one.closed for one in everyone[-200:]}


def test_a_crowd_of_unfinished_heads_holds_no_more_than_its_share() -> None:
    """Although each is younger than a head may be."""
    table = ConnectionTable(256)
    crowd = [Connection("many", 10) for _ in range(256)]
    for connection in crowd:
        table.add(connection, 10)
    newest = Connection("new", 11)
    table.add(newest, 11)
    assert not table.refused
    assert sum(closed(crowd)) == 2


def test_a_member_is_a_party_wherever_it_connects_from() -> None:
    table, parties = busy_table(6, a=2, b=2, c=2)
    for connection in (parties["a"][1], *parties["b"]):
        table.claim(connection, Owner("0x1", is_trainer=False))
    newest = Connection("d", 10)
    table.add(newest, 10)
    assert [closed(parties[name]) for name in "abc"] == [[False, True], [False] * 2, [False] * 2]


def test_connections_without_room_are_bounded_and_the_largest_address_loses_first() -> None:
    table, _ = busy_table(2, a=1, b=1)
    health = Connection("monitor", 10)
    table.add(health, 10)
    crowd = [Connection("many", 11) for _ in range(100)]
    for connection in crowd:
        table.add(connection, 11)
        table.add(Connection("a", 11), 11)
    assert (len(table), len(table.refused)) == (2, REFUSED_CONNECTIONS)
    assert health in table.refused
    assert crowd[0].closed == "full"
    table.remove(health)
    assert health not in table.refused


def test_a_newcomer_has_a_moment_to_ask() -> None:
    table = ConnectionTable(2)
    young, old, newest = Connection("a", 9), Connection("b", 1), Connection("c", 10)
    for connection in (old, young, newest):
        table.add(connection, connection.since)
    assert [one.closed for one in (old, young, newest)] == ["room", "", ""]
    last = Connection("d", 10.1)
    table.add(last, 10.1)
    assert [one.closed for one in (young, newest, last)] == ["", "", ""]
    assert list(table.refused) == [last]


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
