"""What cases are about, by the numbers that the chain stores and, but for three of them, does not read.

A challenger can open a case of any number. No evidence is of a kind that has no name here, so judges vote not guilty.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from muster.contracts.refutations import Flaw

NO_ROW: Final = (1 << 32) - 1
"""The row of a case that names none. No commitment has it, and the storage key signs no map of it."""


class Kind(IntEnum):
    """What a case accuses a node of. Changing a number breaks every run; a new one is the last here and in `Reason`.

    The court acts on `DATA_MISSING` and `WRONG_GRADE`, Traps on `SAMPLING_MISMATCH`.
    """

    MALFORMED = 0
    DATA_MISSING = 1
    WRONG_ROOT = 2
    WRONG_DRAW = 3
    WRONG_PROMPT = 4
    OUT_OF_BOUNDS = 5
    WRONG_TERMINATION = 6
    WRONG_REWARD = 7
    SAMPLING_MISMATCH = 8
    ACTIVATION_MISMATCH = 9
    WRONG_LOGPROBS = 10
    WRONG_TOOL = 11
    WRONG_GRADE = 12
    WRONG_SPAN = 13


TICKETED: Final = Kind.SAMPLING_MISMATCH
"""What a case is about that a ticket may end, by the row that it names."""


def kind_of(reason: str) -> Kind:
    """Return the kind of case that a verdict's reason (`muster.protocol.messages.Reason`) leads to."""
    return Kind[reason.upper()]


def reason_of(kind: int) -> str:
    """Return the reason that a case is about, by its number on chain; `unknown_N` where this version knows none."""
    return Kind(kind).name.lower() if kind < len(Kind) else f"unknown_{kind}"


def kind_of_flaw(flaw: Flaw) -> Kind:
    """Return the kind by which validators that read the file name what the contract itself proved of it."""
    if flaw in (Flaw.POSITION_TWICE, Flaw.POSITION_BEYOND):  # a row out of its place makes a file malformed
        return Kind.MALFORMED
    return Kind.OUT_OF_BOUNDS if flaw is Flaw.OUT_OF_BOUNDS else Kind.WRONG_DRAW
