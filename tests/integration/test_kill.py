"""kill -9 at every critical moment of one run: no work is lost or repeated, and training continues.

Every failpoint is armed once for the whole swarm: whichever process gets there first dies there, and its supervisor
starts it again. What must come out is what comes out of an undisturbed run, which `make test-rest` asserts as well
(test_demo.py). This run trains an adapter; that one trains all weights.
"""

from __future__ import annotations

import html
import os
from pathlib import Path
from typing import Any

import pytest

from muster.constants import TOKEN
from muster.protocol.terms_file import LOCAL_DEFAULTS
from muster.runtime.failpoints import POINTS
from muster.swarm.report import lead
from muster.swarm.scenarios import DIGITS
from testbed.runs.swarms import demo, processes_of, to_the_end

pytestmark = pytest.mark.slow

STEPS = 4
FILES_OF_A_STEP = DIGITS.groups_per_batch // DIGITS.groups_per_commitment
STAKE = 1_000 * TOKEN
SECONDS = 1200
OF_PROCESSES = frozenset(
    point
    for point in POINTS
    if not point.startswith(
        ("owner.", "keys.", "up.", "orchestrator.closed", "orchestrator.summarised", "orchestrator.swept")
    )
)
"""Those of an owner are in tests/integration/test_run_init.py, those of who makes a node in test_up.py beside it, and
those of days that go in test_retention_story.py."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("killed")


@pytest.fixture(scope="module")
def survived(folder: Path) -> tuple[set[str], dict[str, Any]]:
    """The failpoints at which some process died, and the document of the swarm that lived on."""
    fired = folder / "fired"
    fired.mkdir()
    armed = {"MUSTER_FAILPOINT": ",".join(sorted(OF_PROCESSES)), "MUSTER_FAILPOINT_DIR": str(fired)}
    adapter = {"MUSTER_TRAINER__LORA_RANK": "8"}
    few = {"MUSTER_TRAINER__EVAL_TASKS": "64"}  # a killed trainer scores its model again
    words = ("--steps", str(STEPS), "--seed", "0", "--json", "--picture", str(folder / "run.svg"))
    document, _ = to_the_end(demo(folder, *words, environment=armed | adapter | few), SECONDS)
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
    assert len({row["root_on_chain"] for row in summary["checkpoints"]}) == STEPS + 1
    assert all(0 < reward < 1 for reward in summary["reward"])
    assert (summary["seed"], summary["held_out"]["tasks"], len(summary["length"])) == (0, 64, STEPS)
    assert set(summary["stage_seconds"]) >= {"prepare", "start", "train", "judge", "claim", "trainer_update"}


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
    assert summary["balances"] == summary["owed"]


def test_the_cheater_was_convicted_all_the_same(survived: tuple[set[str], dict[str, Any]]) -> None:
    _, summary = survived
    (slash,) = summary["slashes"]
    assert (slash["node"], slash["stake_before"], slash["stake_after"]) == ("cheater", STAKE, STAKE // 2)
    assert slash["kind"] in ("activation_mismatch", "sampling_mismatch", "wrong_logprobs")
    assert (slash["bounty"], slash["votes"]["jury"], slash["votes"]["not_guilty"]) == (STAKE // 2 // 5, 3, 0)
    assert slash["votes"]["guilty"] >= 2
    assert slash["challenger"].startswith("validator-")
    claim = next(claim for claim in summary["claims"] if claim["name"] == "cheater")
    cheater = next(node for node in summary["nodes"] if node["name"] == "cheater")
    pay = cheater["commitments"] * LOCAL_DEFAULTS["pay"]
    assert (claim["committed"], claim["voided"], claim["paid"]) == (pay, pay, 0)
    assert (cheater["accepted"], cheater["used"], cheater["earned"]) == (0, 0, 0)
    assert summary["escrow_kept"] == summary["voided"] == pay > 0


def test_the_report_and_the_picture_are_of_this_run(folder: Path, survived: tuple[set[str], dict[str, Any]]) -> None:
    _, summary = survived
    page = (folder / "report.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 4
    assert html.escape(lead(summary)) in page
    assert summary["slashes"][0]["transaction"] in page
    assert (folder / "run.svg").read_text().startswith("<svg")
