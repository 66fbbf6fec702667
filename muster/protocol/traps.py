"""Traps: which commitments are picked, what a ticket's map holds, and what a validator seals of its rejections. Pure.

A trap is a commitment with planted false rows (contracts/interfaces/ITraps.sol). `is_picked` is the twin of
`contracts/libraries/Draws.sol`, the other functions of `contracts/Traps.sol`; forge holds them equal by vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eth_abi.abi import encode

from muster.constants import BASIS_POINTS
from muster.protocol.hashes import keccak
from muster.protocol.merkle import leaf_of_words
from muster.protocol.terms import Terms

TRAP_TAG: Final = "muster.trap.v1"
MAP_SHARE: Final = 8
"""A map has at most one in so many of a commitment's rows."""
HASH_BYTES: Final = 28
"""Of a list's hash in what is sealed; the other four hold the list's length."""


def is_picked(*, master: bytes, entropy: bytes, node: str, index: int, every: int) -> bool:
    """Return whether the lottery picks a commitment as a trap: one in `every`.

    `master`: of the trap epoch of its step (32 bytes). `entropy`: of the step that the node joined for.
    """
    types = ["string", "bytes32", "bytes32", "address", "uint32"]
    word = keccak(encode(types, [TRAP_TAG, master, entropy, node, index]))
    return int.from_bytes(word, "big") % every == 0


def map_leaf(position: int, token: int, salt: bytes) -> bytes:
    """Return the leaf of a map for a planted row. `token`: index of the token that is not the sampler's."""
    return leaf_of_words([position, token, salt])


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
