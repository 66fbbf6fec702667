"""A run with validators and workers that can be started: chain, orchestrator, origin, and settings for every node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from muster.clients.run_data import RunTasks, make_rules
from muster.environments.rewards import length_reward
from muster.errors import MalformedError
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import read_rollouts
from muster.rollouts.schema import Rollout, one_span
from muster.settings.schema import Settings
from testbed.chain.anvil import Anvil
from testbed.runs.node_fixture import Furnish, NodeFixture
from testbed.runs.run_fixture import Orchestrator
from testbed.servers.weight_servers import Server, ended
from validator.service import serve

WORKERS = ("w1", "w2", "w3", "w4", "w5")


class World:
    """Everything of one story, by name."""

    def __init__(self, run_fixture: NodeFixture, orchestrator: Orchestrator, origin: Server) -> None:
        self.run_fixture = run_fixture
        self.orchestrator = orchestrator
        self.origin = origin

    def settings(self, name: str, **changes: object) -> Settings:
        return self.run_fixture.settings_of(name, self.orchestrator, self.origin, **changes)

    async def events(self, *kinds: type) -> list[Any]:
        async with self.run_fixture.chain("stranger") as chain:
            return list(await chain.events(kinds, chain.addresses.from_block, (await chain.head()).number))

    async def verdicts(self, name: str) -> list[Any]:
        """Verdicts about a worker."""
        async with self.run_fixture.client(self.orchestrator.url, None) as client:
            found, _ = await client.verdicts(self.run_fixture.run)
            return [verdict for verdict in found if verdict.node == self.run_fixture.key(name).address]

    @contextlib.asynccontextmanager
    async def validators(self, *names: str) -> AsyncIterator[None]:
        """Validators as tasks of this process; a failure of one fails the test."""
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


@contextlib.contextmanager
def opened(
    start_anvil: Callable[..., Anvil],
    folder: Path,
    *,
    workers: tuple[str, ...] = WORKERS,
    furnish: Furnish | None = None,
    demand_batches: int = 100,
    **terms: Any,
) -> Iterator[World]:
    """A world whose first step is published, with a block a second; `furnish` and `terms` as in `NodeFixture.open`.

    Nobody trains, so `demand_batches` is all the work, in batches of 8 groups, that is ever wanted.
    """
    from testbed.chain.contracts import deploy_on

    anvil = start_anvil()
    deployment = deploy_on(anvil, folder)
    run_fixture = asyncio.run(
        NodeFixture.open(folder, deployment.settings, seed="nodes", workers=workers, furnish=furnish, **terms)
    )
    asyncio.run(run_fixture.publish_model(0))
    run_fixture.mine_every_second(anvil)
    orchestrator = Orchestrator(
        run_fixture,
        folder / "orchestrator",
        extra=f'run_folder = "{folder / "run"}"',
        environment={"MUSTER_ORCHESTRATOR__DEMAND_BATCHES": str(demand_batches)},
    )
    origin = Server(folder / "origin", run=run_fixture.run, role="origin", dir=folder / "published")
    with ended(origin):
        orchestrator.start()
        try:
            yield World(run_fixture, orchestrator, origin.start())
        finally:
            orchestrator.stop()


async def commit_bytes(world: World, worker: str, data: bytes, step: int = 0) -> None:
    """Upload whatever it is as the file of commitment 0, and commit to it."""
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
        rules = make_rules(chain, run_fixture.run, terms, tasks, run_fixture.folder / "checkpoint-0")
        draw = rules.draw(await chain.draw_source(run_fixture.key(worker).address), 0)
    rows = []
    tokens = np.zeros(terms.max_completion_tokens, np.int32)
    with rules.scorers:
        scores = [await asyncio.to_thread(rules.score, drawn.task, tokens) for drawn in draw.groups]
    for position, seed in enumerate(draw.seeds):
        group, sample = divmod(position, terms.group_size)
        drawn, score = draw.groups[group], scores[group]
        rows.append(
            Rollout(
                run=run_fixture.run,
                step=step,
                position=position,
                group=group,
                sample=sample,
                task=drawn.task,
                seed=seed,
                budget=drawn.budget,
                prompt_tokens=rules.prompt(drawn.task, drawn.budget),
                completion_tokens=tokens,
                spans=one_span(len(tokens)),
                logprobs=np.zeros(len(tokens), np.float32),
                task_reward=score.reward(rules.task_set.manifest(drawn.task)),
                parts=np.array(score.parts, np.int64),
                fuel=score.fuel,
                length_reward=length_reward(drawn.budget, len(tokens)),
                finish_reason="length",
                proof=b"",
            )
        )
    rows[9] = replace(rows[9], **spoil(rows[9]))
    return rows
