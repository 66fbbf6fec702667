"""How long a key's ether lasts: exact numbers, and what to do about it."""

from __future__ import annotations

from muster.chain.gas import LOW_TRANSACTIONS, TRANSACTION_GAS, GasBalance, price_of
from muster.chain.types import Fees

ADDRESS = "0x" + "11" * 20
GWEI = 10**9
ONE = TRANSACTION_GAS * 2 * GWEI
"""Wei of one transaction at 2 gwei."""


def held(balance: int, chain_id: int = 84532) -> GasBalance:
    return GasBalance(ADDRESS, chain_id, balance, 2 * GWEI)


def test_a_balance_is_low_below_so_many_transactions() -> None:
    assert [held(balance).transactions for balance in (0, ONE - 1, ONE, 7 * ONE)] == [0, 0, 1, 7]
    assert held(LOW_TRANSACTIONS * ONE - 1).low
    assert not held(LOW_TRANSACTIONS * ONE).low
    assert GasBalance(ADDRESS, 1, 1, 0).transactions == 1, "a chain whose gas costs nothing"


def test_it_says_how_to_refill() -> None:
    assert held(ONE).sentence == f"{ADDRESS} holds 0.0003 ETH for gas, enough for about 1 transactions"
    assert held(ONE).refill == f"send 0.03 ETH or more to {ADDRESS} on chain 84532: its public faucets give test ether"
    assert held(ONE, 31337).refill == f"muster faucet --ether --to {ADDRESS}"


def test_the_price_of_now_is_half_of_what_survives_a_doubling() -> None:
    assert price_of(Fees(2 * 7 + 3, 3)) == 10
