"""A case about a step that every juror has dropped: they fetch what it can be made of, replay it, and convict.

Real chain, orchestrator, origin and replays. Of the step only the difference to the one before is left anywhere.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import torch

from muster.contracts import registry
from muster.contracts.court import CaseOpened, CaseResolved, Outcome, VoteRevealed
from muster.contracts.registry import Status
from muster.rollouts.parquet import write_rollouts
from muster.shardcast.fetch.delta_fetch import DELTAS
from muster.shardcast.format.store import read_manifest, version_path, versions
from testbed.processes import run_to_end
from testbed.runs.world import World, commit_bytes, rows_of
from testbed.waiting import until
from testbed.weights.checkpoints import keeping

OLD, NEWEST = 1, 6
KEPT = keeping(whole_every=16, whole=1)


async def verify(world: World, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """`muster validator verify` or `muster slash verify`: exit code, document and stderr."""
    config = world.run_fixture.folder / "v4" / "muster.toml"
    command = (sys.executable, "-m", "validator", "--config", config, *arguments, "--json")
    status, output, errors = await run_to_end(*command)
    return status, json.loads(output or "{}"), errors


@pytest.mark.slow
async def test_a_jury_convicts_on_a_step_that_all_have_dropped(world: World) -> None:
    run_fixture = world.run_fixture
    torch.set_num_threads(1)
    old = await run_fixture.publish_model(OLD, KEPT)
    cheat = run_fixture.key("w1").address
    await commit_bytes(world, "w1", write_rollouts(await rows_of(world, "w1", lambda _: {}, OLD)), OLD)
    for step in range(OLD + 1, NEWEST + 1):
        newest = await run_fixture.publish_model(step, KEPT)
    assert not version_path(run_fixture.folder / "published", old.root).exists()

    world.settings("v4")
    code, document, said = await verify(world, "verify", f"{cheat}:0")
    assert (code, document["good"], document["step"]) == (3, False, OLD), said
    for words in (f"fetching step={OLD} ", "fetching differences ", "differences=1 ", f"replaying step={OLD} rows=16"):
        assert words in said

    jurors = ("v1", "v2", "v3")
    async with world.validators(*jurors):

        async def jailed() -> bool:
            async with run_fixture.chain("stranger") as chain:
                return (await chain.call(registry.node(cheat))).status == Status.JAILED

        await until(jailed, "the cheat is jailed")
    for name in jurors:
        held = versions(run_fixture.state(name) / "weights")
        assert {read_manifest(version.path).step for version in held} == {0, OLD, NEWEST}
        assert {old.root, newest.root} < {version.root for version in held}
        fetched = [read_manifest(one.path) for one in versions(run_fixture.state(name) / "weights" / DELTAS)]
        assert (OLD, 0) in {(one.step, one.base_step) for one in fetched}, "the step came as a difference"
    ended, *_ = await world.events(CaseResolved)  # each validator may have opened one
    (opened,) = [event for event in await world.events(CaseOpened) if event.case_id == ended.case_id]
    assert (ended.outcome, opened.node, opened.step) == (Outcome.GUILTY, cheat, OLD)
    revealed = [event for event in await world.events(VoteRevealed) if event.case_id == ended.case_id]
    assert [event.guilty for event in revealed] == [True] * len(revealed)
    assert len(revealed) >= 2

    code, document, said = await verify(world, "case", str(ended.case_id))
    assert (code, document["guilty"], document["node"]) == (0, True, cheat), said
