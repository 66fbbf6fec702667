"""What a worker or a validator may do: the strategies that are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final


class Upload(StrEnum):
    """When a worker makes its rows and gives them to the storage."""

    BEFORE = "before it commits"
    ACCUSED = "when it is accused"
    NEVER = "never"


class Vote(StrEnum):
    """How a judge comes to its vote."""

    REPLAY = "replays the evidence"
    ACQUIT = "acquits unseen"
    CONVICT = "convicts unseen"
    COPY = "copies another judge's sealed vote"
    SILENT = "does not vote"


@dataclass(frozen=True)
class Working:
    """A worker's strategy."""

    name: str
    false_share: float = 0.0
    """Of the rows of each commitment: these cost nothing to make."""
    upload: Upload = Upload.BEFORE
    keys: int = 1
    """With several it works on the one whose next draw is the shortest, as much in all as others do with one."""
    waits: bool = False
    """Lets an hour pass where its next draw is longer than the mean."""
    full_rate: bool = False
    """As often as the terms allow, rather than as the assumptions say."""
    is_friend: bool = False
    """A cartel of validators neither accuses nor convicts it."""


@dataclass(frozen=True)
class Validating:
    """A validator's strategy."""

    name: str
    inspects: bool = True
    accuses: bool = True
    """Opens a case about what it found."""
    seals: bool = True
    vote: Vote = Vote.REPLAY
    slanders: float = 0.0
    """Share of honest commitments that it accuses as well."""
    cartel: bool = False
    """Neither accuses nor convicts its cartel's workers."""


HONEST: Final = Working("honest")
CHEATER: Final = Working("cheater, 100 % of rows", false_share=1.0)
SHOPPERS: Final = (Working("shopper, 1 key", waits=True), Working("shopper, 8 keys", keys=8))
FRIEND: Final = Working("friend of a cartel", false_share=1.0, is_friend=True)
WORKERS: Final = (
    *(
        Working(f"cheater, {share:.0%} of rows".replace("%", " %"), false_share=share)
        for share in (0.01, 0.05, 0.1, 0.25)
    ),
    CHEATER,
    Working("junk, full rate", false_share=1.0, full_rate=True),
    Working("late uploader, full rate", upload=Upload.ACCUSED, full_rate=True),
    Working("never uploads, full rate", upload=Upload.NEVER, full_rate=True),
    *SHOPPERS,
)
"""Each is alone among honest ones."""

SLANDERER: Final = Validating("slanderer", slanders=0.02)
FAITHFUL: Final = Validating("honest")
BLIND: Final = Validating("blind sealer", inspects=False)
LAZY_JUDGES: Final = (
    replace(FAITHFUL, name="judge that acquits unseen", vote=Vote.ACQUIT),
    replace(FAITHFUL, name="judge that convicts unseen", vote=Vote.CONVICT),
    replace(FAITHFUL, name="judge that copies", vote=Vote.COPY),
    replace(FAITHFUL, name="judge that is silent", vote=Vote.SILENT),
)
VALIDATORS: Final = (
    *LAZY_JUDGES[:3],
    BLIND,
    replace(BLIND, name="blind sealer that acquits unseen", vote=Vote.ACQUIT),
    replace(FAITHFUL, name="inspects, accuses nobody", accuses=False),
    Validating("silent validator", inspects=False, seals=False, vote=Vote.SILENT),
    SLANDERER,
)

SHIELD: Final = replace(FAITHFUL, name="cartel that shields its worker", cartel=True)
MOB: Final = replace(SHIELD, name="cartel that convicts the honest", slanders=0.02)
