"""What cases are about, by the numbers that the chain stores and, but for three of them, does not read.

A case's number is the place of its reason in `muster.protocol.reasons`. A challenger can open a case of any number. No
evidence is of a number without a reason, so judges vote not guilty.
"""

from __future__ import annotations

from typing import Final

from muster.contracts.refutations import Flaw
from muster.protocol.reasons import REASONS, Reason

NO_ROW: Final = (1 << 32) - 1
"""The row of a case that names none. No commitment has it, and the storage key signs no map of it."""

_BY_NUMBER: Final = tuple(REASONS)
_NUMBERS: Final[dict[str, int]] = {reason: number for number, reason in enumerate(REASONS)}


def kind_of(reason: str) -> int:
    """Return the kind of case that a verdict's reason leads to."""
    return _NUMBERS[reason]


def reason_of(kind: int) -> str:
    """Return the reason that a case is about, by its number on chain; `unknown_N` where this version knows none."""
    return _BY_NUMBER[kind] if kind < len(_BY_NUMBER) else f"unknown_{kind}"


def reason_of_flaw(flaw: Flaw) -> Reason:
    """Return the reason by which validators that read the file name what the contract itself proved of it."""
    if flaw in (Flaw.POSITION_TWICE, Flaw.POSITION_BEYOND):  # a row out of its place makes a file malformed
        return "malformed"
    return "out_of_bounds" if flaw is Flaw.OUT_OF_BOUNDS else "wrong_draw"
