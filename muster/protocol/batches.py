"""The leaves of a checkpoint's batch root: what the trainer says on chain that a step was trained on. Pure."""

from __future__ import annotations

from muster.protocol.hashes import hash_bytes
from muster.protocol.merkle import leaf_of_words


def batch_leaf(step: int, node: str, index: int, file_hash: str, root: str, grades: str = "") -> bytes:
    """Return the leaf of one file: policy step, node, index, file hash, Merkle root of its rollouts.

    grades: in a run with private tests the content hash of its grades, which is one word more.
    """
    words = [step, int(node, 16), index, hash_bytes(file_hash), hash_bytes(root)]
    return leaf_of_words([*words, hash_bytes(grades)] if grades else words)
