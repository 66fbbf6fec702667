"""Say when pay matures: the twin of `contracts/libraries/Windows.sol`. Pure.

Hours count from 1970, moments are seconds of the chain's clock. `sealed_through` is the hour through which a quorum of
validators has sealed; `phases` are the seconds that voting in a case takes at most where a case against the node is
open, else 0.
"""

from __future__ import annotations

from typing import Final

from muster.constants import HOUR_SECONDS, UNSEALED_WINDOW_HOURS, WINDOW_HOURS

RESOLVING_SECONDS: Final = 24 * HOUR_SECONDS
"""Time to end a case after its voting. Changing this breaks the announced end of frozen pay."""


def end_of(hour: int) -> int:
    """Return the second at which an hour ends."""
    return (hour + 1) * HOUR_SECONDS


def matures_at(hour: int, sealed_through: int) -> int:
    """Return when the commitments of an hour mature."""
    window = WINDOW_HOURS if hour <= sealed_through else UNSEALED_WINDOW_HOURS
    return end_of(hour) + window * HOUR_SECONDS


def payable_at(hour: int, sealed_through: int, phases: int) -> int:
    """Return when the commitments of an hour can be claimed."""
    if not phases:
        return matures_at(hour, sealed_through)
    return end_of(hour) + UNSEALED_WINDOW_HOURS * HOUR_SECONDS + phases + RESOLVING_SECONDS


def needed_until(hour: int, phases: int, unbonding: int) -> int:
    """Return until when the detail of the work of an hour is kept: the longest of the protocol's deadlines.

    `phases`: seconds that voting in a case takes. `unbonding`: `Registry.UNBONDING`, in seconds.
    """
    window = UNSEALED_WINDOW_HOURS * HOUR_SECONDS
    return end_of(hour) + max(window + phases + RESOLVING_SECONDS, unbonding)
