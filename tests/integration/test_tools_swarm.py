"""A swarm whose model calls a calculator: true conversations are trained on, and made-up results are rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muster.rollouts.parquet import read_rollouts
from muster.rollouts.schema import Rollout
from muster.rollouts.spans import spans_error
from muster.swarm.scenarios import TOOLS
from testbed.runs.swarms import demo, processes_of, to_the_end

STEPS = 3
SECONDS = 900
FILES_OF_A_STEP = TOOLS.groups_per_batch // TOOLS.groups_per_commitment


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """A few steps of the scenario: its folder, its document, and what it said on stderr."""
    folder = tmp_path_factory.mktemp("tools")
    words = ("--scenario", "tools", "--steps", STEPS, "--keep", "--json")
    return folder, *to_the_end(demo(folder, *words), SECONDS)


@pytest.fixture(scope="module")
def rows(finished: tuple[Path, dict[str, Any], str]) -> list[Rollout]:
    """All rows that were committed, the cheater's included."""
    stored = (finished[0] / "swarm" / "storage" / "files").rglob("*")
    files = [path.read_bytes() for path in stored if path.is_file()]
    return [row for data in files if data.startswith(b"PAR1") for row in read_rollouts(data)]


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 200)
def test_conversations_were_committed_accepted_and_trained_on(
    finished: tuple[Path, dict[str, Any], str], rows: list[Rollout]
) -> None:
    summary = finished[1]
    called = [row for row in rows if len(row.call_fuel)]
    assert 0.05 < len(called) / len(rows) < 0.95, "the model has both"
    for row in called:
        assert len(row.spans) == 3
        assert spans_error(row.spans, len(row.completion_tokens)) == ""
        sampled = int(row.spans[0]) + int(row.spans[2] - row.spans[1])
        assert len(row.logprobs) == sampled < len(row.completion_tokens), "nothing is said of what was given"
    assert any(row.task_reward for row in called)
    honest = [node for node in summary["nodes"] if node["role"] == "worker" and node["honest"]]
    assert all(node["rejected"] == {} and node["accepted"] > 0 for node in honest)
    assert sum(node["used"] for node in honest) == STEPS * FILES_OF_A_STEP
    assert summary["steps"] == len(summary["calls"]) == STEPS
    assert all(0.05 < calls < 1.5 for calls in summary["calls"])
    assert np.diff([line["root_on_chain"] != line["root_of_files"] for line in summary["checkpoints"]]).sum() == 0


@pytest.mark.slow
def test_the_node_that_made_results_up_was_rejected_and_convicted(
    finished: tuple[Path, dict[str, Any], str],
) -> None:
    summary = finished[1]
    (cheater,) = (node for node in summary["nodes"] if not node["honest"])
    assert cheater["commitments"] >= 1
    assert set(cheater["rejected"]) == {"wrong_tool"}
    assert (cheater["accepted"], cheater["used"], cheater["earned"]) == (0, 0, 0)
    (slash,) = summary["slashes"]
    assert (slash["node"], slash["kind"], slash["votes"]["not_guilty"]) == ("cheater", "wrong_tool", 0)


@pytest.mark.slow
def test_nothing_is_left_running(finished: tuple[Path, dict[str, Any], str]) -> None:
    assert processes_of(finished[0]) == []
