"""A run on a real chain with two published steps, its orchestrator and its weights, for commands that read one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from muster.authoring.tasks.generated import make_task_set
from muster.contracts import runs
from muster.models.files import tokenizer_hash
from muster.models.init import ModelShape, make_model, make_tokenizer, save_model
from muster.shardcast.publish import publish
from muster.tasksets.taskset import TaskSet
from muster.verification.profiles import profile_hash
from testbed.chain.contracts import Deployment
from testbed.runs.run_fixture import Orchestrator, RunFixture
from testbed.servers.weight_servers import odd_source

SMALL = ModelShape(hidden=64, layers=1, heads=2, intermediate=64)


@dataclass(frozen=True)
class PublishedRun:
    run_fixture: RunFixture
    orchestrator: Orchestrator
    models: list[Path]
    """The checkpoint of each step."""
    task_set: TaskSet

    @property
    def run(self) -> int:
        return self.run_fixture.run


@asynccontextmanager
async def published_run(deployment: Deployment, folder: Path, seed: str) -> AsyncIterator[PublishedRun]:
    """Yield a run whose settings stand in `folder`/muster.toml."""
    tokenizer, models = make_tokenizer(), [folder / f"model-{step}" for step in (0, 1)]
    for step, model in enumerate(models):
        save_model(make_model(tokenizer, SMALL, seed=step), tokenizer, model)
    (folder / "run").mkdir()
    task_set = make_task_set(4, train=30, held_out=12, folder=folder / "run" / "tasks")
    run_fixture = await RunFixture.build(
        folder,
        deployment.settings,
        seed=seed,
        workers=(),
        tokenizer_hash=tokenizer_hash(models[0]),
        task_root=task_set.root,
        task_count=task_set.size,
        profile=profile_hash("cpu-fp32-projection-v2"),
        temperature_micro=900_000,
    )
    served = folder / "published"
    async with (
        run_fixture.chain("trainer") as trainer,
        run_fixture.local_chain() as dev,
        odd_source(served) as (url, _, _),
    ):
        for step, model in enumerate(models):
            manifest = publish(model, served, run_fixture.run, step, shard_bytes=1 << 20, keep=4)
            await dev.advance(2)
            await trainer.send(runs.publish_checkpoint(run_fixture.run, step, manifest.root, bytes(32)))
        orchestrator = Orchestrator(run_fixture, folder / "orchestrator", extra=f'run_folder = "{folder / "run"}"')
        await asyncio.to_thread(orchestrator.start)
        try:
            (folder / "muster.toml").write_text(
                f'[chain]\nrpc_url = "{run_fixture.settings.rpc_url}"\naddresses = "{run_fixture.settings.addresses}"\n'
                f'[orchestrator]\nurl = "{orchestrator.url}"\n[shardcast]\nrelays = ["{url}"]\n'
            )
            yield PublishedRun(run_fixture, orchestrator, models, task_set)
        finally:
            await asyncio.to_thread(orchestrator.stop)
