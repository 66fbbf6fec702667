"""The commands that prove a flaw and dismiss a case by a receipt, and the guardian's pause."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from muster.chain.client import event_of
from muster.contracts import court, registry, runs
from muster.contracts.court import CaseOpened, Outcome
from muster.contracts.registry import Status
from muster.protocol.eip712 import sign_message
from muster.protocol.hashes import hex_hash
from muster.protocol.kinds import kind_of
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import write_rollouts
from muster.rollouts.schema import Rollout
from testbed.chain.contracts import Deployment
from testbed.machine import Machine
from testbed.runs.run_fixture import RunFixture
from testbed.samples.messages import receipt_of
from testbed.samples.rollouts import rollout

TOKENS = 3
WORKERS = ("honest", "forger", "lost", "odd")


@pytest.fixture(scope="module")
def run_fixture(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    async def build() -> RunFixture:
        built = await RunFixture.build(
            tmp_path_factory.mktemp("run"), deployment.settings, seed="cli slash", workers=WORKERS
        )
        await built.publish(0)
        return built

    return asyncio.run(build())


@pytest.fixture(scope="module")
def stranger(run_fixture: RunFixture, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine with the settings of the run's chain, and a key that has no part in the run."""
    chain = run_fixture.settings
    made = Machine(tmp_path_factory.mktemp("stranger"), chain.rpc_url)
    made.settings(f"run = {run_fixture.run}\n[chain]\nrpc_url = '{chain.rpc_url}'\naddresses = '{chain.addresses}'\n")
    made.secret("stranger.key", run_fixture.secret("stranger"))
    return made


async def rows_of(run_fixture: RunFixture, worker: str) -> list[Rollout]:
    """Rows that are as drawn, for commitment 0 of a worker."""
    async with run_fixture.chain("stranger") as chain:
        terms = await chain.terms(run_fixture.run)
        draw = await chain.draw(run_fixture.run, run_fixture.key(worker).address, 0)
    ones, size = np.ones(TOKENS, np.int32), terms.group_size
    return [
        rollout(
            position,
            ones,
            group_size=size,
            run=run_fixture.run,
            step=0,
            task_reward=0,
            prompt_tokens=ones,
            task=draw.groups[position // size].task,
            seed=seed,
            budget=draw.groups[position // size].budget,
        )
        for position, seed in enumerate(draw.seeds)
    ]


def committed_file(run_fixture: RunFixture, worker: str, rows: list[Rollout], folder: Path) -> Path:
    """A file of these rows, which the worker commits to."""
    asyncio.run(run_fixture.commit(worker, 0, hex_hash(rollout_tree(rows).root)))
    path = folder / f"{worker}.parquet"
    path.write_bytes(write_rollouts(rows))
    return path


def status_of(run_fixture: RunFixture, worker: str) -> Status:
    async def ask() -> Status:
        async with run_fixture.chain("stranger") as chain:
            return (await chain.call(registry.node(run_fixture.key(worker).address))).status

    return asyncio.run(ask())


def test_a_flaw_is_found_in_a_file_and_proven(stranger: Machine, run_fixture: RunFixture, tmp_path: Path) -> None:
    node = run_fixture.key("forger").address
    rows = asyncio.run(rows_of(run_fixture, "forger"))
    rows[5] = replace(rows[5], seed=rows[5].seed ^ 1)
    path = committed_file(run_fixture, "forger", rows, tmp_path)
    words = ("slash", "prove", node, 0, path, "--operator", "./stranger.key")
    wanted = {"node": node, "index": 0, "flaw": "wrong_seed", "position": 5}

    dry = stranger.json(*words, "--dry-run")
    assert (dry["dry_run"], {name: dry[name] for name in wanted}) == (True, wanted)
    assert status_of(run_fixture, "forger") is Status.ACTIVE
    done = stranger.json(*words, "--yes")
    assert {name: done[name] for name in wanted} == wanted
    assert status_of(run_fixture, "forger") is Status.JAILED
    again = stranger.json(*words, "--yes", status=4)
    assert again["revert"] == "NodeGone"


def test_a_file_without_a_flaw_is_proven_nothing(stranger: Machine, run_fixture: RunFixture, tmp_path: Path) -> None:
    node = run_fixture.key("honest").address
    rows = asyncio.run(rows_of(run_fixture, "honest"))
    path = committed_file(run_fixture, "honest", rows, tmp_path)
    words = ("slash", "prove", node, "0", path, "--operator", "./stranger.key", "--yes")
    assert "sees nothing wrong in the 8 rows of this file" in stranger.json(*words, status=3)["error"]
    path.write_bytes(write_rollouts([replace(rows[0], fuel=1), *rows[1:]]))
    assert "did not commit to this file as number 0 at step 0" in stranger.json(*words, status=3)["error"]
    assert status_of(run_fixture, "honest") is Status.ACTIVE


def test_a_case_of_a_kind_without_a_name_is_shown_by_its_number(stranger: Machine, run_fixture: RunFixture) -> None:
    node, root = run_fixture.key("odd").address, hashlib.sha256(b"odd").digest()

    async def accuse() -> int:
        await run_fixture.commit("odd", 0, hex_hash(root))
        async with run_fixture.chain("v2") as chain:
            opened = await chain.send(court.open_case(court.Target(node, 0, 0, root), 255, 0, bytes(32)))
            return event_of(opened, CaseOpened).case_id

    case = asyncio.run(accuse())
    assert stranger.json("slash", "show", case)["kind"] == "unknown_255"


def test_a_receipt_ends_a_case_about_missing_data(stranger: Machine, run_fixture: RunFixture, tmp_path: Path) -> None:
    node, root = run_fixture.key("lost").address, hashlib.sha256(b"lost").digest()

    async def accuse() -> tuple[int, int]:
        await run_fixture.commit("lost", 0, hex_hash(root))
        async with run_fixture.chain("v1") as chain:
            committed = await chain.call(runs.commitment(node, 0))
            opened = await chain.send(
                court.open_case(court.Target(node, 0, 0, root), kind_of("data_missing"), 0, bytes(32))
            )
            return event_of(opened, CaseOpened).case_id, committed.committed_at

    async def outcome() -> tuple[Outcome, int]:
        async with run_fixture.chain("stranger") as chain:
            return (await chain.call(court.case_of(case))).outcome, (await chain.call(runs.work(node))).open_cases

    case, committed_at = asyncio.run(accuse())
    work = {"run": run_fixture.run, "node": node, "root": hex_hash(root)}
    unsigned = receipt_of(**work, size=12_345, stored_at=committed_at)
    path = tmp_path / "receipt.json"
    words = ("slash", "dismiss", case, "--receipt", path, "--operator", "./stranger.key")

    path.write_text("{}")
    assert "is no receipt" in stranger.json(*words, "--yes", status=2)["error"]
    forged = sign_message(run_fixture.key("lost"), run_fixture.domain, unsigned)
    path.write_text(forged.model_dump_json())
    assert "not by the run's storage key" in stranger.json(*words, "--yes", status=3)["error"]
    other = unsigned.model_copy(update={"index": 1})
    path.write_text(sign_message(run_fixture.key("storage"), run_fixture.domain, other).model_dump_json())
    assert "the receipt is for commitment 1" in stranger.json(*words, "--yes", status=3)["error"]
    path.write_text(sign_message(run_fixture.key("storage"), run_fixture.domain, unsigned).model_dump_json())
    assert stranger.json(*words, "--dry-run")["dry_run"] is True
    assert asyncio.run(outcome()) == (Outcome.OPEN, 1)
    assert stranger.json(*words, "--yes")["outcome"] == "dismissed"
    assert asyncio.run(outcome()) == (Outcome.DISMISSED, 0)
    unknown = stranger.json("slash", "dismiss", case + 100, "--operator", "./stranger.key", "--yes", status=3)
    assert unknown["error"] == f"there is no case {case + 100}"


def test_the_guardian_pauses_and_ends_the_pause(machine: Machine) -> None:
    """The deployer is the guardian unless the settings name another address."""
    words, guardian = ("guardian", "pause"), ("--operator", "./owner.key")
    before = machine.json("guardian", "show")
    assert (before["paused"], before["paused_until"]) == (False, None)
    refused = machine.json(*words, "--operator", "./operator.key", "--yes", status=4)
    assert (refused["revert"], "is not the guardian" in refused["error"]) == ("NotGuardian", True)

    assert machine.json(*words, *guardian, "--dry-run")["dry_run"] is True
    assert machine.json("guardian", "show") == before
    until = machine.json(*words, *guardian, "--yes")["paused_until"]
    assert machine.json("guardian", "show") == before | {"paused": True, "paused_until": until}
    assert machine.json("guardian", "unpause", *guardian, "--dry-run")["dry_run"] is True
    assert machine.json("guardian", "unpause", *guardian, "--yes")["paused"] is False
    assert machine.json("guardian", "show")["paused"] is False
    assert machine.json("guardian", "unpause", *guardian, "--yes", status=4)["revert"] == "NotPaused"
    assert machine.json(*words, *guardian, "--yes", status=4)["revert"] == "PauseTooSoon"
