"""How many transactions and hours a key's ether pays for, when to warn, and how to get more. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from muster.constants import CHAIN_ANVIL
from muster.protocol.announcements import MAX_GAS_HOURS
from muster.runtime.units import Ether

TRANSACTION_GAS: Final = 150_000
"""More than a node's usual transaction takes: a vote or a checkpoint up to 150,000."""

COMMITMENT_GAS: Final = 70_000
"""More than a worker's commitment takes: benchmarks/gas.snapshot.json."""

DUTY_TRANSACTIONS: Final = 2
"""That a validator sends in an hour, where nothing is known of it: a seal, and one for a case."""

LOW_TRANSACTIONS: Final = 25
"""A key that can pay for fewer at the current price is low."""

LOW_HOURS: Final = 24.0
"""So is a node's whose gas is used up sooner at its pace."""


@dataclass(frozen=True)
class GasBalance:
    """What a key holds for gas, and the current price."""

    address: str
    chain_id: int
    balance: int
    """Wei."""
    price: int
    """Wei for a unit of gas."""
    hourly: float | None = None
    """Gas that a node takes in an hour, at the pace of its last transactions; 0: not known. None: of no node."""

    @property
    def hours(self) -> float | None:
        """Return how long it lasts at the node's pace; None where that is not known."""
        return min(self.balance / (self.hourly * max(1, self.price)), MAX_GAS_HOURS) if self.hourly else None

    @property
    def transactions(self) -> int:
        """Return how many usual transactions it can pay for."""
        return self.balance // max(1, TRANSACTION_GAS * self.price)

    @property
    def low(self) -> bool:
        return self.transactions < LOW_TRANSACTIONS or (self.hours is not None and self.hours < LOW_HOURS)

    @property
    def sentence(self) -> str:
        lasts = "" if self.hours is None else f", {hours_text(self.hours)} at its pace"
        transactions = f"enough for about {self.transactions:,} transactions"
        return f"{self.address} holds {Ether(self.balance)} for gas, {transactions}{lasts}"

    @property
    def refill(self) -> str:
        """Return the hint that brings more; ether for four times LOW_TRANSACTIONS to a key that is no node's."""
        if self.hourly is not None and self.chain_id != CHAIN_ANVIL:
            return f"muster node gas --node {self.address}"
        return refill(self.address, self.chain_id, 4 * LOW_TRANSACTIONS * TRANSACTION_GAS * self.price)

    def needed(self, hours: float) -> int:
        """Return the wei that last so long at the node's pace, and pay for LOW_TRANSACTIONS at least."""
        return self.price * math.ceil(max(hours * (self.hourly or 0.0), LOW_TRANSACTIONS * TRANSACTION_GAS))


def pace(moments: Sequence[float], most: float) -> float:
    """Return how many a time unit lie between the first and the last of some moments; `most` where that is more."""
    passed = max(moments) - min(moments) if moments else 0.0
    return min((len(moments) - 1) / passed, most) if passed > 0 else 0.0


def hours_text(hours: float) -> str:
    """Return a time in words: hours, of more than two days days."""
    if hours < 2:
        return f"about {hours * 60:.0f} minutes"
    return f"about {hours:.0f} hours" if hours < 48 else f"about {hours / 24:,.0f} days"


def refill(address: str, chain_id: int, wei: int) -> str:
    """Return the hint that says how to bring `wei` to an address."""
    if chain_id == CHAIN_ANVIL:
        return f"muster faucet --ether --to {address}"
    return f"send {Ether(wei)} or more to {address} on chain {chain_id}: its public faucets give test ether"
