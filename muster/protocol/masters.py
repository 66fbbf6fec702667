"""The masters of a run's private tests: epochs, and hash chains. Pure.

Epoch e, counted from 1, covers the steps from (e - 1) * epoch_steps up to e * epoch_steps; the last epoch goes on for
ever. Masters are a hash chain: m_e = keccak256(m_(e+1)), and the tip in the run's terms is keccak256(m_1). So a master
yields all earlier ones, and is checked by the terms alone.
"""

from __future__ import annotations

from muster.errors import MalformedError, MismatchError
from muster.protocol.hashes import keccak
from muster.protocol.terms import NO_HASH, MasterSeries


def epoch_of(series: MasterSeries, step: int) -> int:
    """Return the epoch, from 1, that a step is in; 0 where the run has no such masters."""
    if series.tip == NO_HASH:
        return 0
    return min(step // series.epoch_steps + 1, series.epochs)


def epochs_trained(series: MasterSeries, step: int, async_level: int) -> int:
    """Return of how many epochs no work can be trained on at this step or a later one; the last ends with the run."""
    return max(min((step - async_level) // series.epoch_steps, series.epochs - 1), 0)


def earlier_master(master: bytes, epoch: int, wanted: int) -> bytes:
    """Return the master of epoch `wanted`, out of that of the same or a later epoch; for epoch 0, the tip.

    Raises MalformedError when the wanted epoch is later: its master does not follow.
    """
    if not 0 <= wanted <= epoch:
        raise MalformedError(f"the master of epoch {wanted} does not follow from that of epoch {epoch}")
    for _ in range(epoch - wanted):
        master = keccak(master)
    return master


def check_master(series: MasterSeries, epoch: int, master: bytes) -> None:
    """Raise MismatchError unless `master` is that of an epoch of the series."""
    if not 1 <= epoch <= series.epochs or earlier_master(master, epoch, 0) != series.tip:
        raise MismatchError(f"this is not the master of epoch {epoch}: it does not lead to the tip in the run's terms")
