"""A run on a mixture that the sandbox scores, from the draw to verdict and conviction, with poison among its tasks.

Every node fetches the component from the run's storage. The poison: tasks without an answer, malformed tasks, overlong
prompts and programs that never end. Honest work on all of them is accepted. A worker that claims a wrong reward, wrong
parts or wrong fuel is convicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from muster.constants import MICRO
from muster.contracts.court import CaseOpened, CaseResolved, Outcome
from muster.contracts.registry import Status
from muster.protocol.kinds import kind_of
from muster.protocol.terms import WorkClass
from muster.rollouts.parquet import read_rollouts, write_rollouts
from muster.rollouts.schema import Rollout
from muster.tasksets.taskset import COMPONENTS_NAME, TaskSet
from testbed.chain.anvil import Anvil
from testbed.chain.contracts import deploy_on
from testbed.runs import mixture
from testbed.runs.world import World, commit_bytes, opened, rows_of
from testbed.waiting import until

CHEATS: dict[str, Callable[[Rollout], dict[str, object]]] = {
    "w2": lambda row: {"task_reward": MICRO - row.task_reward},
    "w3": lambda row: {"parts": MICRO - row.parts},
    "w4": lambda row: {"fuel": row.fuel + 1},
}
"""Workers, and what each claims of one row."""


def furnish(folder: Path) -> TaskSet:
    """A model that knows the forms of the answers, and the poisoned mixture."""
    mixture.make_warm_model(folder / "model", folder / "own")
    made = mixture.make_poisoned_mixture(folder / "made")
    (folder / "run").mkdir()
    return TaskSet.open(made.folder.rename(folder / "run" / "tasks"))


@pytest.fixture
def world(start_anvil: Callable[..., Anvil], built_contracts: None, tmp_path: Path) -> Iterator[World]:
    terms: dict[str, Any] = {
        "max_completion_tokens": mixture.MAX_TOKENS,
        "classes": (WorkClass(10_000, mixture.BUDGETS),),
        "groups_per_commitment": 8,
    }
    place = deploy_on(start_anvil(), tmp_path)
    with opened(place, tmp_path, workers=("w1", *CHEATS), furnish=furnish, demand_batches=8, **terms) as made:
        yield made


@pytest.mark.slow
async def test_poisoned_mixture_accepts_honest_work_and_convicts_false_scores(world: World) -> None:
    torch.set_num_threads(1)
    with world.node("worker", "w1") as worker:
        async with world.validators("v1", "v2", "v3", "v4"):
            for name, spoil in CHEATS.items():
                await commit_bytes(world, name, write_rollouts(await rows_of(world, name, spoil)))
            rows = await accepted_rows(world, count=2)
            await cheaters_are_convicted(world)
        assert worker.is_running, worker.said
    the_work_was_scored_by_the_component(world, rows)
    everybody_fetched_the_component(world)


async def accepted_rows(world: World, count: int) -> list[Rollout]:
    """Wait until two validators have accepted so many commitments of the honest worker, a right answer among them.

    Returns their rows.
    """
    read: dict[str, list[Rollout]] = {}
    async with world.run_fixture.client(world.orchestrator.url, None) as client:

        async def accepted() -> list[Rollout] | None:
            verdicts = await world.verdicts("w1")
            assert all(verdict.accepted for verdict in verdicts), verdicts
            for name, accepts in Counter(verdict.file_hash for verdict in verdicts).items():
                if accepts == 2 and name not in read:
                    read[name] = read_rollouts(await client.get_file(name))
            rows = [row for rows in read.values() for row in rows]
            return rows if len(read) >= count and any(row.task_reward for row in rows) else None

        return await until(accepted, f"{count} commitments are accepted, with a right answer")


async def cheaters_are_convicted(world: World) -> None:
    nodes = [world.run_fixture.key(name).address for name in CHEATS]

    async def all_jailed() -> bool:
        async with world.run_fixture.chain("stranger") as chain:
            return all(node.status == Status.JAILED for node in await chain.nodes(nodes))

    await until(all_jailed, "all who claim false scores are jailed")
    opened_cases = {event.case_id: event for event in await world.events(CaseOpened)}
    resolved = await world.events(CaseResolved)
    guilty = [opened_cases[event.case_id] for event in resolved if event.outcome == Outcome.GUILTY]
    assert {(event.node, event.kind, event.position) for event in guilty} == {
        (node, kind_of("wrong_reward"), 9) for node in nodes
    }
    assert {event.node for event in opened_cases.values()} <= set(nodes), "the honest worker was never accused"


def the_work_was_scored_by_the_component(world: World, rows: list[Rollout]) -> None:
    """Rewards differ and scoring used fuel. Poisoned tasks were drawn and earn no reward."""
    task_set = TaskSet.open(world.run_fixture.folder / "run" / "tasks")
    by_part: dict[str, list[Rollout]] = {}
    for row in rows:
        by_part.setdefault(task_set.part(row.task).name, []).append(row)
    poisoned = {part.name for part in mixture.poisoned_parts("0x" + "00" * 32)} & set(by_part)
    assert poisoned, "half of all draws are"
    for name in poisoned:
        assert {row.task_reward for row in by_part[name]} == {0}, name
    assert {row.task_reward for row in rows} == {0, MICRO}
    assert any(row.fuel for row in rows)
    for row in rows:
        assert np.array_equal(row.parts, [row.task_reward])


def everybody_fetched_the_component(world: World) -> None:
    (component,) = (world.run_fixture.folder / "run" / "tasks" / COMPONENTS_NAME).iterdir()
    for name in ("w1", "v1", "v2", "v3"):
        (fetched,) = world.run_fixture.state(name).glob(f"tasks-*/{COMPONENTS_NAME}/*")
        assert fetched.name == component.name
