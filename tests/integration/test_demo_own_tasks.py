"""`muster swarm demo --tasks --model`: a whole local swarm on an owner's mixture, with poison among its tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.runs import mixture
from testbed.runs.swarms import demo, processes_of, to_the_end

STEPS = 2
DEMO_SECONDS = 900


@pytest.mark.slow
@pytest.mark.timeout(DEMO_SECONDS + 200)
def test_mixture_run_trains_measures_and_convicts_cheater(tmp_path: Path) -> None:
    model = mixture.make_warm_model(tmp_path / "model", tmp_path / "own")
    tasks = mixture.make_poisoned_mixture(tmp_path / "made").folder
    own = ("--tasks", str(tasks), "--model", str(model), "--budgets", "24", "--max-prompt-tokens", "64")
    words = ("--steps", STEPS, "--workers", "1", "--json")
    summary, said = to_the_end(demo(tmp_path, *own, *words), DEMO_SECONDS)
    assert summary["steps"] == STEPS
    assert all(0 < reward < 1 for reward in summary["reward"])
    assert summary["held_out"]["tasks"] == 20, said
    assert 0.1 < summary["held_out"]["before"] < 0.7
    assert summary["held_out"]["after"] is not None
    nodes = {node["name"]: node for node in summary["nodes"]}
    assert (nodes["worker-1"]["rejected"], summary["restarts"]) == ({}, {})
    assert nodes["worker-1"]["used"] >= STEPS
    assert [slash["node"] for slash in summary["slashes"]] == ["cheater"]
    assert processes_of(tmp_path) == []
