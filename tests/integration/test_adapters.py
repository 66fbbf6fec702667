"""A run that trains an adapter: after the first step the adapter is what travels, and every node has the same bits."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from muster.models.lora import CONFIG_NAME, WEIGHTS_NAME, Adapter, Pair
from muster.shardcast.delta.difference import TargetStep
from muster.shardcast.delta.frames import write_frames
from muster.shardcast.format.manifest import TARGET_NAME, Manifest
from muster.shardcast.format.store import read_manifest, verify_folder, version_path, versions
from muster.shardcast.publish import publish
from testbed.samples.models import write_model
from testbed.samples.trainer import batch_of, learner_at
from testbed.waiting import until
from testbed.weights.checkpoints import RUN, SHARD, contents, keeping, publish_steps, replace_difference
from testbed.weights.fetching import get_step
from testbed.weights.servers import Server, relaying

STEPS = 5
PAIRS, RANK, WIDTH = 7, 2, 32
"""Adapted matrices of the model, and their sides."""


@pytest.fixture(scope="module")
def run_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def made(run_fixture: Path) -> list[Manifest]:
    """Return steps 0 to 4 of a trainer in bfloat16, published; the last one whole besides the first."""
    initial = write_model(run_fixture / "initial")
    learner = learner_at(initial, run_fixture / "state", dtype=torch.bfloat16, lora_rank=RANK)
    manifests = []
    for step in range(STEPS):
        if step:
            learner.train_step(*batch_of(step - 1), {})
        learner.written()
        model, adapter = learner.checkpoints.published(step)
        manifests.append(
            publish(
                model,
                run_fixture / "published",
                RUN,
                step,
                shard_bytes=SHARD // 16,
                deltas=keeping(whole=1),
                adapter=adapter,
            )
        )
    return manifests


@pytest.fixture(scope="module")
def origin(run_fixture: Path, made: list[Manifest]) -> Iterator[Server]:
    with Server(run_fixture / "origin", dir=run_fixture / "published") as server:
        yield server


def test_each_step_is_the_adapter_that_leads_there_from_the_first(run_fixture: Path, made: list[Manifest]) -> None:
    held = [read_manifest(version.path) for version in versions(run_fixture / "published")]
    assert {manifest.step for manifest in held if manifest.base_step is None} == {0, STEPS - 1}
    adapters = {manifest.step: manifest for manifest in held if manifest.base_step is not None}
    assert adapters.keys() == set(range(1, STEPS))
    for manifest in adapters.values():
        assert manifest.base_step == 0
        assert [file.name for file in manifest.files] == [CONFIG_NAME, WEIGHTS_NAME, TARGET_NAME]
    weights = next(file.size for file in adapters[1].files if file.name == WEIGHTS_NAME)
    numbers = PAIRS * RANK * (WIDTH + WIDTH)
    assert 4 * numbers < weights < 4 * numbers + 2500, "and a head"


async def test_a_worker_that_has_the_first_step_fetches_adapters_alone(
    made: list[Manifest], origin: Server, tmp_path: Path
) -> None:
    await get_step(made, 0, tmp_path, origin.url)
    for step in range(1, STEPS):
        fetched = await get_step(made, step, tmp_path, origin.url)
        assert fetched.fetched_bytes == 0
        assert 0 < fetched.delta_bytes < made[step].total_bytes / 2
        assert verify_folder(fetched.path, made[step].root).problems == ()


async def test_joiner_fetches_first_step_then_adapters(
    run_fixture: Path, made: list[Manifest], origin: Server, tmp_path: Path
) -> None:
    await get_step(made, STEPS - 2, tmp_path, origin.url)
    assert {version.root for version in versions(tmp_path)} == {made[0].root, made[STEPS - 2].root}
    fetched = await get_step(made, STEPS - 1, tmp_path, origin.url)
    assert fetched.fetched_bytes == 0
    assert 0 < fetched.delta_bytes < made[STEPS - 1].total_bytes / 2
    assert contents(fetched.path) == contents(version_path(run_fixture / "published", made[STEPS - 1].root))


async def test_a_relay_that_comes_late_has_the_first_step_too(
    run_fixture: Path, made: list[Manifest], origin: Server, tmp_path: Path
) -> None:
    """Or it could make no later step, and offer no way to one."""
    async with relaying(tmp_path / "relayed", origin.url, follow=True) as (relay, _):
        wanted = {made[0].root, made[-1].root}
        await until(lambda: wanted <= {version.root for version in versions(tmp_path / "relayed")})
        joiner = await get_step(made, STEPS - 1, tmp_path / "joiner", relay)
    assert contents(joiner.path) == contents(version_path(run_fixture / "published", made[STEPS - 1].root))


async def test_a_stranger_who_offers_a_way_round_by_an_old_step_sells_nothing(
    run_fixture: Path, tmp_path: Path
) -> None:
    """A difference that says it leads there from the first step, and is no adapter, is not worth that step."""
    folder = tmp_path / "stranger"
    steps = publish_steps(tmp_path / "steps", 3)
    shutil.copytree(tmp_path / "steps" / "published", folder)
    draft = tmp_path / "draft"
    draft.mkdir()
    first = TargetStep(version_path(folder, steps[0].root), steps[0])
    assert write_frames(first, TargetStep(version_path(folder, steps[2].root), steps[2]), draft)
    replace_difference(folder, draft, steps[0], steps[2])
    with Server(tmp_path / "server", dir=folder) as server:
        fetched = await get_step(steps, 2, tmp_path / "here", server.url)
    assert {version.root for version in versions(tmp_path / "here")} == {steps[2].root}
    assert fetched.fetched_bytes == steps[2].total_bytes


@pytest.mark.parametrize("unfit", ["of another step", "too large", "cut through"])
def test_an_adapter_that_does_not_make_the_step_is_no_difference(
    run_fixture: Path, made: list[Manifest], tmp_path: Path, unfit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is published then is how the step differs from the one before."""
    learner = learner_at(run_fixture / "initial", tmp_path / "state", dtype=torch.bfloat16, lora_rank=RANK)
    shard_bytes = 1001 if unfit == "cut through" else SHARD // 16
    for step in range(3):
        if step:
            learner.train_step(*batch_of(step - 1), {})
        learner.written()
        model, adapter = learner.checkpoints.published(step)
        if step == 2 and unfit == "of another step":
            adapter = learner.checkpoints.published(1)[1]
        if step == 2 and unfit == "too large":
            assert adapter is not None
            (adapter / CONFIG_NAME).write_text((adapter / CONFIG_NAME).read_text() + " " * 60_000)
        publish(model, tmp_path / "out", RUN, step, shard_bytes=shard_bytes, deltas=keeping(whole=9), adapter=adapter)
    held = [read_manifest(version.path) for version in versions(tmp_path / "out")]
    assert {manifest.base_step for manifest in held if manifest.step == 2} <= {None, 1}
    assert "an adapter is not used as a difference" in capsys.readouterr().out


def test_the_first_step_stays_while_adapters_are_to_it(run_fixture: Path, tmp_path: Path) -> None:
    learner = learner_at(run_fixture / "initial", tmp_path / "state", lora_rank=RANK)
    for step in range(3):
        if step:
            learner.train_step(*batch_of(step - 1), {})
        learner.written()
        model, adapter = learner.checkpoints.published(step)
        few = keeping(whole_every=16, whole=1, seconds=0)
        publish(model, tmp_path / "out", RUN, step, shard_bytes=SHARD // 16, keep=1, deltas=few, adapter=adapter)
    held = [read_manifest(version.path) for version in versions(tmp_path / "out")]
    assert {(manifest.step, manifest.base_step) for manifest in held} == {(0, None), (2, None), (2, 0)}


@pytest.mark.parametrize("lie", ["of another step", "of another shape", "of none"])
async def test_an_adapter_that_lies_costs_only_time(
    run_fixture: Path, made: list[Manifest], tmp_path: Path, lie: str
) -> None:
    """Under a step's name, an adapter that makes something else of the first one."""
    folder = tmp_path / "lies"
    shutil.copytree(run_fixture / "published", folder)
    forged = tmp_path / "forged"
    _forge(run_fixture, forged, lie)
    replace_difference(folder, forged, made[0], made[STEPS - 1])
    with Server(tmp_path / "liar", dir=folder) as liar:
        await get_step(made, 0, tmp_path / "here", liar.url)
        fetched = await get_step(made, STEPS - 1, tmp_path / "here", liar.url)
    assert fetched.fetched_bytes > 0
    assert contents(fetched.path) == contents(version_path(run_fixture / "published", made[STEPS - 1].root))


def _forge(run_fixture: Path, folder: Path, lie: str) -> None:
    if lie == "of none":
        folder.mkdir()
        for name in (CONFIG_NAME, WEIGHTS_NAME):
            (folder / name).write_bytes(b"{}")
        return
    adapter = Adapter.read(run_fixture / "state" / f"{STEPS - 2:06d}" / "adapter")
    if lie == "of another shape":
        pairs = {name: Pair(pair.down[:, :-1].copy(), pair.up) for name, pair in adapter.pairs.items()}
        adapter = replace(adapter, pairs=pairs)
    adapter.write(folder, base_model="step 0")
