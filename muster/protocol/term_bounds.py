"""The bounds of a run's terms, as `contracts/libraries/TermBounds.sol` has them: what `createRun` would refuse.

The owner sees the reason before a transaction is sent. Order and arithmetic are the library's, so that both name the
same term; `tests/integration/test_term_bounds.py` compares the two on a real chain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from muster.constants import BASIS_POINTS, CHAIN_ANVIL, HOUR_SECONDS, MAX_BUDGETS, MAX_CLASSES
from muster.errors import ConfigError
from muster.protocol.terms import Terms, WorkClass
from muster.protocol.terms_file import MONEY
from muster.runtime.units import Tokens

MAX_POSITIONS: Final = 4096
MAX_BOUNTY_BPS: Final = 2_000
DEPOSIT_COMMITMENTS: Final = 4
"""Of the best-paid class: what a judge's deposit is at least."""
MIN_WEIGHT: Final = 1_000
MIN_PAY: Final = BASIS_POINTS
MAX_WAGE_BPS: Final = 5_000

MIN_PHASE: Final = 13 * HOUR_SECONDS
MAX_PHASE: Final = 36 * HOUR_SECONDS
MIN_SENIORITY: Final = 24 * HOUR_SECONDS
MAX_SENIORITY: Final = 48 * HOUR_SECONDS
MIN_STEP_INTERVAL: Final = 60
MAX_STEP_INTERVAL: Final = 3 * 24 * HOUR_SECONDS

REASONS: Final = {
    "pay": "a conviction's bounty, a fifth of the slash at most, must be worth a commitment's pay: raise worker_stake",
    "bounty_bps": "the bounty of a conviction must be worth a commitment's pay: raise worker_stake",
    "jury_deposit": "a vote without a look must cost more than the look: four times the pay at least",
    "case_fee": "a case costs at least a commitment's pay, and at most what a conviction burns of the smaller stake",
    "commit_phase": "a case of a public run must not require an operator to be awake",
    "reveal_phase": "a case of a public run must not require an operator to be awake",
    "groups_per_commitment": f"a commitment has at most {MAX_POSITIONS:,} rows",
    "wage_bps": "a look costs less than the work that it is about: its wage is at most half of the pay",
    "look_rows": "a look replays rows of one commitment: at most all of them",
    "budget": "no budget is above max_completion_tokens",
    "weight": "a class is paid in proportion to the mean of its budgets",
}
"""Why a bound is there, by the term that it is about."""


@dataclass(frozen=True)
class TermBound:
    """One bound: a value, and what it must be between, both included."""

    name: str
    value: int
    least: int
    most: int

    @property
    def holds(self) -> bool:
        return self.least <= self.value <= self.most

    def __str__(self) -> str:
        shown = [Tokens(one).exact if self.name in MONEY else f"{one:,}" for one in (self.value, self.least, self.most)]
        if self.least > self.most:
            return f"the term {self.name} is {shown[0]}, and no value of it is allowed beside the others"
        return f"the term {self.name} is {shown[0]} and must be {shown[1]} to {shown[2]}"


def check_bounds(terms: Terms, chain_id: int) -> None:
    """Raise ConfigError with the reason where the contracts of a chain would refuse to create a run of these terms."""
    for bound in bounds(terms, local=chain_id == CHAIN_ANVIL):
        if not bound.holds:
            raise ConfigError(str(bound), hint=REASONS.get(bound.name, "choose a value within these bounds"))


def bounds(terms: Terms, *, local: bool) -> Iterator[TermBound]:
    """Yield every bound, in the order in which the contract checks them. local: of a run on Anvil."""
    yield from _sizes(terms)
    yield from _times(terms, local)
    yield from _grades(terms)
    yield from _classes(terms)
    yield from _money(terms)


def _bits(count: int) -> int:
    return (1 << count) - 1


def _sizes(terms: Terms) -> Iterator[TermBound]:
    yield TermBound("group_size", terms.group_size, 1, MAX_POSITIONS)
    yield TermBound("groups_per_commitment", terms.groups_per_commitment, 1, MAX_POSITIONS // max(1, terms.group_size))
    yield TermBound("wage_bps", terms.wage_bps, 0, MAX_WAGE_BPS)
    yield TermBound("look_rows", terms.look_rows, 1, terms.positions)
    yield TermBound("commitments_per_hour", terms.commitments_per_hour, 1, _bits(8))
    yield TermBound("accepts_required", terms.accepts_required, 1, _bits(8))
    yield TermBound("seal_quorum", terms.seal_quorum, 2, _bits(8))
    yield TermBound("temperature_micro", terms.temperature_micro, 1, _bits(32))
    yield TermBound("max_prompt_tokens", terms.max_prompt_tokens, 1, _bits(32))
    yield TermBound("max_completion_tokens", terms.max_completion_tokens, 1, _bits(32))
    yield TermBound("task_count", terms.task_count, 1, _bits(32))
    yield TermBound("async_level", terms.async_level, 0, _bits(8))  # the struct's own width


def _times(terms: Terms, local: bool) -> Iterator[TermBound]:
    yield TermBound("commit_phase", terms.commit_phase, 1 if local else MIN_PHASE, MAX_PHASE)
    yield TermBound("reveal_phase", terms.reveal_phase, 1 if local else MIN_PHASE, MAX_PHASE)
    yield TermBound("jury_seniority", terms.jury_seniority, 1 if local else MIN_SENIORITY, MAX_SENIORITY)
    least = 1 if local else MIN_STEP_INTERVAL
    yield TermBound("min_step_interval", terms.min_step_interval, least, MAX_STEP_INTERVAL)


def _grades(terms: Terms) -> Iterator[TermBound]:
    """Private tests have a tip, epochs and their steps, or nothing of these."""
    some = int(terms.has_private_tests)
    yield TermBound("grade_epochs", terms.grade_epochs, some, some * _bits(16))
    yield TermBound("grade_epoch_steps", terms.grade_epoch_steps, some, some * _bits(32))


def _classes(terms: Terms) -> Iterator[TermBound]:
    yield TermBound("classes", len(terms.classes), 1, MAX_CLASSES)
    for one in terms.classes:
        yield TermBound("weight", one.weight_bps, MIN_WEIGHT, _bits(16))
        yield TermBound("budgets", len(one.budgets), 1, MAX_BUDGETS)
        for budget in one.budgets:
            yield TermBound("budget", budget, 1, min(terms.max_completion_tokens, _bits(16)))
        yield TermBound("weight", one.weight_bps, *weight_bounds(one, terms.classes[0]))


def weight_bounds(work_class: WorkClass, first: WorkClass) -> tuple[int, int]:
    """Return the least and the largest weight of a class beside the run's first: what its mean budget demands.

    Less than a basis point off; exact where that is a whole number.
    """
    exact, unit = (
        first.weight_bps * sum(work_class.budgets) * len(first.budgets),
        len(work_class.budgets) * sum(first.budgets),
    )
    return exact // unit, -(-exact // unit)


def _money(terms: Terms) -> Iterator[TermBound]:
    best = max(terms.pay_of(one) for one in range(len(terms.classes)))
    yield TermBound("pay", terms.pay, MIN_PAY, _bits(96))
    yield TermBound("worker_stake", terms.worker_stake, 1, _bits(96))
    yield TermBound("validator_stake", terms.validator_stake, 1, _bits(96))
    yield TermBound("slash_bps", terms.slash_bps, 1, BASIS_POINTS)
    yield TermBound("pay", best, 1, terms.slash * MAX_BOUNTY_BPS // BASIS_POINTS)
    # A slash of nothing ends at the line above.
    yield TermBound("bounty_bps", terms.bounty_bps, -(-best * BASIS_POINTS // max(1, terms.slash)), MAX_BOUNTY_BPS)
    yield TermBound("jury_deposit", terms.jury_deposit, DEPOSIT_COMMITMENTS * best, _bits(88))
    yield TermBound("case_fee", terms.case_fee, best, min(smaller_burn(terms), _bits(88)))


def smaller_burn(terms: Terms) -> int:
    """Return what a conviction burns at least, in token wei, of a worker or a validator: the case fee is no larger."""
    return burn_of(min(terms.worker_stake, terms.validator_stake), terms.slash_bps, terms.bounty_bps)


def burn_of(stake: int, slash_bps: int, bounty_bps: int) -> int:
    """Return what a conviction burns of a stake, in token wei: the slash without the challenger's bounty."""
    slashed = stake * slash_bps // BASIS_POINTS
    return slashed - slashed * bounty_bps // BASIS_POINTS
