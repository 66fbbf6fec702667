"""What terms make of dishonesty: the defaults' exact break-even points, and that no allowed terms pay for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.constants import BASIS_POINTS, TOKEN
from muster.protocol.incentives import (
    COVERED_HOURS,
    FEE_COMMITMENTS,
    SEALED_HOURS,
    UNSEALED_HOURS,
    Incentives,
    Looking,
    RunCosts,
    fair_wage,
    least_stake,
    round_amount,
)
from muster.protocol.terms import Terms, WorkClass
from muster.protocol.terms_file import LOCAL_DEFAULTS, PUBLIC_DEFAULTS
from muster.runtime.units import decimal_amount, parse_amount
from muster.verification.sample_policy import detection, false_rows

_UNUSED = dict.fromkeys(("task_root", "model_hash", "tokenizer_hash", "profile"), bytes(32))
_REST = {
    "task_count": 1,
    "classes": (WorkClass(10_000, (8, 12, 16)),),
}
PUBLIC = Terms(**PUBLIC_DEFAULTS, **_UNUSED, **_REST)
LOCAL = Terms(**LOCAL_DEFAULTS, **_UNUSED, **_REST)


class BreakEven(Incentives):
    """The break-even points of one work class; `BreakEven.of(terms, work_class)` returns those of a run."""

    def junk_ratio(self) -> float:
        """Return how many tokens of an owner's escrow junk binds at most, per token that its maker loses."""
        return self.cover * self.pay / self.burned

    def judge_margin(self, share_wrong: float, replay: float, judges: int) -> float:
        """Return what a judge who replays earns more per case than one who votes unseen, in token wei.

        share_wrong: of cases whose verdict is not what the lazy one votes: the guilty ones for who acquits unseen, the
        others for who convicts. replay: its cost in token wei. judges: those whose vote is the verdict. In a case that
        it has wrong, the lazy one loses its deposit, and its part of the fee.
        """
        return share_wrong * (self.deposit + self.fee / judges) - replay

    def least_share_wrong(self, replay: float, judges: int) -> float:
        """Return the share of cases from which on a judge gains by looking."""
        return replay / (self.deposit + self.fee / judges)

    def least_cheaters(self, validators: int, inspection: float) -> float:
        """Return how many convictions per commitment pay for inspecting every one, when validators share bounties.

        inspection: cost of one commitment's, in token wei. With fewer, a validator that inspects does it for something
        else than bounties.
        """
        return validators * inspection / self.bounty if self.bounty else float("inf")

    def least_saving(self, keys: int, work: float, capital: float) -> float:
        """Return the share of work that a node with several keys must save for their stakes to be worth it.

        work: cost of one key's full work in some time, and capital: what a stake would earn elsewhere in it, in the
        same unit.
        """
        return (keys - 1) * capital / work


def test_public_defaults_have_the_expected_break_even() -> None:
    found = BreakEven.of(PUBLIC, 0)
    assert found == BreakEven(
        pay=TOKEN // 4, burned=400 * TOKEN, bounty=100 * TOKEN, cover=1_600, deposit=10 * TOKEN, fee=10 * TOKEN
    )
    assert found.least_detection(1.0) == 1 / 1_600
    assert found.junk_ratio() == 1.0
    # At one guilty case in twenty, six judges and a replay for a twentieth of a token.
    assert found.judge_margin(0.05, TOKEN // 20, 6) == pytest.approx(0.05 * (10 + 10 / 6) * TOKEN - 0.05 * TOKEN)
    assert found.least_share_wrong(TOKEN // 20, 6) == pytest.approx(0.05 / (10 + 10 / 6))
    assert found.least_cheaters(6, TOKEN // 48) == pytest.approx(1 / 800)
    assert found.least_saving(8, work=10.0, capital=0.1) == pytest.approx(0.07)


def test_local_defaults_have_the_expected_incentives() -> None:
    found = Incentives.of(LOCAL, 0)
    assert (found.pay, found.cover) == (TOKEN // 20, 8_000)
    assert found.least_detection(0.5) == 0.5 / 8_000


def test_looking_costs_brings_and_pays_from_a_rate_on() -> None:
    found = Looking.of(PUBLIC, 0)
    assert found == Looking(pytest.approx(1 / 24), 0.0625, 2, pytest.approx(0.7812, abs=1e-4))
    assert found.owner_share == 0.125
    assert [round(found.income(validators, 40), 1) for validators in (4, 5, 6, 9)] == [9.2, 7.2, 5.9, 3.7]
    assert [round(found.least_rate(validators) or 0, 1) for validators in (4, 5, 6, 9)] == [3.1, 3.9, 4.7, 7.0]
    assert found.income(4, found.least_rate(4) or 0) == pytest.approx(0, abs=1e-12)
    assert [found.alone(2, 4), found.alone(2, 5), found.alone(3, 5)] == [1 / 6, 0.1, 0.3]
    assert Looking.of(replace(PUBLIC, wage_bps=400), 0).least_rate(4) is None
    assert [fair_wage(12, positions) for positions in (256, 128, 64, 12)] == [312, 625, 1_250, 5_000]


def test_without_a_bounty_no_number_of_cheaters_pays_an_inspection() -> None:
    assert BreakEven.of(replace(PUBLIC, bounty_bps=0), 0).least_cheaters(6, 1) == float("inf")


@st.composite
def allowed_terms(draw: st.DrawFn) -> Terms:
    """Draw terms whose best class is paid at most the bounty and a quarter of the deposit, as TermBounds demands."""
    weight, pay = draw(st.integers(1_000, 65_535)), draw(st.integers(BASIS_POINTS, 10**20))
    slash_bps, bounty_bps = draw(st.integers(1, BASIS_POINTS)), draw(st.integers(1, 2_000))
    best = pay * weight // BASIS_POINTS
    slash = -(-best * BASIS_POINTS // bounty_bps)
    return replace(
        PUBLIC,
        pay=pay,
        worker_stake=draw(st.integers(-(-slash * BASIS_POINTS // slash_bps), (1 << 96) - 1)),
        slash_bps=slash_bps,
        bounty_bps=bounty_bps,
        jury_deposit=draw(st.integers(4 * best, (1 << 88) - 1)),
        case_fee=draw(st.integers(best, 10**24)),
        classes=(WorkClass(weight, (8,)),),
    )


@given(allowed_terms(), st.data())
def test_one_inspector_makes_any_share_of_false_rows_lose(terms: Terms, data: st.DataObject) -> None:
    positions = data.draw(st.integers(1, 512))
    false = false_rows(positions, data.draw(st.floats(0.001, 1)))
    sample = data.draw(st.integers(1, positions))
    saved = false / positions
    assert detection(positions, false, sample) >= Incentives.of(terms, 0).least_detection(saved) * (1 - 1e-9)


@given(allowed_terms())
def test_junk_binds_no_more_than_it_costs(terms: Terms) -> None:
    found = Incentives.of(terms, 0)
    assert found.pay <= found.bounty
    assert found.cover * found.pay <= found.burned


@given(allowed_terms(), st.integers(1, 254), st.floats(0, 0.2))
def test_looking_pays_a_judge_at_one_guilty_case_in_twenty(terms: Terms, judges: int, replay: float) -> None:
    found = BreakEven.of(terms, 0)
    cost = replay * found.pay
    assert found.judge_margin(0.05, cost, judges) >= -1e-9 * found.pay
    assert found.judge_margin(0.95, cost, judges) > 0
    assert found.least_share_wrong(cost, judges) <= 0.05


# --- What a run costs its owner


def test_step_costs_two_to_four_tokens_with_public_defaults() -> None:
    costs = RunCosts.of(PUBLIC, 0, batch_groups=64, max_files=16)
    assert costs == RunCosts(pay=TOKEN // 4, files=8, most_files=16, commitments_per_hour=60)
    assert (costs.step, costs.most_step) == (2 * TOKEN, 4 * TOKEN)
    assert costs.worker_hour == 15 * TOKEN
    assert costs.escrow(1_000) == 4_000 * TOKEN
    assert costs.steps(4_000 * TOKEN) == (1_000, 2_000)
    assert costs.steps(4 * TOKEN - 1) == (0, 1), "a step that is paid for in part is none"
    assert (SEALED_HOURS, UNSEALED_HOURS) == (25, 73)
    assert costs.bound(SEALED_HOURS) == 375 * TOKEN
    assert costs.bound(UNSEALED_HOURS) == 1_095 * TOKEN


def test_a_batch_takes_whole_files_and_no_more_than_it_may() -> None:
    assert RunCosts.of(PUBLIC, 0, batch_groups=65, max_files=16).files == 9
    assert RunCosts.of(PUBLIC, 0, batch_groups=1, max_files=16).files == 1
    assert RunCosts.of(PUBLIC, 0, batch_groups=640, max_files=16).files == 16


def test_the_least_stake_covers_so_many_commitments_and_some_wei_less_do_not() -> None:
    stake = least_stake(PUBLIC.pay, COVERED_HOURS * PUBLIC.commitments_per_hour, PUBLIC.slash_bps, PUBLIC.bounty_bps)
    assert stake == 975 * TOKEN
    assert replace(PUBLIC, worker_stake=stake).cover_of(0) == 26 * 60
    assert replace(PUBLIC, worker_stake=stake - 10).cover_of(0) == 26 * 60 - 1
    assert round_amount(stake) == PUBLIC.worker_stake, "the defaults are those of the economics"
    assert round_amount(FEE_COMMITMENTS * PUBLIC.pay) == PUBLIC.case_fee == PUBLIC.jury_deposit


@given(
    st.integers(1, 10**24),
    st.integers(1, 10**5),
    st.integers(1, BASIS_POINTS),
    st.integers(0, 2_000),
)
def test_the_least_stake_covers_what_it_should(pay: int, commitments: int, slash_bps: int, bounty_bps: int) -> None:
    stake = least_stake(pay, commitments, slash_bps, bounty_bps)
    terms = replace(PUBLIC, pay=pay, worker_stake=stake, slash_bps=slash_bps, bounty_bps=bounty_bps)
    assert terms.burned >= pay * commitments


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        ("975", "1000"),
        ("828.75", "900"),
        ("1210", "1300"),
        ("9.99", "10"),
        ("10", "10"),
        ("10.01", "11"),
        ("0.5", "0.5"),
    ],
)
def test_amounts_are_rounded_up_to_what_people_say(amount: str, said: str) -> None:
    assert decimal_amount(round_amount(parse_amount(amount))) == said


@given(st.integers(1, 10**30))
def test_a_rounded_amount_is_no_smaller_and_a_tenth_larger_at_most(wei: int) -> None:
    rounded = round_amount(wei)
    assert wei <= rounded <= wei * 11 / 10
    assert rounded == wei or len(str(rounded).rstrip("0")) <= 2
