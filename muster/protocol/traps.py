"""Traps: commitments whose node was asked to plant false rows, so that validators find something where all are honest.

A lottery that only the owner can draw decides which commitments are asked for; it says so to the node alone, by a
*promise* that the storage key signs. The node plants in exactly `planted_rows` rows (`muster.verification.planting`)
and writes a *map* of them. Under the map's root both sign one *ticket*: the node once it has the receipt of its file,
whose second is the ticket's (that signature is its *consent*), and the storage key after it, only before the
commitment. The ticket ends a case about a row of the map. When the master of the step's epoch is shown, everyone sees
which commitments were picked, and maps are public: a trap is *opened*.

What follows from an opened trap: its planted rows are no evidence. They enter no pool and no tally of a
node, make it no suspect, and lead to no case; all other rows of the commitment, and its true rows in pools, count as
in other work (`OpenedTrap.rows`). A rejection for a row of the map is right, and counts for the validator.

Each function here is pure. `weight` and `is_picked` are twins of `contracts/libraries/Draws.sol`, what is signed,
`map_leaf`, `vouched_leaf`, `rejection_leaf` and `sealed_rejections` of `contracts/Traps.sol`; tests hold them equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eth_abi.abi import encode

from muster.constants import BASIS_POINTS
from muster.contracts.codec import Transaction
from muster.contracts.court import Target
from muster.contracts.traps import Row, Ticket, show_ticket
from muster.errors import MalformedError, MismatchError
from muster.protocol.eip712 import Domain, recover_signer
from muster.protocol.hashes import hash_bytes, hex_hash, keccak
from muster.protocol.keys import RunKeys
from muster.protocol.masters import check_master, earlier_master, epoch_of
from muster.protocol.merkle import LeafTree, leaf_of_words
from muster.protocol.messages import OpenedTrap, TrapMap, TrapPromise, TrapTicket
from muster.protocol.terms import Terms

TRAP_TAG: Final = "muster.trap.v1"
MAP_SHARE: Final = 8
"""A map has at most one in so many of a commitment's rows."""
FIRST_COMMITMENTS: Final = 4
"""A node's first commitments, of which validators replay twice as many rows. Changing this changes which are traps."""
HASH_BYTES: Final = 28
"""Of a list's hash in what is sealed; the other four hold the list's length."""


def weight(first: int, end: int) -> int:
    """Return what looking at a node's commitments from `first` to before `end` weighs: its first ones count twice.

    So that a look at more rows earns more: these are traps twice as often, and reserve twice the premium.
    """
    return end - first + min(end, FIRST_COMMITMENTS) - min(first, FIRST_COMMITMENTS)


def is_picked(*, master: bytes, entropy: bytes, node: str, index: int, every: int) -> bool:
    """Return whether the lottery picks a commitment as a trap: as many in `every` as it weighs.

    `master`: of the trap epoch of its step (32 bytes). `entropy`: of the step that the node joined for.
    """
    types = ["string", "bytes32", "bytes32", "address", "uint32"]
    word = keccak(encode(types, [TRAP_TAG, master, entropy, node, index]))
    return int.from_bytes(word, "big") % every < weight(index, index + 1)


def map_leaf(position: int, token: int, salt: bytes) -> bytes:
    """Return the leaf of a map for a planted row. `token`: index of the token that is not the sampler's."""
    return leaf_of_words([position, token, salt])


def planted_rows(positions: int, index: int) -> int:
    """Return in how many of its rows a node's commitment number `index` (from 0) is false, if it is a trap.

    So many that a validator's sample (`rows_to_replay`) has 1.5 of them on average.
    """
    return max(1, positions // (MAP_SHARE * weight(index, index + 1)))


def rows_to_replay(positions: int, index: int) -> int:
    """Return how many rows a validator replays of such a commitment: of 128 rows 12, and 24 of a newcomer's."""
    return min(positions, -(-3 * positions // (2 * planted_rows(positions, index))))


def row_salt(salt: str, position: int) -> bytes:
    """Return the salt of one leaf of a map: each has its own, so that one opened leaf says nothing of the others."""
    return keccak(hash_bytes(salt) + position.to_bytes(4, "big"))


def map_tree(planted: TrapMap) -> LeafTree:
    """Return the tree over a map's rows, in their order."""
    leaves = [map_leaf(row.position, row.token, row_salt(planted.salt, row.position)) for row in planted.rows]
    return LeafTree.from_hashes(leaves)


def ticket_call(step: int, ticket: TrapTicket, consent: TrapTicket) -> Transaction[None]:
    """Return the call that shows a ticket to the contract. `step`: of its commitment."""
    target = Target(ticket.node, ticket.index, step, hash_bytes(ticket.root))
    signed = [bytes.fromhex(one.signature[2:]) for one in (ticket, consent)]
    return show_ticket(target, Ticket(hash_bytes(ticket.map_root), ticket.stored_at), *signed)


def shown_row(planted: TrapMap, position: int) -> Row:
    """Return a row of a map as the contract takes it. Raises MismatchError where the map does not have it."""
    for place, row in enumerate(planted.rows):
        if row.position == position:
            return Row(position, row.token, row_salt(planted.salt, position), map_tree(planted).proof(place))
    raise MismatchError(f"row {position} was not planted")


def check_map(terms: Terms, index: int, planted: TrapMap, map_root: str) -> None:
    """Raise MalformedError unless a map names exactly as many rows as it must, MismatchError if its root is another."""
    positions, count = [row.position for row in planted.rows], planted_rows(terms.positions, index)
    if positions != sorted(set(positions)) or len(positions) != count:
        raise MalformedError(f"a map names {count} rows, each once and in order")
    if positions[-1] >= terms.positions or any(row.token >= terms.max_completion_tokens for row in planted.rows):
        raise MalformedError("a map names a row, or a token, that no commitment has")
    if (found := hex_hash(map_tree(planted).root)) != map_root:
        raise MismatchError(f"the map's root is {found}, not {map_root}")


def check_promise(where: Domain, promise: TrapPromise, keys: RunKeys, now: int) -> bool:
    """Return whether the storage key of second `now` signed a promise: by any other key it promises nothing."""
    try:
        return recover_signer(where, promise).lower() == keys.at(now).storage_key.lower()
    except MalformedError:
        return False


def check_consent(where: Domain, consent: TrapTicket) -> None:
    """Raise MismatchError unless the node itself signed the ticket: that its commitment has this map."""
    signer = recover_signer(where, consent)
    if signer.lower() != consent.node.lower():
        raise MismatchError(f"the map is signed by {signer}, not by the node {consent.node}")


def check_ticket(where: Domain, ticket: TrapTicket, consent: TrapTicket, keys: RunKeys) -> None:
    """Raise MismatchError unless the storage key of its second signed a ticket, for just what the node signed."""
    signer, storage_key = recover_signer(where, ticket), keys.at(ticket.stored_at).storage_key
    if signer.lower() != storage_key.lower():
        raise MismatchError(f"the ticket is signed by {signer}, not by the run's storage key {storage_key}")
    for name in ("run", "node", "index", "root", "map_root", "stored_at"):
        ours, theirs = getattr(ticket, name), getattr(consent, name)
        if str(ours).lower() != str(theirs).lower():
            raise MismatchError(f"the ticket's {name} is {ours} and that of the node's signature {theirs}")


def check_opened(
    where: Domain,
    opened: OpenedTrap,
    *,
    terms: Terms,
    keys: RunKeys,
    step: int,
    entropy: bytes,
    epoch: int,
    master: bytes,
) -> None:
    """Raise CheckError unless an opened trap is one: picked, with a ticket of both keys, and the map that these name.

    `step`, `entropy`: of the commitment and of its node, from the chain; `master`: that of `epoch` or a later one. What
    is left to compare with the chain is that the commitment has the ticket's root, and is later than the ticket.
    """
    check_master(terms.trap_series, epoch, master)
    check_consent(where, opened.consent)
    check_ticket(where, opened.ticket, opened.consent, keys)
    check_map(terms, opened.ticket.index, opened.map, opened.ticket.map_root)
    of_step = earlier_master(master, epoch, epoch_of(terms.trap_series, step))
    node, index = opened.ticket.node, opened.ticket.index
    if not is_picked(master=of_step, entropy=entropy, node=node, index=index, every=terms.trap_every):
        raise MismatchError(f"commitment {index} of {node} was not picked to be a trap")


def true_rows(positions: Sequence[int], opened: OpenedTrap | None) -> list[int]:
    """Return those of some rows of a commitment that say something of its node: all that were not planted."""
    planted = set() if opened is None else opened.rows
    return [position for position in positions if position not in planted]


def vouched_leaf(bare: bytes, salt: bytes) -> bytes:
    """Return the hidden leaf by which a validator vouches: the sorted pair of IRefutations.vouchLeaf and its salt.

    As OpenZeppelin's Hashes.commutativeKeccak256, so that the salt is the first element of the leaf's Merkle proof.
    """
    return keccak(min(bare, salt) + max(bare, salt))


def rejection_leaf(node: str, index: int, root: bytes, position: int, salt: bytes) -> bytes:
    """Return the hidden leaf by which a validator rejects a commitment for a row."""
    return keccak(encode(["address", "uint32", "bytes32", "uint32", "bytes32"], [node, index, root, position, salt]))


def sealed_rejections(leaves: Sequence[bytes]) -> bytes:
    """Return what `seal` takes of an hour's list of rejections: 28 bytes of its hash, and its length.

    With no rejections: 32 zero bytes.
    """
    if not leaves:
        return bytes(32)
    return keccak(b"".join(leaves))[:HASH_BYTES] + len(leaves).to_bytes(32 - HASH_BYTES, "big")


def premium_bps(terms: Terms) -> int:
    """Return what a commitment reserves for who finds traps, in basis points of its pay, rounded up."""
    if not terms.has_traps:
        return 0
    return -(-3 * terms.accepts_required * terms.trap_prize * BASIS_POINTS // (2 * terms.trap_every * terms.pay))


def fine(terms: Terms) -> int:
    """Return what rejecting true work costs, in token wei: as much as a look at any commitment earns on average."""
    return terms.trap_prize // terms.trap_every if terms.has_traps else 0
