"""How long a key's ether lasts: exact numbers, and what to do about it."""

from __future__ import annotations

import pytest

from muster.chain.gas import LOW_TRANSACTIONS, TRANSACTION_GAS, GasBalance, hours_text, pace

ADDRESS = "0x" + "11" * 20
GWEI = 10**9
ONE = TRANSACTION_GAS * 2 * GWEI
"""Wei of one transaction at 2 gwei."""


def held(balance: int, chain_id: int = 84532, hourly: float | None = None) -> GasBalance:
    return GasBalance(ADDRESS, chain_id, balance, 2 * GWEI, hourly)


def test_a_balance_is_low_below_so_many_transactions() -> None:
    assert [held(balance).transactions for balance in (0, ONE - 1, ONE, 7 * ONE)] == [0, 0, 1, 7]
    assert held(LOW_TRANSACTIONS * ONE - 1).low
    assert not held(LOW_TRANSACTIONS * ONE).low
    assert GasBalance(ADDRESS, 1, 1, 0).transactions == 1, "a chain whose gas costs nothing"


def test_it_says_how_to_refill() -> None:
    assert held(ONE).sentence == f"{ADDRESS} holds 0.0003 ETH for gas, enough for about 1 transactions"
    assert held(ONE).refill == f"send 0.03 ETH or more to {ADDRESS} on chain 84532: its public faucets give test ether"
    assert held(ONE, 31337).refill == f"muster faucet --ether --to {ADDRESS}"


def test_a_node_s_ether_lasts_for_hours_at_its_pace_and_is_low_a_day_ahead() -> None:
    """A hundred transactions at ten an hour last ten hours, at four an hour twenty-five."""
    ten, four = (held(100 * ONE, hourly=count * TRANSACTION_GAS) for count in (10, 4))
    assert (ten.hours, ten.low) == (10, True)
    assert (four.hours, four.low) == (25, False)
    assert ten.sentence.endswith("enough for about 100 transactions, about 10 hours at its pace")
    assert ten.refill == f"muster node gas --node {ADDRESS}", "its operator's key is elsewhere"
    assert held(0, 31337, hourly=1.0).refill == f"muster faucet --ether --to {ADDRESS}"
    assert held(10**30, hourly=1.0).hours == 1e6
    unknown = held(24 * ONE, hourly=0.0)
    assert (unknown.hours, unknown.low, unknown.refill) == (None, True, f"muster node gas --node {ADDRESS}")


def test_gas_need_is_never_below_the_low_mark() -> None:
    assert held(0, hourly=10 * TRANSACTION_GAS).needed(48) == 480 * ONE
    assert held(0, hourly=TRANSACTION_GAS).needed(24) == LOW_TRANSACTIONS * ONE
    assert held(0).needed(48) == LOW_TRANSACTIONS * ONE


def test_a_pace_is_between_the_first_and_the_last_and_never_above_what_the_terms_allow() -> None:
    assert pace([5.0, 1.0, 3.0], 60) == 0.5
    assert pace([1.0, 1.001], 60) == 60
    assert [pace(few, 60) for few in ([], [1.0], [2.0, 2.0])] == [0, 0, 0]


@pytest.mark.parametrize(
    ("hours", "text"),
    [(0.25, "about 15 minutes"), (2, "about 2 hours"), (47.4, "about 47 hours"), (48, "about 2 days")],
)
def test_a_time_is_said_in_words(hours: float, text: str) -> None:
    assert hours_text(hours) == text
