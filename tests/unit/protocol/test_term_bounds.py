"""Terms that the contract would refuse are refused earlier, with the term, its bounds and the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.constants import CHAIN_ANVIL, CHAIN_BASE_SEPOLIA, TOKEN
from muster.errors import ConfigError
from muster.protocol.keys import ZERO_ADDRESS, Keys, check_keys
from muster.protocol.term_bounds import REASONS, bounds, check_bounds, weight_bounds
from muster.protocol.terms import Terms, WorkClass
from muster.protocol.terms_file import LOCAL_DEFAULTS, PUBLIC_DEFAULTS

SOMEBODY = "0x" + "11" * 20
_REST = {
    **dict.fromkeys(("task_root", "model_hash", "tokenizer_hash", "profile"), bytes(32)),
    "task_count": 1,
    "classes": (WorkClass(10_000, (8, 12, 16)),),
}
PUBLIC = Terms(**PUBLIC_DEFAULTS, **_REST)  # type: ignore[arg-type]
LOCAL = Terms(**LOCAL_DEFAULTS, **_REST)  # type: ignore[arg-type]


def test_the_defaults_are_taken_where_they_are_for() -> None:
    check_bounds(PUBLIC, CHAIN_BASE_SEPOLIA)
    check_bounds(LOCAL, CHAIN_ANVIL)
    with pytest.raises(ConfigError, match="the term commit_phase is 60 and must be 46,800 to 129,600") as refused:
        check_bounds(LOCAL, CHAIN_BASE_SEPOLIA)
    assert refused.value.hint == "a case of a public run must not require an operator to be awake"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pay": 101 * TOKEN}, r"the term pay is 101 MUST and must be 0\.0{17}1 MUST to 100 MUST"),
        ({"bounty_bps": 4}, r"the term bounty_bps is 4 and must be 5 to 2,000"),
        ({"jury_deposit": TOKEN - 1}, r"the term jury_deposit is 0\.9{18} MUST and must be 1 MUST to "),
        ({"case_fee": 401 * TOKEN}, r"the term case_fee is 401 MUST and must be 0\.25 MUST to 400 MUST"),
        ({"case_fee": 1}, r"the term case_fee is 0\.0{17}1 MUST and must be 0\.25 MUST to 400 MUST"),
        ({"validator_stake": 20 * TOKEN}, r"the term case_fee is 10 MUST and must be .* to 8 MUST"),
        ({"group_size": 4097}, r"the term group_size is 4,097 and must be 1 to 4,096"),
        ({"groups_per_commitment": 257}, r"the term groups_per_commitment is 257 and must be 1 to 256"),
        ({"commitments_per_hour": 256}, r"the term commitments_per_hour is 256 and must be 1 to 255"),
        ({"max_completion_tokens": 15}, r"the term budget is 16 and must be 1 to 15"),
        ({"task_count": 0}, r"the term task_count is 0 and must be 1 to "),
        ({"worker_stake": 1}, r"the term pay is 0\.25 MUST, and no value of it is allowed beside the others"),
        ({"classes": (WorkClass(999, (8,)),)}, r"the term weight is 999 and must be 1,000 to 65,535"),
        (
            {"classes": (WorkClass(10_000, (8,)), WorkClass(20_001, (16,)))},
            r"the term weight is 20,001 and must be 20,000 to 20,000",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_refusal_names_the_term_and_its_range(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        check_bounds(replace(PUBLIC, **change), CHAIN_BASE_SEPOLIA)
    assert refused.value.hint


def test_keys_without_trainer_or_storage_key_are_refused() -> None:
    keys = Keys(SOMEBODY, SOMEBODY, ZERO_ADDRESS)
    check_keys(keys)
    for name in ("trainer", "storage_key"):
        with pytest.raises(ConfigError, match="no trainer or no storage key"):
            check_keys(replace(keys, **{name: ZERO_ADDRESS}))


def test_a_class_is_paid_by_its_mean_budget_and_rounded_either_way() -> None:
    first = WorkClass(10_000, (8, 12, 16))
    assert weight_bounds(WorkClass(0, (24,)), first) == (20_000, 20_000)
    assert weight_bounds(WorkClass(0, (7,)), first) == (5_833, 5_834)


def test_every_reason_belongs_to_a_bound() -> None:
    assert set(REASONS) <= {bound.name for bound in bounds(PUBLIC, local=False)}
