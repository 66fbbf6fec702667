"""When masters of traps are due, and from how many misses on a validator counts no more."""

from __future__ import annotations

from itertools import product
from math import comb
from typing import Any, cast

import pytest

from muster.grading.masters import Masters
from testbed.samples.terms import TRAPS, terms_of
from trainer.traps import MISSES_LIKELY, TrapKeeper, epochs_needed, epochs_quiet, miss_chance, quiet_step, tail

TERMS = terms_of(
    **{**TRAPS, "trap_epochs": 3, "trap_epoch_steps": 6}, async_level=1, group_size=16, groups_per_commitment=8
)


def test_the_tail_is_the_exact_binomial_one() -> None:
    for judged, chance in product((1, 7, 40), (0.01, 0.3)):
        for misses in range(judged + 1):
            exact = sum(comb(judged, k) * chance**k * (1 - chance) ** (judged - k) for k in range(misses, judged + 1))
            assert tail(misses, judged, chance) == pytest.approx(exact, rel=1e-9)
    assert 0 < tail(700, 3000, 0.2) < MISSES_LIKELY, "many traps are no trouble"


def test_inspection_by_policy_misses_a_third_of_traps_at_most() -> None:
    assert 0.1 < miss_chance(TERMS) < 1 / 3


@pytest.mark.parametrize(
    ("steps", "quiet", "needed"),
    [(0, 0, 0), (6, 0, 0), (9, 0, 0), (10, 1, 0), (12, 1, 1), (15, 1, 1), (16, 2, 1), (18, 2, 2), (900, 2, 2)],
)
def test_a_master_is_due_when_no_work_of_its_epoch_can_come(steps: int, quiet: int, needed: int) -> None:
    assert (epochs_quiet(TERMS, steps), epochs_needed(TERMS, steps)) == (quiet, needed)


@pytest.mark.parametrize("epoch", [1, 2])
def test_no_work_of_an_epoch_can_come_from_its_quiet_step_on(epoch: int) -> None:
    step = quiet_step(TERMS, epoch)
    assert (epochs_quiet(TERMS, step), epochs_quiet(TERMS, step + 1)) == (epoch - 1, epoch)


def test_who_misses_more_than_chance_counts_no_more() -> None:
    nothing = cast(Any, None)
    keeper = TrapKeeper(nothing, nothing, 1, TERMS, Masters.make(3), nothing)
    for index in range(60):
        keeper.missed |= {("honest", "node", index): index % 4 == 0, ("lazy", "node", index): True}
        for name in ("honest", "lazy"):
            keeper._judge(name)  # noqa: SLF001
        surely = miss_chance(TERMS) ** (index + 1) < MISSES_LIKELY
        assert keeper.distrusted == ({"lazy"} if surely else set())
    assert keeper.distrusted == {"lazy"}
