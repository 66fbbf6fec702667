"""The parties of a simulated run: who they are on chain, and what they earned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from muster.chain.keys import Signer
from muster.constants import MICRO
from testbed.economy.strategies import Upload, Validating, Working


@dataclass(eq=False)
class Account:
    """Somebody on chain."""

    signer: Signer

    @property
    def address(self) -> str:
        return self.signer.address


@dataclass(eq=False)
class Operator(Account):
    """Whoever pays the stakes and gets the money."""

    name: str
    given: int = 0
    """Token wei at the beginning."""
    keys: list[str] = field(default_factory=list[str])
    """Its nodes."""
    compute: float = 0.0
    """Spent on work and replays, in tokens."""
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
    suspects: set[str] = field(default_factory=set[str])
    """Nodes that it found at fault."""
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
    compute: float
    gas: float
    capital: float
    days: float

    @property
    def net(self) -> float:
        return self.money - self.compute - self.gas - self.capital

    @property
    def per_day(self) -> float:
        return self.net / self.days

    def row(self) -> dict[str, Any]:
        """Return it as JSON, per day."""
        parts = {name: round(getattr(self, name) / self.days, 4) for name in ("money", "compute", "gas", "capital")}
        return {"name": self.name, "per_day": round(self.per_day, 4), **parts}


def tokens_of_gas(gas: int, per_million: float) -> float:
    """Return what gas costs in tokens."""
    return gas / MICRO * per_million
