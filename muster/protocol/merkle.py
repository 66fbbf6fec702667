"""Merkle trees as OpenZeppelin builds them: sorted leaves, commutative keccak, leaves hashed twice.

The tree that commits to a rollout file (`muster.rollouts.leaves`) and the one that commits to a checkpoint
(`muster.shardcast.format.manifest`) are both of this kind, so a contract can check either with MerkleProof.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from multiproof.core import get_proof, make_merkle_tree

from muster.protocol.hashes import keccak


def leaf_of_words(words: Iterable[int | bytes]) -> bytes:
    """Compute keccak256(keccak256(abi.encode(words))) of static words: integers, or 32 bytes as they are."""
    encoded = b"".join(word if isinstance(word, bytes) else word.to_bytes(32, "big", signed=word < 0) for word in words)
    return keccak(keccak(encoded))


@dataclass(frozen=True)
class LeafTree:
    """A Merkle tree over hashes in the order given; `proof(i)` opens the i-th of them."""

    nodes: tuple[bytes, ...]
    places: tuple[int, ...]

    @classmethod
    def from_hashes(cls, hashes: Sequence[bytes]) -> LeafTree:
        """Build the tree. Raises ValueError on no leaves."""
        if not hashes:
            raise ValueError("a tree needs at least one leaf")
        order = sorted(range(len(hashes)), key=lambda i: hashes[i])
        nodes = make_merkle_tree([hashes[i] for i in order])
        places = [0] * len(hashes)
        for rank, i in enumerate(order):
            places[i] = len(nodes) - 1 - rank
        return cls(tuple(nodes), tuple(places))

    @property
    def root(self) -> bytes:
        return self.nodes[0]

    def proof(self, i: int) -> list[bytes]:
        """Return sibling hashes from leaf i to the root, as OpenZeppelin's MerkleProof.verify takes them."""
        return list(get_proof(list(self.nodes), self.places[i]))
