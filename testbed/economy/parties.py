"""The parties of a simulated run: what they may do, who they are on chain, and what they earned."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from muster.chain.keys import Signer
from muster.constants import MICRO


@dataclass(eq=False)
class Account:
    """A party on chain."""

    signer: Signer

    @property
    def address(self) -> str:
        return self.signer.address


@dataclass(eq=False)
class Operator(Account):
    """The account that pays the stakes and gets the money."""

    name: str
    given: int = 0
    """Token wei at the beginning."""
    keys: list[str] = field(default_factory=list[str])
    """Its nodes."""
    compute: float = 0.0
    """Spent on work and replays, in tokens."""
    wages: float = 0.0
    """Of its looks, in tokens."""
    capital: float = 0.0
    """What its locked stakes would have earned elsewhere, in tokens."""


@dataclass(eq=False)
class Key(Account):
    """A worker's node."""

    first_step: int
    """It joined for this one."""
    next: int = 0
    """Index of its next commitment."""
    work: list[float] = field(default_factory=list[float])
    """Of its commitments, drawn so far: 1 is the mean."""
    gone: bool = False
    """It commits no more."""


@dataclass
class Worker:
    operator: Operator
    strategy: Working
    keys: list[Key] = field(default_factory=list[Key])
    made: int = 0
    """Commitments."""
    waited_for: int = -1
    """Index that it let an hour pass for already."""
    worked: float = 0.0
    """Sum of their work: 1 is the mean."""


@dataclass(eq=False)
class Validator(Account):
    operator: Operator
    strategy: Validating
    joined: int = 0
    """The hour in which it registered."""
    lost: int = 0
    """Its cases that ended not guilty."""
    gone: bool = False
    """It has been expelled."""


@dataclass
class Commitment:
    """What the world knows of one."""

    worker: Worker
    key: Key
    index: int
    step: int
    root: bytes
    work: float
    uploaded: bool
    false_rows: int = 0
    found_by: list[Validator] = field(default_factory=list[Validator])
    """Validators that saw what is wrong with it, in the order of their turns."""

    @property
    def is_missing(self) -> bool:
        return not self.uploaded and self.worker.strategy.upload is not Upload.BEFORE


@dataclass(frozen=True)
class Income:
    """What a party earned in all, in tokens."""

    name: str
    money: float
    """More or less in its wallet, its free balance and its locks than at the beginning."""
    wages: float
    compute: float
    gas: float
    capital: float
    days: float

    @property
    def net(self) -> float:
        return self.money + self.wages - self.compute - self.gas - self.capital

    @property
    def per_day(self) -> float:
        return self.net / self.days

    def row(self) -> dict[str, Any]:
        """Return it as JSON, per day."""
        names = ("money", "wages", "compute", "gas", "capital")
        parts = {name: round(getattr(self, name) / self.days, 4) for name in names}
        return {"name": self.name, "per_day": round(self.per_day, 4), **parts}


def tokens_of_gas(gas: int, per_million: float) -> float:
    """Return what gas costs in tokens."""
    return gas / MICRO * per_million


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
    copies: bool = False
    """Opens a copy of every case that another opened."""
    late: bool = False
    """Commits its vote, and reveals it, in the last seconds of each phase."""
    shows: bool = True
    """Shows a receipt that it has, which dismisses a case about missing data."""


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
COPYCAT: Final = Validating("copycat", inspects=False, copies=True, vote=Vote.SILENT)
"""Its copy is decided by all honest judges, and the finder's case lacks its vote."""
THROTTLER: Final = replace(BLIND, name="throttler", late=True)
KEEPER: Final = replace(FAITHFUL, name="judge that keeps a receipt to itself", shows=False)
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
    COPYCAT,
    SLANDERER,
)

SHIELD: Final = replace(FAITHFUL, name="cartel that shields its worker", cartel=True)
MOB: Final = replace(SHIELD, name="cartel that convicts the honest", slanders=0.02)
