"""Say what is known of an address: its parts in the run, and the nodes that it operates. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from explorer.leaderboard import MAX_LINES, Others, WorkSums
from explorer.members import Members
from explorer.overview import RunIdentity
from muster.protocol.keys import ZERO_ADDRESS, Keys
from muster.protocol.messages import Message


class OperatedNode(WorkSums):
    """A node, as its operator's page lists it. The sums are 0 for a validator."""

    address: str
    name: str
    role: str
    status: str


class AddressPart(Message):
    """One part that an address has in the run."""

    text: str
    href: str
    """Page that has more."""


class AddressView(WorkSums):
    """What is known of an address, with sums over all its nodes."""

    run: int
    address: str
    parts: list[AddressPart]
    nodes: list[OperatedNode] = Field(default_factory=list)
    """That it operates, workers first, oldest first; the first of them where it has many."""
    total: int


def address_view(address: str, known: RunIdentity, keys: Keys, members: Members, others: Others) -> AddressView | None:
    """Return what is known of a checksummed address; None where nothing is."""
    boards = ("worker", members.workers.rows), ("validator", members.validators.rows)
    nodes = [
        OperatedNode(role=role, **{name: row.get(name, 0) for name in OperatedNode.model_fields if name != "role"})
        for role, rows in boards
        for row in rows
        if row["operator"] == address
    ]
    parts = list(_parts(address, known, keys, others))
    if not parts and not nodes:
        return None
    added = {name: sum(getattr(node, name) for node in nodes) for name in WorkSums.model_fields}
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
