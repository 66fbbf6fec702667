"""What a validator is said to earn, against the contract's arithmetic (contracts/libraries/Payouts.sol)."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

import pytest

from muster.console.node.status import validator_income
from testbed.samples.joining import TERMS

TOKEN = 10**18


def amounts(text: str) -> list[str]:
    return re.findall(r"([\d.]+) MUST", text)


@pytest.mark.parametrize(
    ("judges", "least", "most"), [(2, "0.5", "0.5"), (3, "0.333333", "5.5"), (7, "0.142857", "7.75")]
)
def test_a_vote_earns_a_share_of_the_fee_and_of_the_outvoted_deposits(judges: int, least: str, most: str) -> None:
    """Of seven judges four are enough: they share the fee of 1 and three deposits of 10."""
    assert amounts(validator_income(TERMS, judges)["earns"])[-2:] == [least, most]
    majority = judges // 2 + 1
    fee, deposit = Fraction(TERMS.case_fee, TOKEN), Fraction(TERMS.jury_deposit, TOKEN)
    assert float((fee + (judges - majority) * deposit) / majority) == float(most)


def test_too_few_validators_judge_no_case_and_divide_by_nothing() -> None:
    assert validator_income(TERMS, -1) == validator_income(TERMS, 2)
    assert amounts(validator_income(TERMS, 0)["can lose"]) == ["100", "1", "10"]


def test_looks_earn_their_wage_from_a_rate_on() -> None:
    terms = replace(TERMS, wage_bps=1_000, look_rows=12, accepts_required=2)
    assert validator_income(terms, 3)["earns"].startswith(
        "0.005 MUST for each look that counts, twice that for a node's first 4 commitments: with 4 validators and 2 "
        "looks at a commitment more than it costs from "
    )
    assert amounts(validator_income(terms, 3)["earns"])[1:] == amounts(validator_income(TERMS, 3)["earns"])[-4:]
    dear = validator_income(replace(terms, wage_bps=1), 3)["earns"]
    assert "with 4 validators and 2 looks at a commitment less than looks cost; " in dear
    assert validator_income(replace(TERMS, wage_bps=0), 3)["earns"].startswith("looks are unpaid; ")
