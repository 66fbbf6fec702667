"""muster eval --run: a step's weights and the run's tasks come by themselves, checked against the chain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from muster.models.files import model_hash
from testbed.chain.contracts import Deployment
from testbed.commands import MUSTER, run_to_end
from testbed.runs.published_run import published_run


async def typed(folder: Path, *words: object, status: int = 0) -> Any:
    """What a command printed."""
    ended, output, errors = await run_to_end(*MUSTER, *words, "--json", folder=folder)
    assert ended == status, output + errors
    return json.loads(output)


async def test_a_step_of_a_run_is_measured_as_its_workers_are_asked(deployment: Deployment, tmp_path: Path) -> None:
    async with published_run(deployment, tmp_path, "measured") as made:
        measure = ("eval", "--run", made.run, "--samples", "2", "--limit", "6")
        first = await typed(tmp_path, *measure, "--step", "0")
        newest = await typed(tmp_path, *measure)
        missing = await typed(tmp_path, *measure, "--step", "2", status=3)
    for step, told in enumerate((first, newest)):
        assert (told["run"], told["step"], told["tasks"]) == (made.run, step, 6)
        assert told["model_hash"] == "0x" + model_hash(made.models[step]).hex()
        assert told["task_root"] == "0x" + made.task_set.root.hex()
        assert (told["budgets"], told["max_tokens"], told["temperature"]) == ([8, 16], 32, 0.9)
        assert told["profile"] == "cpu-fp32-projection-v2"
        assert [row["k"] for row in told["pass_at_k"]] == [1]
    assert missing["error"] == f"run {made.run} has not published step 2"
