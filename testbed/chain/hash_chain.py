"""Hash chains, opened the way the registry's draw tip is."""

from __future__ import annotations

from eth_utils.crypto import keccak


def opens_chain(tip: bytes, preimage: bytes, index: int) -> bool:
    """Return whether `preimage` is element `index` of the chain whose tip is keccak(element 0)."""
    value = preimage
    for _ in range(index + 1):
        value = keccak(value)
    return value == tip
