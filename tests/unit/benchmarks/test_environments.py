"""The benchmark of environments: tiny versions of its attacks and scorings, and the faults that it detects."""

from __future__ import annotations

import socket

import pytest

from benchmarks import environments
from benchmarks.scoring import determinism, scored_validation
from benchmarks.scoring.humaneval import HACKS
from benchmarks.scoring.math_pairs import pairs
from muster.constants import MICRO
from muster.environments.registry import own_manifest
from muster.environments.scoring import Scorers
from muster.sandbox.scorer import Outcome
from testbed.escapes import attacks
from testbed.escapes.attacks import COMPONENT, PROCESS, REACHED, Attack
from testbed.escapes.canaries import canaries
from testbed.escapes.runner import attack_component


def test_there_are_as_many_attacks_as_the_target_asks_for() -> None:
    for wall, found in (("component", COMPONENT), ("process", PROCESS)):
        assert sum(map(len, attacks.TABLE[wall].values())) == len(found) >= 40
    assert len(HACKS) >= 30


def test_some_attacks_of_each_kind_gain_nothing() -> None:
    some = {attack.gain: attack for attack in COMPONENT.values()}
    report = attack_component(list(some.values()), payloads=False)
    assert report.escapes == []
    assert len(report.tried) == 1 + len(some)


def test_an_attack_that_gains_something_is_noticed() -> None:
    loud, false = (
        Attack("component", "", *one) for one in (("says so", "return REACHED"), ("no", "return REACHED + 'no'"))
    )
    report = attack_component([loud, false], payloads=False)
    assert report.escapes == ["says so: it reached what it wanted"]


def test_canaries_notice_what_is_done_to_them() -> None:
    with canaries() as guarded:
        assert guarded.touched() == []
        guarded.file.write_text("other")
        socket.create_connection(("127.0.0.1", guarded.port)).close()
        assert guarded.touched() == ["it connected to the listener", "it changed a file"]
        assert guarded.told_by(Outcome([guarded.secret], 1)) == ["it read the canary file"]
        assert guarded.told_by(Outcome(REACHED, 1)) == []


def test_a_few_scorings_are_the_same_in_unlike_processes() -> None:
    report = determinism.measure(host_rounds=2, call_rounds=1, step=25)
    assert (report["different"], report["which"]) == (0, [])
    assert {"code", "instruction", "math", "reasoning_gym"} <= set(report["by_environment"])
    assert report["total"] >= 4 * len(determinism.cases()[::25])


def test_a_score_that_differs_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(iter(determinism.cases()))
    fuel = iter(range(100))
    monkeypatch.setattr(determinism, "_as_text", lambda score: str(next(fuel) // 3))
    assert determinism.score_all([case], 5, 1, 1) == {"total": 5, "different": [2], "first": ["0"]}


def test_pairs_are_many_unlike_and_the_same_each_time() -> None:
    some = pairs(500)
    assert some == pairs(500)
    assert len(set(some)) == len(some) >= 500
    assert all(gold != answer for gold, answer in some)


@pytest.mark.parametrize("name", ["math", "code"])
def test_tasks_that_are_validated_with_scoring_have_answers_that_the_component_holds_right(name: str) -> None:
    tasks = scored_validation.TASKS_OF[name]()
    manifest = own_manifest(name, scored_validation.OPTIONS[name])
    assert len({task.text for task in tasks}) == len(tasks) == 64
    with Scorers() as scorers:
        for task in tasks[::16]:
            answer = scored_validation.right_answer(scorers.environment(manifest), task, factor=3)
            score = scorers.score(manifest, task, answer)
            assert score.parts == (MICRO,)
            assert score.fuel > 0


def test_a_second_ratio_counts_right_answers_besides() -> None:
    cost = scored_validation.Cost(120.0, 1.0, 9.0, 10.0, calls=7, tokens=12_800, right=0, stopped=1)
    assert (cost.ratio, cost.ratio_all_right) == (12.0, 6.0)
    figure = scored_validation.figure_of("math", [cost])
    assert (figure["ratio"], figure["ratio_all_right"], figure["mean_length"]) == (12.0, 6.0, 100.0)
    assert figure["holds"] is True


def test_the_whole_measures_what_the_targets_ask_for() -> None:
    full, some = environments.FULL, determinism.cases()
    host = sum(case.manifest.name in determinism.HOST for case in some)
    rounds = full.host_rounds * host + full.call_rounds * (len(some) - host)
    assert len(determinism.SETTINGS) * rounds >= 100_000
    assert full.pairs >= 5000
    assert (full.problems, full.tasks, full.commitments) == (1, 285_000, 3)
