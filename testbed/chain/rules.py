"""What contracts check, said once more in Python."""

from __future__ import annotations

from muster.protocol.hashes import keccak
from muster.protocol.terms import NO_HASH, MasterSeries


def opens_chain(tip: bytes, link: bytes, index: int) -> bool:
    """Return whether `link` is element `index` of the hash chain whose tip is keccak(element 0): `Runs.seal`."""
    value = link
    for _ in range(index + 1):
        value = keccak(value)
    return value == tip


def epochs_to_publish(series: MasterSeries, step: int) -> int:
    """Return how many masters must be public before `step` can be published: `Runs.publish`."""
    if series.tip == NO_HASH:
        return 0
    return max(min(step // series.epoch_steps, series.epochs) - 1, 0)
