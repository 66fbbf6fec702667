"""The set-up steps that a node still needs: each run of the command recomputes them."""

from __future__ import annotations

from typing import Any

import pytest

from muster.chain.gas import GasBalance
from muster.console.up.steps import SetupSteps, steps_left
from muster.constants import CHAIN_ANVIL, TOKEN
from muster.contracts.registry import Role, Status
from muster.errors import CheckError, UnfundedError, UsageError
from testbed.samples.joining import CASE, ETHER, GAS, NODE, OPERATOR, OTHER, PRICE, facts


def test_a_newcomer_needs_everything() -> None:
    assert steps_left(facts()) == SetupSteps(ether=ETHER + GAS, draw=True, join=True, gas=GAS)


@pytest.mark.parametrize(
    ("done", "left"),
    [
        ({"operator_ether": TOKEN}, SetupSteps(draw=True, join=True, gas=GAS)),
        ({"operator_ether": TOKEN, "held": 10_000 * TOKEN}, SetupSteps(join=True, gas=GAS)),
        ({"operator_ether": TOKEN, "held": 100 * TOKEN, "short": 0}, SetupSteps(join=True)),
        ({"operator_ether": TOKEN, "held": 99 * TOKEN}, SetupSteps(draw=True, join=True, gas=GAS)),
        ({"operator_ether": TOKEN, "status": Status.ACTIVE}, SetupSteps(gas=GAS)),
        ({"operator_ether": GAS - 1, "status": Status.ACTIVE}, SetupSteps(ether=GAS, gas=GAS)),
        ({"status": Status.ACTIVE, "short": 0}, SetupSteps()),
    ],
)
def test_completed_steps_are_not_repeated(done: dict[str, Any], left: SetupSteps) -> None:
    assert steps_left(facts(**done)) == left
    assert left.nothing == (left == SetupSteps())


def test_gas_that_was_used_a_little_is_not_topped_up() -> None:
    enough = GasBalance(NODE, CHAIN_ANVIL, GAS // 2, PRICE)
    assert not enough.low
    assert steps_left(facts(status=Status.ACTIVE, short=GAS // 2, gas=enough)) == SetupSteps()


def test_gas_that_the_node_uses_up_within_a_day_is_topped_up() -> None:
    lasts_ten_hours = GasBalance(NODE, CHAIN_ANVIL, GAS // 2, PRICE, hourly=GAS / 20 / PRICE)
    left = steps_left(facts(status=Status.ACTIVE, short=GAS // 2, gas=lasts_ten_hours, operator_ether=TOKEN))
    assert left == SetupSteps(gas=GAS // 2)


@pytest.mark.parametrize("status", [Status.RETIRED, Status.JAILED, Status.WITHDRAWN])
def test_a_node_that_has_left_gets_nothing_more(status: Status) -> None:
    assert steps_left(facts(status=status)) == SetupSteps()


def test_the_faucet_is_waited_for_only_where_the_stake_is_short() -> None:
    with pytest.raises(UnfundedError, match=r"the stake is 100 MUST, and 0x0+2 has 99 MUST") as caught:
        steps_left(facts(held=99 * TOKEN, faucet_ready_at=1_001))
    assert "the faucet gives once a day" in caught.value.hint
    assert not steps_left(facts(held=100 * TOKEN, faucet_ready_at=1_001)).draw
    assert steps_left(facts(held=99 * TOKEN, faucet_ready_at=1_000)).draw


def test_a_validator_deposits_tokens_for_its_cases() -> None:
    new = steps_left(facts(Role.VALIDATOR, operator_ether=TOKEN))
    assert (new.draw, new.join, new.deposit) == (True, True, 10 * CASE)
    with_free = steps_left(facts(Role.VALIDATOR, operator_ether=TOKEN, free=200 * TOKEN + CASE, held=10_000 * TOKEN))
    assert (with_free.draw, with_free.deposit) == (False, 9 * CASE)
    poor = steps_left(facts(Role.VALIDATOR, operator_ether=TOKEN, held=200 * TOKEN + 5, faucet_ready_at=2_000))
    assert (poor.draw, poor.join, poor.deposit) == (False, True, 5)
    joined = {"status": Status.ACTIVE, "short": 0, "operator_ether": TOKEN}
    assert steps_left(facts(Role.VALIDATOR, **joined, free=CASE, held=50 * TOKEN)) == SetupSteps()
    spent = steps_left(facts(Role.VALIDATOR, **joined, free=CASE - 1, held=10_000 * TOKEN + CASE - 1))
    assert spent == SetupSteps(deposit=9 * CASE + 1)


def test_a_run_that_does_not_take_it_says_so_before_anything_is_sent() -> None:
    with pytest.raises(CheckError, match="run 1 is closed"):
        steps_left(facts(closed=True))
    with pytest.raises(UsageError, match="run 1 has no work class 1") as caught:
        steps_left(facts(work_class=1))
    assert caught.value.hint == "its classes: 0"
    with pytest.raises(CheckError, match=f"has the validator {OTHER} in run 1: one at most, ever"):
        steps_left(facts(Role.VALIDATOR, other_validator=OTHER))
    with pytest.raises(CheckError, match=f"{OPERATOR} is not on it") as listed:
        steps_left(facts(Role.VALIDATOR, admitted=False))
    assert listed.value.hint == f"ask its owner to type: muster run admit {OPERATOR} 1"
    assert listed.value.exit_code == 3
    assert steps_left(facts(admitted=False)).join, "the list is for validators"
    assert steps_left(facts(Role.VALIDATOR, admitted=False, status=Status.ACTIVE, free=99 * CASE, short=0)).nothing
