"""The simulation of traps pays what the contracts pay, and says who earns by looking."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks import incentives_contracts
from benchmarks.incentives import terms
from benchmarks.incentives_contracts import Contracts
from benchmarks.incentives_traps import BLIND, SAMPLE, Group, Looking, Rules, next_shown, play, tickets, winners
from muster.errors import CheckError
from testbed.economy.chain import WorldChain

RULES = Rules(4)
ACTS = {"claim", "settle", "excuse", "unticketed", "withheld", "withdraw"}
RUNS = 12
"""At most. The chain's entropy differs each time, and in every second run nobody stands by for a trap."""
HONEST = Looking("honest", finds=RULES.found(SAMPLE))


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorldChain]:
    with WorldChain.open(tmp_path_factory.mktemp("chain")) as opened:
        yield opened


def by_call(one: Looking, rules: Rules = RULES, group: Group | None = None) -> float:
    worlds = [play(rules, [one] + [HONEST] * (rules.validators - 1), seed, group) for seed in range(8)]
    return float(np.mean([world.net()[0] / world.calls[0] for world in worlds]))


def test_contracts_pay_what_the_rules_say(chain: WorldChain) -> None:
    done, refused = set[str](), 0
    for seed in range(RUNS):
        run = Contracts.begin(chain, terms("public"), seed)
        rows = {row["name"]: row for row in run.check()}
        assert rows["honest"]["paid"] == rows["honest"]["prizes"] > 0
        assert rows["rejects all"]["paid"] < rows["rejects all"]["prizes"]
        assert rows["seals late"]["prizes"] == 0
        done, refused = done | run.gas.keys(), refused + run.refused
        if done >= ACTS:
            break
    assert done >= ACTS
    assert refused > 50


def test_another_rule_is_noticed(chain: WorldChain, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_stands_by(*arguments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        full, standby = winners(*arguments)
        return full, np.zeros_like(standby)

    monkeypatch.setattr(incentives_contracts, "winners", nobody_stands_by)
    runs = (Contracts.begin(chain, terms("public"), seed) for seed in range(RUNS))
    with pytest.raises(CheckError, match=r"Traps.settle went through"):
        deque((run.check() for run in runs), maxlen=0)


def test_next_call_of_the_hour_needs_a_leaf() -> None:
    called = np.array([1, 0, 1, 1], dtype=bool)
    leaf = np.array([1, 0, 0, 1], dtype=bool)
    assert next_shown(called, leaf).tolist() == [False, False, True, True]


def test_lowest_hash_wins_only_where_no_called_validator_claims() -> None:
    called = np.array([[1, 0], [0, 0], [0, 0]], dtype=bool)
    hashes = np.array([[0.1, 0.9], [0.5, 0.8], [0.4, 0.7]])
    claimed = np.array([[1, 1], [1, 1], [1, 0]], dtype=bool)
    full, standby = winners(called, hashes, claimed)
    assert full.tolist() == [[True, False], [False, False], [False, False]]
    assert standby.tolist() == [[False, False], [False, True], [False, False]]


def test_looking_pays_more_than_half_a_look_and_than_none() -> None:
    half = Looking("half", finds=RULES.found(SAMPLE // 2), cost=0.5)
    assert by_call(HONEST) > by_call(half) + 0.25 > by_call(BLIND) + 1


def test_two_who_share_looks_save_the_looks_at_what_both_are_called_for() -> None:
    base = play(RULES, [HONEST] * 4, seed=1)
    shared = play(RULES, [HONEST] * 4, seed=1, group=Group(2, shares=True))
    assert shared.looks[:2].sum() < base.looks[:2].sum()
    assert (shared.looks[2:] == base.looks[2:]).all()


def test_no_prize_without_a_seal_in_time() -> None:
    late = Looking("late", finds=1.0, seals="late")
    assert play(RULES, [late] + [HONEST] * 3, seed=1).prizes[0] == 0


@pytest.mark.slow
def test_ticket_share_falls_with_what_standing_by_pays() -> None:
    whole, short = tickets(Rules(4, window=math.inf), seeds=4), tickets(RULES, seeds=4)
    assert 0.3 < whole["bought"] < short["bought"] < short["knows"]
