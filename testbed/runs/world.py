"""A run with a real (small, untrained) model: checkpoints, an orchestrator, an origin, and nodes to be started."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from muster.authoring.tasks.generated import make_task_set
from muster.chain.draw_secret import FILE_NAME
from muster.chain.keys import write_secret
from muster.clients.run_data import RunTasks, make_rules
from muster.constants import DRAW_CHAIN_LENGTH
from muster.contracts import runs
from muster.errors import MalformedError
from muster.models.files import model_hash, tokenizer_hash
from muster.protocol.draws import chain_preimages
from muster.protocol.hashes import keccak
from muster.protocol.terms import WorkClass
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import read_rollouts
from muster.rollouts.schema import Rollout
from muster.settings.schema import ChainSettings, Settings
from muster.settings.sources import load_settings
from muster.settings.toml import to_toml
from muster.shardcast.format.manifest import Manifest
from muster.shardcast.publish import publish
from muster.shardcast.retention import StepRetention
from muster.tasksets.taskset import TaskSet
from muster.verification.profiles import profile_hash
from testbed.chain.contracts import Deployment
from testbed.paths import ROOT
from testbed.processes import Service
from testbed.runs.run_fixture import Orchestrator, RunFixture
from testbed.samples.models import DEMO, nudge, write_model
from testbed.samples.rollouts import drawn_row
from testbed.weights.servers import Server
from validator.service import serve

Furnish = Callable[[Path], TaskSet]
"""Writes `model`, and `run` with the tasks that it returns, into a folder."""

WORKERS: Final = ("w1", "w2", "w3", "w4", "w5")
PROFILE: Final = "cpu-fp32-projection-v3"
TERMS: Final[dict[str, Any]] = {
    "group_size": 4,
    "groups_per_commitment": 4,
    "max_completion_tokens": 24,
    "commit_phase": 60,  # about missing data, judges decide in its last quarter: 15 seconds for a busy machine
    "reveal_phase": 60,
    "accepts_required": 2,
    "classes": (WorkClass(10_000, (8, 12)),),
}


def naming(model: Path, task_set: TaskSet, profile: str) -> dict[str, Any]:
    """Return the terms that name a model, its tasks and a profile."""
    hashes = {"model_hash": model_hash(model), "tokenizer_hash": tokenizer_hash(model)}
    tasks = {"task_count": task_set.size, "task_root": task_set.root, "tools_root": task_set.document.tools_root}
    return {**hashes, **tasks, "profile": profile_hash(profile)}


@cache
def _links(secret: bytes) -> list[bytes]:
    return chain_preimages(secret, DRAW_CHAIN_LENGTH)


class ModelRun(RunFixture):
    """A run_fixture with a model and tasks in its folder, whose validators have draw secrets in theirs."""

    @classmethod
    async def open(
        cls,
        folder: Path,
        settings: ChainSettings,
        *,
        seed: str,
        workers: tuple[str, ...],
        furnish: Furnish,
        **terms: Any,
    ) -> ModelRun:
        """Make model and tasks, and a run that names them. `terms` are beside TERMS."""
        task_set = furnish(folder)
        named = naming(folder / "model", task_set, PROFILE)
        return await cls.build(folder, settings, seed=seed, workers=workers, **{**TERMS, **named, **terms})

    def state(self, name: str) -> Path:
        return self.folder / name / "state"

    def checkpoint(self, step: int) -> Path:
        return self.folder / f"checkpoint-{step}"

    def links(self, name: str) -> tuple[list[bytes], bytes]:
        secret = hashlib.sha256(f"{self.secret(name)}/draws".encode()).digest()  # the same links in every world
        if not (path := self.state(name) / FILE_NAME).exists():
            write_secret(path, secret.hex())
        links = _links(secret)
        return links, keccak(links[0])

    async def publish_model(self, step: int, deltas: StepRetention | None = None) -> Manifest:
        """Publish a checkpoint, different at each step, and anchor it.

        With `deltas` it differs so little that old steps are kept as differences.
        """
        folder = self.checkpoint(step)
        shutil.copytree(self.folder / "model", folder)
        if step:
            nudge(folder, step, tensors=1 if deltas else None)
            async with self.local_chain() as dev:
                await dev.advance(2)
        out = self.folder / "published"
        manifest = await asyncio.to_thread(publish, folder, out, self.run, step, keep=16, deltas=deltas)
        async with self.chain("trainer") as chain:
            await chain.send(runs.publish_checkpoint(self.run, step, manifest.root, bytes(32)))
        return manifest


def furnish_plainly(folder: Path) -> TaskSet:
    """Write an untrained model with its tokenizer, and the folder that the orchestrator offers, with tasks."""
    write_model(folder / "model", DEMO, seed=5, hidden=64, heads=2)
    (folder / "run").mkdir()
    return make_task_set(1, train=64, held_out=16, folder=folder / "run" / "tasks")


@dataclass
class World:
    """Everything of one story, by name."""

    run_fixture: ModelRun
    orchestrator: Orchestrator
    origin: Server

    @property
    def settings_file(self) -> dict[str, object]:
        """Return the settings that all nodes share, by their dotted keys."""
        urls = {"orchestrator.url": self.orchestrator.url, "shardcast.relays": [self.origin.url]}
        return {**self.run_fixture.settings_file, **urls}

    def node(self, module: str, name: str, *failpoints: str, **changes: object) -> Service:
        """Return a node's process, not started yet, with settings by their dotted keys. It dies once at a failpoint."""
        run_fixture = self.run_fixture
        key, marks = run_fixture.folder / name / "key", run_fixture.folder / name / "failpoints"
        marks.mkdir(parents=True, exist_ok=True)
        if not key.exists():
            write_secret(key, run_fixture.secret(name))
        section = "validator" if name.startswith("v") else "worker"
        settings: dict[str, object] = {
            **self.settings_file,
            "name": name,
            "chain.poll_seconds": 0.2,
            "keys.raw_key_file": key,
            f"{section}.state_dir": run_fixture.state(name),
        }
        if section == "validator":
            settings |= {"validator.stagger_seconds": 1, "validator.data_grace_seconds": 1}
        environment = {"OMP_NUM_THREADS": "1", "MUSTER_FAILPOINT_DIR": str(marks)}
        environment |= {"MUSTER_FAILPOINT": ",".join(failpoints)} if failpoints else {}
        environment |= {"PYTHONPATH": str(ROOT)} if module.startswith("testbed.") else {}
        return Service(module, run_fixture.folder / name, settings | changes, environment=environment)

    def settings(self, name: str, **changes: object) -> Settings:
        """Return the settings of a node, also written to its folder."""
        return load_settings(self.node("", name, **changes).config)

    async def events(self, *kinds: type) -> list[Any]:
        async with self.run_fixture.chain("stranger") as chain:
            return list(await chain.events(kinds, chain.addresses.from_block, (await chain.head()).number))

    async def verdicts(self, name: str) -> list[Any]:
        """Verdicts about a worker."""
        async with self.run_fixture.client(self.orchestrator.url, None) as client:
            given, _ = await client.verdicts(self.run_fixture.run, node=self.run_fixture.key(name).address)
            return [verdict for verdict, _ in given]

    @asynccontextmanager
    async def validators(self, *names: str) -> AsyncIterator[None]:
        """Run validators as tasks of this process; a failure of one fails the test."""
        tasks = [asyncio.create_task(serve(self.settings(name)), name=name) for name in names]
        try:
            yield
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def opened(
    deployment: Deployment,
    folder: Path,
    *,
    workers: tuple[str, ...] = WORKERS,
    furnish: Furnish = furnish_plainly,
    steps: int = 1,
    demand_batches: int = 100,
    seed: str = "nodes",
    by_the_clock: bool = True,
    **terms: Any,
) -> Iterator[World]:
    """Yield a world whose first steps are published; `terms` as in `ModelRun.open`.

    No trainer runs, so `demand_batches` is all the work, in batches of 8 groups, that is ever wanted. by_the_clock: the
    chain mines a block a second from then on, so it has to be this world's own.
    """
    run_fixture = asyncio.run(
        ModelRun.open(folder, deployment.settings, seed=seed, workers=workers, furnish=furnish, **terms)
    )
    for step in range(steps):
        asyncio.run(run_fixture.publish_model(step))
    if by_the_clock:
        run_fixture.mine_every(1, deployment.anvil)
    with Server(folder / "origin", run=run_fixture.run, role="origin", dir=folder / "published") as origin:
        relays = [origin.url]
        offered = {"run_folder": folder / "run", "demand_batches": demand_batches, "shardcast.relays": relays}
        with Orchestrator(run_fixture, folder / "orchestrator", **offered) as orchestrator:
            yield World(run_fixture, orchestrator, origin)


@contextmanager
def published(deployment: Deployment, folder: Path, seed: str, **changes: Any) -> Iterator[World]:
    """Yield a run with two steps and without nodes, for commands that read one by `folder`/muster.toml.

    changes: as in `opened`.
    """
    terms = {"temperature_micro": 900_000, "max_completion_tokens": 32, "classes": (WorkClass(10_000, (8, 16)),)}
    terms |= changes
    with opened(deployment, folder, workers=(), steps=2, seed=seed, by_the_clock=False, **terms) as world:
        (folder / "muster.toml").write_text(to_toml(world.settings_file))
        yield world


async def commit_bytes(world: World, worker: str, data: bytes, step: int = 0) -> None:
    """Upload these bytes as the file of commitment 0, and commit to them."""
    try:
        root = rollout_tree(read_rollouts(data)).root
    except MalformedError:
        root = b"\x66" * 32
    async with world.run_fixture.client(world.orchestrator.url, worker) as client:
        await client.put_file(data, world.run_fixture.run, 0, root)
    await world.run_fixture.commit(worker, 0, "0x" + root.hex(), step)


async def rows_of(
    world: World, worker: str, spoil: Callable[[Rollout], dict[str, object]], step: int = 0
) -> list[Rollout]:
    """Rows that are as drawn and scored, but for the one at position 9: `spoil` says what is wrong with it."""
    run_fixture = world.run_fixture
    async with run_fixture.chain("stranger") as chain:
        terms = await chain.terms(run_fixture.run)
        async with run_fixture.client(world.orchestrator.url, worker) as client:
            tasks = await RunTasks.fetch(client, terms, run_fixture.folder / "fetched")
            await tasks.ensure_all()
        rules = make_rules(chain, run_fixture.run, terms, tasks, run_fixture.checkpoint(0))
        draw = rules.draw(await chain.draw_source(run_fixture.key(worker).address), 0)
    rows = []
    tokens = np.zeros(terms.max_completion_tokens, np.int32)
    with rules.scorers:
        scores = [await asyncio.to_thread(rules.score, drawn.task, tokens) for drawn in draw.groups]
    for position in range(terms.positions):
        drawn, score = (found[position // terms.group_size] for found in (draw.groups, scores))
        columns = {"step": step, "logprobs": np.zeros(len(tokens), np.float32), "finish_reason": "length"}
        columns |= {"task_reward": score.reward(rules.task_set.manifest(drawn.task)), "fuel": score.fuel}
        columns |= {"parts": np.array(score.parts, np.int64)}
        rows.append(drawn_row(rules, draw, position, tokens, **columns))
    rows[9] = replace(rows[9], **spoil(rows[9]))
    return rows
