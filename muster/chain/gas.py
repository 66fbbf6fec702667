"""How many transactions a key's ether pays for, when to warn, and how to get more. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from muster.chain.types import Fees
from muster.constants import CHAIN_ANVIL
from muster.runtime.units import Ether

TRANSACTION_GAS: Final = 150_000
"""More than a node's usual transaction takes: a commitment takes 70,000, a vote or a checkpoint up to 150,000."""

LOW_TRANSACTIONS: Final = 25
"""A key that can pay for fewer at the current price is low."""


@dataclass(frozen=True)
class GasBalance:
    """What a key holds for gas, and the current price."""

    address: str
    chain_id: int
    balance: int
    """Wei."""
    price: int
    """Wei for a unit of gas."""

    @property
    def transactions(self) -> int:
        """Return how many usual transactions it can pay for."""
        return self.balance // max(1, TRANSACTION_GAS * self.price)

    @property
    def low(self) -> bool:
        return self.transactions < LOW_TRANSACTIONS

    @property
    def sentence(self) -> str:
        return (
            f"{self.address} holds {Ether(self.balance)} for gas, enough for about {self.transactions:,} transactions"
        )

    @property
    def refill(self) -> str:
        """Return the hint that brings ether for four times LOW_TRANSACTIONS."""
        return refill(self.address, self.chain_id, 4 * LOW_TRANSACTIONS * TRANSACTION_GAS * self.price)


def price_of(fees: Fees) -> int:
    """Return what a unit of gas costs now, of fees that survive a doubling of the base fee."""
    return (fees.max_fee - fees.tip) // 2 + fees.tip


def refill(address: str, chain_id: int, wei: int) -> str:
    """Return the hint that says how to bring `wei` to an address."""
    if chain_id == CHAIN_ANVIL:
        return f"muster faucet --ether --to {address}"
    return f"send {Ether(wei)} or more to {address} on chain {chain_id}: its public faucets give test ether"
