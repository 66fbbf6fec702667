"""Say what is known of an address: its parts in the run, and the nodes that it operates. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from muster.protocol.keys import ZERO_ADDRESS, Keys
from muster.protocol.messages import Message
from orchestrator.page.leaderboard import MAX_LINES, Others
from orchestrator.page.members import Members
from orchestrator.page.overview import RunIdentity


class OperatedNode(Message):
    """A node, as its operator's page lists it. Money is in token wei, and 0 for a validator."""

    address: str
    name: str
    role: str
    status: str
    accepted_groups: int = 0
    tokens: int = 0
    day: int = 0
    earned: int = 0
    in_window: int = 0


class AddressPart(Message):
    """One part that an address has in the run."""

    text: str
    href: str
    """Page that has more."""


class AddressView(Message):
    run: int
    address: str
    parts: list[AddressPart]
    nodes: list[OperatedNode] = Field(default_factory=list)
    """That it operates, workers first, oldest first; the first of them where it has many."""
    total: int
    accepted_groups: int
    tokens: int
    day: int
    earned: int
    in_window: int
    """Sums over all its nodes."""


def address_view(address: str, known: RunIdentity, keys: Keys, members: Members, others: Others) -> AddressView | None:
    """Return what is known of a checksummed address; None where nothing is."""
    boards = ("worker", members.workers.rows), ("validator", members.validators.rows)
    nodes = [
        OperatedNode(role=role, **{name: row[name] for name in OperatedNode.model_fields if name in row})
        for role, rows in boards
        for row in rows
        if row["operator"] == address
    ]
    sums = ("accepted_groups", "tokens", "day", "earned", "in_window")
    parts = list(_parts(address, known, keys, others))
    if not parts and not nodes:
        return None
    added = {name: sum(getattr(node, name) for node in nodes) for name in sums}
    return AddressView(run=known.run, address=address, parts=parts, nodes=nodes[:MAX_LINES], total=len(nodes), **added)


def _parts(address: str, known: RunIdentity, keys: Keys, others: Others) -> Iterator[AddressPart]:
    """Yield what an address is in the run besides a node or its operator."""
    found = [
        (keys.trainer, "Publishes the steps of this run: its trainer", "/steps"),
        (keys.storage_key, "Signs that files were stored, and the run's document", "/join"),
        (keys.admitter, "Lists the validators of this run", "/join"),
        (known.owner, "Owns this run and pays its escrow", "/"),
        *((contract, f"Is the contract {name}", "/join") for name, contract in known.addresses.items()),
        *((relay.operator, f"Serves weights at {relay.url}", "/leaderboard?list=others") for relay in others.relays),
        *((one.author, f"Signed tasks: {', '.join(one.parts)}", "/leaderboard?list=others") for one in others.authors),
    ]
    for one, text, href in found:
        if one == address != ZERO_ADDRESS:
            yield AddressPart(text=text, href=href)
