"""What a validator is said to earn, against the contract's arithmetic (contracts/libraries/Payouts.sol)."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

import pytest

from muster.console.node.status import validator_income
from testbed.samples.joining import TERMS
from testbed.samples.terms import TRAPS

TOKEN = 10**18


def amounts(text: str) -> list[str]:
    return re.findall(r"([\d.]+) MUST", text)


@pytest.mark.parametrize(
    ("judges", "least", "most"), [(2, "0.5", "0.5"), (3, "0.333333", "5.5"), (7, "0.142857", "7.75")]
)
def test_a_vote_earns_a_share_of_the_fee_and_of_the_outvoted_deposits(judges: int, least: str, most: str) -> None:
    """Of seven judges four are enough: they share the fee of 1 and three deposits of 10."""
    assert amounts(validator_income(TERMS, judges)["earns"])[2:] == [least, most]
    majority = judges // 2 + 1
    fee, deposit = Fraction(TERMS.case_fee, TOKEN), Fraction(TERMS.jury_deposit, TOKEN)
    assert float((fee + (judges - majority) * deposit) / majority) == float(most)


def test_too_few_validators_judge_no_case_and_divide_by_nothing() -> None:
    assert validator_income(TERMS, -1) == validator_income(TERMS, 2)
    assert amounts(validator_income(TERMS, 0)["can lose"]) == ["100", "1", "10"]


def test_where_traps_are_planted_looking_earns_and_a_wrong_rejection_costs() -> None:
    terms = replace(TERMS, **TRAPS | {"trap_every": 96, "trap_prize": 48 * TOKEN})
    income = validator_income(terms, 3)
    assert amounts(income["earns"]) == ["48", *amounts(validator_income(TERMS, 3)["earns"])]
    assert amounts(income["can lose"]) == ["0.5", "100", "1", "10"]
    assert "one commitment in 96" in income["earns"]
    assert "nothing without cheating" not in income["earns"]
