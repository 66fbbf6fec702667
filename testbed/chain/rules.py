"""What contracts check, said once more in Python."""

from __future__ import annotations

from muster.protocol.hashes import keccak


def opens_chain(tip: bytes, link: bytes, index: int) -> bool:
    """Return whether `link` is element `index` of the hash chain whose tip is keccak(element 0): `Runs.seal`."""
    value = link
    for _ in range(index + 1):
        value = keccak(value)
    return value == tip
