"""The simulation of looking plays the rules: exact sums for who is honest, silent, late, or invents."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks.incentives_looks import (
    HONEST,
    HONEST_NET,
    alone,
    binomial,
    found,
    honest_calls,
    lost,
    owners,
    steps_until_accused,
)
from benchmarks.looking_world import LOOK, TERMS, Looking, World, cheap_draws
from muster.protocol.looks import FIRST_COMMITMENTS, checked_rows

ALL = Looking("invents all", false=1.0)


def test_honest_looks_cost_c_and_are_paid_one_and_a_half() -> None:
    assert pytest.approx((1 / 24, 0.5)) == (LOOK, HONEST_NET)
    world = World([Looking(HONEST)] * 4, hours=24)
    played = world.play()
    assert world.work == 24 * 40
    looks = 2 * (world.work + 10 * FIRST_COMMITMENTS + sum(hour % 12 == 0 for hour in range(1, 24)) * FIRST_COMMITMENTS)
    assert sum(one.cost for one in played) == sum(one.calls for one in played) == pytest.approx(looks, abs=8)
    for one in played:
        assert one.paid == pytest.approx(1.5 * one.cost)
        assert one.rows == 12 * one.calls
        assert one.checked == pytest.approx(checked_rows(one.rows), rel=0.1)
    assert (world.waited, world.late, sum(world.blocked.values())) == (0, 0, 0)


def test_who_invents_all_is_found_with_the_first_check_and_never_paid() -> None:
    world = World([ALL] + [Looking(HONEST)] * 3, hours=48)
    lazy, *others = world.play()
    assert lazy.paid == 0
    assert [round(hours) for hours in lazy.found.values()] == [3]
    assert sum(lazy.false.values()) == pytest.approx(3 * 20, abs=15), "then it is called last"
    assert sum(one.calls for one in others) / 3 > 1.25 * honest_calls(4, 40, 2, TERMS)[1]


def test_cheaper_arithmetic_that_passes_is_paid() -> None:
    row = alone(Looking("cheaper", false=1.0, cost=0.5, passes=True), 4, 40, 2)
    assert row["net"] == pytest.approx(HONEST_NET + 0.5)
    assert row["saved"] == pytest.approx(0.5)


def test_a_silent_seat_is_called_last_after_three_lapses_a_day() -> None:
    row = alone(Looking("silent", answers=0.0), 4, 40, 2)
    assert (row["net"], row["saved"]) == (0, 1)
    assert row["waited"] == pytest.approx(2 * 3 / (48 * 40), abs=0.001)


def test_late_verdicts_and_links_are_unpaid() -> None:
    assert alone(Looking("late", after=120), 4, 40, 2)["net"] < 0
    late = alone(Looking("unlinked", unlinked=True), 4, 40, 2)
    assert -1 <= late["net"] < -0.4


def test_one_that_rejects_all_holds_work_back_until_the_next_list() -> None:
    row = alone(Looking("rejects all", rejects=True), 4, 40, 3)
    assert row["blocked_first_day"] == pytest.approx(20, abs=10)
    assert (row["blocked"], row["net"]) == (0, 0)


def test_friends_replay_shared_rows_once_and_own_work_costs_nothing() -> None:
    friends = World([Looking(HONEST)] * 3, hours=24, friends=2).play()
    assert friends[0].cost + friends[1].cost < 0.95 * (friends[0].calls + friends[1].calls)
    assert friends[2].cost == friends[2].calls
    assert World([Looking("own", own=10)] * 2, hours=6).play()[0].cost == 0


def test_a_skipper_of_dear_rows_pays_for_the_others() -> None:
    assert cheap_draws(float("inf")) == 1
    assert 0.9 < cheap_draws(1.1) < 1


def test_one_accept_halves_the_calls() -> None:
    one = replace(TERMS, accepts_required=1)
    ratio = sum(honest_calls(4, 40, 2, one)) / sum(honest_calls(4, 40, 2, TERMS))
    assert ratio == pytest.approx(0.5, abs=0.01)


def test_every_key_is_found_once_and_its_false_looks_are_not_paid() -> None:
    row = found(ALL, 4, 40, 2)
    assert (row["paid"], row["paid_of_all"]) == (0, 0)
    assert 2 < row["hours"] < 3
    assert row["keys"] == pytest.approx(4 * 48 / 3, abs=2)


def test_honest_seats_are_lost_by_two_finds_in_one_check() -> None:
    few, many = (lost(4, rate, 4_000)["share"] for rate in (40, 400))
    assert few < 0.004 < many < 0.03


def test_a_sum_of_rare_chances_has_its_mean() -> None:
    source = random.Random(1)
    assert sum(binomial(source, 3_600, 1e-3) for _ in range(2_000)) == pytest.approx(7_200, rel=0.05)


def test_an_owner_that_counts_nobody_is_seen_after_nine_hours() -> None:
    silent, *_, notice = owners()
    assert (silent["hours"], silent["spent"]) == (9, pytest.approx(7.5))
    assert (notice["hours"], notice["spent"]) == (0, 0)


def test_a_node_whose_every_step_is_false_is_accused_in_twelve() -> None:
    assert steps_until_accused(4, 5, 1) == 12
