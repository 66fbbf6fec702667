"""kill -9 at the awkward moments, all of them in one run: nothing is lost, nothing is done twice, training goes on.

Every failpoint is armed once for the whole swarm: whichever process gets there first dies there, and its supervisor
starts it again. What must come out is what comes out of an undisturbed run. This run trains an adapter; the demo's own
test trains all weights.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from muster.protocol.terms_file import LOCAL_DEFAULTS
from muster.runtime.failpoints import POINTS
from muster.swarm.scenarios import DIGITS
from tests.support.demo_process import processes_of, start, to_the_end

STEPS = 4
FILES_OF_A_STEP = DIGITS.groups_per_batch // DIGITS.groups_per_commitment
SECONDS = 1200
OF_PROCESSES = frozenset(point for point in POINTS if not point.startswith(("owner.", "keys.", "up.")))
"""Those of an owner are in tests/integration/test_run_init.py, those of who makes a node in test_up.py beside it."""


@pytest.fixture(scope="module")
def survived(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], dict[str, Any]]:
    """The failpoints at which some process died, and the document of the swarm that lived on."""
    folder = tmp_path_factory.mktemp("killed")
    fired = folder / "fired"
    fired.mkdir()
    armed = {"MUSTER_FAILPOINT": ",".join(sorted(OF_PROCESSES)), "MUSTER_FAILPOINT_DIR": str(fired)}
    adapter = {"MUSTER_TRAINER__LORA_RANK": "8"}
    few = {"MUSTER_TRAINER__EVAL_TASKS": "64"}  # a trainer that was killed scores its model anew; no score is asserted
    process = start(folder, "--steps", str(STEPS), "--seed", "2", "--json", environment=armed | adapter | few)
    document, _ = to_the_end(process, SECONDS)
    assert processes_of(folder) == []
    return set(os.listdir(fired)), document


@pytest.mark.timeout(SECONDS + 200)
def test_some_process_died_at_every_awkward_moment(survived: tuple[set[str], dict[str, Any]]) -> None:
    fired, summary = survived
    assert fired == OF_PROCESSES
    died = {name.rpartition("-")[0] or name for name in summary["restarts"]}
    assert died >= {"validator", "trainer", "orchestrator"}
    assert died & {"worker", "cheater"}


def test_training_went_on_to_the_end(survived: tuple[set[str], dict[str, Any]]) -> None:
    _, summary = survived
    assert summary["steps"] == len(summary["reward"]) == STEPS
    assert [row["step"] for row in summary["checkpoints"]] == list(range(STEPS + 1))
    assert all(row["root_of_files"] == row["root_on_chain"] for row in summary["checkpoints"])


def test_no_reward_was_lost_and_nothing_was_committed_twice(survived: tuple[set[str], dict[str, Any]]) -> None:
    _, summary = survived
    claims = {claim["name"]: claim for claim in summary["claims"]}
    for node in summary["nodes"]:
        if node["role"] == "worker" and node["honest"]:
            assert node["rejected"] == {}
            assert node["earned"] == claims[node["name"]]["paid"] == node["commitments"] * LOCAL_DEFAULTS["pay"]
    # Two roots for one index, or one file in two batches, would show here.
    assert sum(node.get("used", 0) for node in summary["nodes"]) == STEPS * FILES_OF_A_STEP
    assert summary["solvent"] is True


def test_the_cheater_was_convicted_all_the_same(survived: tuple[set[str], dict[str, Any]]) -> None:
    _, summary = survived
    assert [slash["node"] for slash in summary["slashes"]] == ["cheater"]
    assert {claim["name"]: claim["paid"] for claim in summary["claims"]}["cheater"] == 0
