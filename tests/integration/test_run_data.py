"""Checkpoints on their way to a node: of the model that the terms promise, or refused. Real chain, real origin."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
import torch

from muster.clients.relays import Relays
from muster.clients.run_data import NEWEST, CheckpointFetcher
from muster.contracts import runs
from muster.errors import MalformedError, MismatchError
from muster.models.files import tokenizer_hash
from muster.models.init import make_model, make_tokenizer, save_model
from muster.settings.schema import ShardcastSettings
from muster.shardcast.format.store import read_manifest, used, versions
from muster.shardcast.publish import publish
from muster.shardcast.retention import StepRetention
from testbed import hostile_steps
from testbed.chain.contracts import Deployment
from testbed.runs.run_fixture import RunFixture
from testbed.samples.models import SMALL, write_model
from testbed.weights.checkpoints import keeping
from testbed.weights.servers import odd_source


async def test_a_step_whose_work_nobody_could_judge_reaches_no_engine(deployment: Deployment, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    promised = tokenizer_hash(folder)
    run_fixture = await RunFixture.build(
        tmp_path, deployment.settings, seed="loud", workers=(), tokenizer_hash=promised
    )
    served = tmp_path / "published"
    async with run_fixture.chain("trainer") as trainer, run_fixture.local_chain() as dev, odd_source(served) as source:
        terms, settings = await trainer.terms(run_fixture.run), ShardcastSettings(relays=[source[0]])
        checkpoints = CheckpointFetcher(trainer, terms, Relays(settings, None, run_fixture.run), tmp_path / "node")
        for step in range(2):
            if step:
                loud = partial(hostile_steps.loud, k=1e9)
                folder = hostile_steps.save_hostile(folder, tmp_path / "loud", loud)
            manifest = publish(folder, served, run_fixture.run, step, shard_bytes=1 << 20, keep=4)
            await dev.advance(2)
            await trainer.send(runs.publish_checkpoint(run_fixture.run, step, manifest.root, bytes(32)))
        await checkpoints.get(0)
        with pytest.raises(MalformedError, match="the last norm times the head"):
            await checkpoints.get(1)


async def test_a_step_whose_stop_token_was_changed_reaches_no_engine(deployment: Deployment, tmp_path: Path) -> None:
    tokenizer, models = make_tokenizer(), [tmp_path / f"model-{step}" for step in (0, 1)]
    for step, folder in enumerate(models):
        model = make_model(tokenizer, SMALL, seed=step)
        model.config.eos_token_id += step
        save_model(model, tokenizer, folder)
    promised = tokenizer_hash(models[0])
    run_fixture = await RunFixture.build(
        tmp_path, deployment.settings, seed="config", workers=(), tokenizer_hash=promised
    )
    served = tmp_path / "published"
    async with run_fixture.chain("trainer") as trainer, run_fixture.local_chain() as dev:
        for step, folder in enumerate(models):
            manifest = publish(folder, served, run_fixture.run, step, shard_bytes=1 << 20, keep=4)
            await dev.advance(2)
            await trainer.send(runs.publish_checkpoint(run_fixture.run, step, manifest.root, bytes(32)))
        async with odd_source(served) as (url, _, _):
            terms, settings = await trainer.terms(run_fixture.run), ShardcastSettings(relays=[url])
            relays = Relays(settings, None, run_fixture.run)
            checkpoints = CheckpointFetcher(trainer, terms, relays, tmp_path / "node")
            assert tokenizer_hash(await checkpoints.get(0)) == promised
            with pytest.raises(MismatchError, match="step 1 has a tokenizer or configuration"):
                await checkpoints.get(1)


async def test_a_node_that_has_a_step_gets_the_next_one_as_what_changed(deployment: Deployment, tmp_path: Path) -> None:
    tokenizer, models = make_tokenizer(), [tmp_path / f"model-{step}" for step in (0, 1)]
    model = make_model(tokenizer, SMALL, seed=0)
    for folder in models:
        save_model(model, tokenizer, folder)
        with torch.no_grad():
            next(model.parameters())[:2] += 1e-3
    promised = tokenizer_hash(models[0])
    run_fixture = await RunFixture.build(
        tmp_path, deployment.settings, seed="changes", workers=(), tokenizer_hash=promised
    )
    served = tmp_path / "published"
    async with (
        run_fixture.chain("trainer") as trainer,
        run_fixture.local_chain() as dev,
        odd_source(served) as (url, _, stats),
    ):
        terms, settings = await trainer.terms(run_fixture.run), ShardcastSettings(relays=[url])
        relays = Relays(settings, None, run_fixture.run)
        checkpoints = CheckpointFetcher(trainer, terms, relays, tmp_path / "node")
        for step, folder in enumerate(models):
            manifest = publish(folder, served, run_fixture.run, step, shard_bytes=1 << 16, deltas=StepRetention())
            await dev.advance(2)
            await trainer.send(runs.publish_checkpoint(run_fixture.run, step, manifest.root, bytes(32)))
            before = stats.served_bytes
            path = await checkpoints.get(step)
            assert (path / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert before > manifest.total_bytes
    assert stats.served_bytes - before < manifest.total_bytes / 10


async def test_held_checkpoint_survives_newer_steps(deployment: Deployment, tmp_path: Path) -> None:
    """An engine that starts slowly still finds its checkpoint."""
    promised = tokenizer_hash(write_model(tmp_path / "model", SMALL, seed=0))
    run_fixture = await RunFixture.build(
        tmp_path, deployment.settings, seed="held", workers=(), tokenizer_hash=promised
    )
    served = tmp_path / "published"
    async with (
        run_fixture.chain("trainer") as trainer,
        run_fixture.local_chain() as dev,
        odd_source(served) as (url, _, _),
    ):
        terms, settings = await trainer.terms(run_fixture.run), ShardcastSettings(relays=[url])
        relays = Relays(settings, None, run_fixture.run)
        checkpoints = CheckpointFetcher(trainer, terms, relays, tmp_path / "node", kept=2)

        async def come(step: int) -> Path:
            manifest = publish(tmp_path / "model", served, run_fixture.run, step, shard_bytes=1 << 20)
            await dev.advance(2)
            await trainer.send(runs.publish_checkpoint(run_fixture.run, step, manifest.root, bytes(32)))
            return await checkpoints.get(step)

        first = await come(0)
        with used(first), used(first):
            second, third = await come(1), await come(2)
            assert (first.is_dir(), second.is_dir(), third.is_dir()) == (True, True, True)
        assert (await come(3)).is_dir()
        assert (first.is_dir(), second.is_dir(), third.is_dir()) == (False, False, True)


async def test_old_steps_take_the_place_of_old_ones_only(deployment: Deployment, tmp_path: Path) -> None:
    """Judge cases about several old steps while the node still needs its newest one."""
    last, keep = 7, 2
    promised = tokenizer_hash(write_model(tmp_path / "model", SMALL, seed=0))
    run_fixture = await RunFixture.build(tmp_path, deployment.settings, seed="old", workers=(), tokenizer_hash=promised)
    served = tmp_path / "published"
    async with (
        run_fixture.chain("trainer") as trainer,
        run_fixture.local_chain() as dev,
        odd_source(served) as (url, _, _),
    ):
        terms, settings = await trainer.terms(run_fixture.run), ShardcastSettings(relays=[url])
        checkpoints = CheckpointFetcher(
            trainer, terms, Relays(settings, None, run_fixture.run), tmp_path / "node", kept=keep
        )
        for step in range(last + 1):
            deltas = keeping(whole_every=16, whole=1)
            manifest = publish(tmp_path / "model", served, run_fixture.run, step, shard_bytes=1 << 16, deltas=deltas)
            await dev.advance(2)
            await trainer.send(runs.publish_checkpoint(run_fixture.run, step, manifest.root, bytes(32)))
            if step >= last - 1:
                await checkpoints.get(step)

        def held() -> set[int]:
            return {read_manifest(version.path).step for version in versions(tmp_path / "node")}

        assert held() == {last - 1, last}
        cases = (1, 2, 3, 4)
        async with AsyncExitStack() as stack:
            using = [checkpoints.used(step) for step in cases]
            paths = await asyncio.gather(*(stack.enter_async_context(case) for case in using))
            assert all(path.is_dir() for path in paths)
            assert held() >= {*cases, last - 1, last}
        await checkpoints.get(5)
        assert held() >= {5, last - 1, last}
        assert len(held()) <= keep + NEWEST
