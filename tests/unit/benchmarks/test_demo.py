"""What a demo costs, by role: helpers of a process count for the one that started them."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.demo import DemoRun, cheated_figures, figures, role_in


@pytest.mark.parametrize(
    ("command", "role"),
    [
        ("/x/.venv/bin/python -P -m validator --config /tmp/swarm/validator-3/muster.toml --wait 600", "validator"),
        ("/x/.venv/bin/python -P -m adversary --config /tmp/swarm/cheater/muster.toml", "cheater"),
        ("/x/.venv/bin/python -m muster model init /tmp/swarm/model --seed 0", "model"),
        ("/x/node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil --host 127.0.0.1", "chain"),
        ("/x/.venv/bin/python -P -m muster.rollouts.sandbox", "trainer"),
    ],
)
def test_a_process_has_the_role_that_its_command_names(command: str, role: str) -> None:
    assert role_in(command.split(), "trainer") == role


def run(cpu: float, after: float, *problems: str) -> DemoRun:
    summary = {"seed": 0, "steps": 40, "held_out": {"before": 0.5, "after": after, "tasks": 640}, "slashes": [{}]}
    return DemoRun(100.0, {"trainer": cpu, "worker": cpu}, [1.0], summary, list(problems))


def test_figures_name_the_least_gain() -> None:
    found = {one["name"]: one for one in figures([run(100, 0.8), run(110, 0.9, "no")])}
    assert list(found) == ["demo_seconds", "demo_gain", "demo_convicted"]
    assert (found["demo_gain"]["ratio"], found["demo_gain"]["mean"], found["demo_gain"]["holds"]) == (0.3, 0.35, True)
    assert (found["demo_convicted"]["ratio"], found["demo_convicted"]["holds"]) == (0.0, False)


def test_a_cheater_is_held_to_the_lower_end_over_pairs_of_demos() -> None:
    workers = [{"role": "worker", "honest": honest, "commitments": 30 * honest + 10} for honest in (True, True, False)]
    pairs = [(run(100, 0.8), run(100, 0.9, "no")), (run(100, 0.9), run(100, 0.9))]
    for cheated, _ in pairs:
        cheated.summary["nodes"] = [*workers, {"role": "validator", "honest": True, "commitments": 0}]
    [found] = cheated_figures(pairs)
    assert found["ratio"] == pytest.approx(-0.05 - 12.71 * statistics.stdev([-0.1, 0.0]) / 2**0.5, abs=1e-3)
    assert found["holds"] is False
    assert [(one["share"], one["wrong"]) for one in found["each"]] == [(0.111, ["no"]), (0.111, [])]
