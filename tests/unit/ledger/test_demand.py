"""How much work is wanted: what can still be trained on counts, and what was rejected, voided or used does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.contracts.registry import Role
from muster.ledger.database import Database
from testbed.runs.recorded_run import ServedSample


@pytest.fixture
async def run(database: Database, tmp_path: Path) -> ServedSample:
    """A run with two workers, whose trainer has published a step and gives no sign of life."""
    made = ServedSample(database, tmp_path, accepts_required=2, groups_per_commitment=4)
    for name in ("vera", "viktor"):
        await made.join(name, Role.VALIDATOR)
    for name in ("wanda", "walter"):
        await made.join(name)
    await made.publish(0)
    return made


async def groups(run: ServedSample) -> tuple[int, bool]:
    """Return how many groups wait for the trainer, and whether more are wanted."""
    demand = await run.queries.demand()
    return demand.waiting_groups, demand.wanted


async def fill(run: ServedSample, name: str, count: int) -> None:
    for _ in range(count):
        await run.upload(name, await run.commit(name))


async def test_without_a_trainer_workers_go_on_until_the_count_is_full(run: ServedSample) -> None:
    """Two batches of eight groups are wanted ahead."""
    for count in range(4):
        assert await groups(run) == (4 * count, True)
        await fill(run, "wanda", 1)
    assert await groups(run) == (16, False)
    for index in range(4):
        await run.accept("wanda", index)
    assert await groups(run) == (16, False)


async def test_rejected_work_does_not_fill_the_demand_count(run: ServedSample) -> None:
    await fill(run, "wanda", 4)
    assert await groups(run) == (16, False)
    for index in range(4):
        await run.judge("vera", "wanda", index, "wrong_reward", position=3)
        assert await groups(run) == (4 * (3 - index), True)
    await fill(run, "wanda", 3)
    assert await groups(run) == (12, True), "a count full of rejected work keeps no other work away"


async def test_void_used_and_left_out_work_does_not_fill_the_demand_count(run: ServedSample) -> None:
    await fill(run, "wanda", 2)
    await fill(run, "walter", 2)
    assert await groups(run) == (16, False)
    await run.convict("wanda")
    assert await groups(run) == (8, True)
    files = [await run.upload("walter", index) for index in range(2)]
    await run.report(1, {"reward": 0.5}, batch=files[:1])
    assert await groups(run) == (4, True)
    await run.report(1, {"reward": 0.5}, batch=files[:1], dropped=files[1:])
    assert await groups(run) == (0, True)
