"""What a run's terms make of dishonesty: at which chances and costs each strategy stops to pay. Pure.

Money is in token wei. A share is between 0 and 1; costs that the contracts do not know are given by the caller.
docs/understand/economics.md derives the formulas. benchmarks/incentives.py lets the same strategies play on the
contracts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import Final

from muster.constants import BASIS_POINTS, TOKEN, UNSEALED_WINDOW_HOURS, WINDOW_HOURS
from muster.protocol.term_bounds import MAX_WAGE_BPS
from muster.protocol.terms import Terms

SEALED_HOURS: Final = WINDOW_HOURS + 1
"""Longest time from a commitment to its pay, in hours that have been sealed: its own hour, and the window after it."""
UNSEALED_HOURS: Final = UNSEALED_WINDOW_HOURS + 1
"""The same in unsealed hours."""
COVERED_HOURS: Final = SEALED_HOURS + 1
"""Of work at full speed that a stake should cover: an hour to spare."""

FEE_COMMITMENTS: Final = 40
"""What the case fee and a judge's deposit are worth, unless an owner says otherwise: so many commitments."""


@dataclass(frozen=True)
class Incentives:
    """The break-even points of one work class."""

    pay: int
    """What a commitment earns."""
    burned: int
    """What a conviction takes for good: the slash, less the bounty, which a convict may have paid to itself."""
    bounty: int
    """What a conviction pays to the party that brought it about."""
    cover: int
    """Commitments whose pay may be unsettled at a time."""
    deposit: int
    """What a judge loses by a vote that the majority does not share, or by none."""
    fee: int
    """What judges share, and what a file that came late costs its node."""

    @classmethod
    def of(cls, terms: Terms, work_class: int) -> Incentives:
        """Return those of a run's terms."""
        pay, cover = terms.pay_of(work_class), terms.cover_of(work_class)
        return cls(pay, terms.burned, terms.bounty, cover, terms.jury_deposit, terms.case_fee)

    def least_detection(self, saved: float) -> float:
        """Return the chance of a conviction per commitment from which on cheating loses.

        saved: share of the pay that a cheater saves on each commitment. A commitment then gains saved × pay and costs
        chance × burned, the pay that a conviction voids not counted.
        """
        return saved * self.pay / self.burned


REPLAY_SHARE: Final = 4 / 9
"""What a replay of a row costs, as a share of what its worker is paid for it: generating costs half of the pay, and
replaying 24 of 128 rows a sixth of that (`validate_over_generate`, docs/change/benchmarks.md)."""
SEAL_GAS: Final = 81_000
GAS_PRICE: Final = 30_000_000_000
"""Token wei for a unit of gas: 0.01 gwei, 3,000 dollars for an ether, a dollar for a token."""
YEARLY: Final = 0.05
"""What a stake would earn elsewhere in a year, as a share of it."""


@dataclass(frozen=True)
class Looking:
    """What looks at work of one class cost and bring, in shares of the pay of a commitment."""

    cost: float
    """Of one look, to its validator."""
    wage: float
    """Of one look."""
    looks: int
    """At each commitment."""
    day: float
    """What a validator's seals and stake cost in a day, however little there is to look at."""

    @classmethod
    def of(cls, terms: Terms, work_class: int) -> Looking:
        """Return those of a run's terms, a node's first commitments not counted."""
        day = 24 * SEAL_GAS * GAS_PRICE + terms.validator_stake * YEARLY / 365
        cost = REPLAY_SHARE * terms.look_rows / terms.positions
        return cls(cost, terms.wage_bps / BASIS_POINTS, terms.accepts_required, day / terms.pay_of(work_class))

    @property
    def owner_share(self) -> float:
        """Return what the owner pays for looks, beside the pay."""
        return self.looks * self.wage

    def income(self, validators: int, hourly: float) -> float:
        """Return what one of so many validators is left with in a day, of so many commitments an hour in all."""
        return 24 * hourly * self.looks / validators * (self.wage - self.cost) - self.day

    def least_rate(self, validators: int) -> float | None:
        """Return the commitments an hour below which it earns nothing; None where it never earns anything."""
        margin = self.income(validators, 1) + self.day
        return self.day / margin if margin > 0 else None

    def alone(self, friends: int, validators: int) -> float:
        """Return the share of the work at which only so many friends of all validators look."""
        return comb(friends, self.looks) / comb(validators, self.looks)


def fair_wage(rows: int, positions: int) -> int:
    """Return the wage in basis points of the pay that leaves a third of it to who replays so many of all rows."""
    return min(MAX_WAGE_BPS, round(1.5 * REPLAY_SHARE * rows / positions * BASIS_POINTS))


@dataclass(frozen=True)
class RunCosts:
    """What a run costs its owner, at the pay of one work class. Money in token wei."""

    pay: int
    files: int
    """Accepted files whose groups fill a batch, if each of them has a signal."""
    most_files: int
    """At which a batch is closed, however few of the groups have one."""
    commitments_per_hour: int

    @classmethod
    def of(cls, terms: Terms, work_class: int, batch_groups: int, max_files: int) -> RunCosts:
        """Return those of a run's terms with the trainer's settings."""
        files = min(-(-batch_groups // terms.groups_per_commitment), max_files)
        return cls(terms.pay_of(work_class), files, max_files, terms.commitments_per_hour)

    @property
    def step(self) -> int:
        """Return what a step costs at least."""
        return self.files * self.pay

    @property
    def most_step(self) -> int:
        """Return what a step costs at most; work that is committed and not used comes besides."""
        return self.most_files * self.pay

    @property
    def worker_hour(self) -> int:
        """Return what a worker at full speed earns in an hour."""
        return self.commitments_per_hour * self.pay

    def escrow(self, steps: int) -> int:
        """Return what pays for so many steps, whatever each costs."""
        return steps * self.most_step

    def steps(self, escrow: int) -> tuple[int, int]:
        """Return how many steps an escrow pays for, at least and at most."""
        return escrow // self.most_step, escrow // self.step

    def bound(self, hours: int) -> int:
        """Return how much of an escrow one worker at full speed keeps reserved, when its pay takes so many hours."""
        return hours * self.worker_hour


def least_stake(pay: int, commitments: int, slash_bps: int, bounty_bps: int) -> int:
    """Return the least stake, but for some wei, whose conviction burns what so many commitments are paid.

    It covers them: so many of a node may be unsettled.
    """
    burned = pay * commitments
    slash = -(-burned * BASIS_POINTS // (BASIS_POINTS - bounty_bps))
    return -(-slash * BASIS_POINTS // slash_bps)


def round_amount(wei: int) -> int:
    """Return an amount that people can say, no smaller than this one.

    It has one digit where that adds a tenth at most, else two. Below a hundredth of a token amounts stay as they are.
    """
    if wei * 100 < TOKEN:
        return wei
    coarse, fine = (_rounded_up(wei, digits) for digits in (1, 2))
    return coarse if coarse * 10 <= wei * 11 else fine


def _rounded_up(wei: int, digits: int) -> int:
    unit = 10 ** (len(str(wei)) - digits)
    return -(-wei // unit) * unit
