"""muster eval --run: a step's weights and the run's tasks come by themselves, checked against the chain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.models.files import model_hash
from muster.tasksets.taskset import TaskSet
from testbed.chain.contracts import Deployment
from testbed.processes import Muster
from testbed.runs.world import published


def typed(folder: Path, *words: object, status: int = 0) -> Any:
    """What a command printed."""
    with Muster((*words, "--json"), folder / "err", output=folder / "out", folder=folder) as process:
        ended, said = process.end()
    assert ended == status, said
    return process.document


@pytest.mark.slow
def test_a_step_of_a_run_is_measured_as_its_workers_are_asked(deployment: Deployment, tmp_path: Path) -> None:
    with published(deployment, tmp_path, "measured") as world:
        run = world.run_fixture.run
        measure = ("eval", "--run", run, "--samples", "2", "--limit", "6")
        first = typed(tmp_path, *measure, "--step", "0")
        newest = typed(tmp_path, *measure)
        missing = typed(tmp_path, *measure, "--step", "2", status=3)
    for step, result in enumerate((first, newest)):
        assert (result["run"], result["step"], result["tasks"]) == (run, step, 6)
        assert result["model_hash"] == "0x" + model_hash(world.run_fixture.checkpoint(step)).hex()
        assert result["task_root"] == "0x" + TaskSet.open(tmp_path / "run" / "tasks").root.hex()
        assert (result["budgets"], result["max_tokens"], result["temperature"]) == ([8, 16], 32, 0.9)
        assert result["profile"] == "cpu-fp32-projection-v3"
        assert [row["k"] for row in result["pass_at_k"]] == [1]
    assert missing["error"] == f"run {run} has not published step 2"
