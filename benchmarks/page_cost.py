"""What people who watch cost the workers: how long an orchestrator's answers to workers take with and without them.

Over the synthetic run of `testbed.big_run`. Both are measured in turns, with the same load by workers from
another process, while a trainer reports a step every few seconds and the chain goes on. `benchmarks/page.py` prints it.
Everything shares this machine: what the watchers' own process takes counts against the orchestrator too.

`page_cost` has WORKERS at once: they send 24 times as many files as the run's own, which makes 16 commitments a minute.
`page_cost_busy` has BUSY_WORKERS, with which the orchestrator cannot answer all on a machine of two cores. There a p99
is the length of a queue, and whatever takes processor time makes it longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks.page_cost_load import Load
from benchmarks.report import Figure, relative
from benchmarks.watched import ask, module, started
from muster.protocol.messages import StepReport
from testbed.big_run.process import BigRun

LOAD: Final = "benchmarks.page_cost_load"
TARGET: Final = 1.2
WORKERS: Final = 16
BUSY_WORKERS: Final = 64
ROUNDS: Final = 5
BUSY_ROUNDS: Final = 3
STEP_SECONDS: Final = 5.0


@dataclass
class Cost:
    """What was measured in each round: seconds that answers took, without and with watchers."""

    workers: int
    watchers: int
    without: list[dict[str, Any]] = field(default_factory=list)
    watched: list[dict[str, Any]] = field(default_factory=list)
    seen: list[dict[str, int]] = field(default_factory=list)
    """What the watchers received in each round."""


def measure_cost(big: BigRun, pool: Sequence[int], *, workers: int, watchers: int, seconds: float, rounds: int) -> Cost:
    """Measure both in turns. The orchestrator runs.

    pool: numbers of workers that can commit. Each turn takes others: an orchestrator takes only so many files from one
    before it commits.
    """
    if len(pool) < 2 * rounds * workers:
        raise SystemExit(
            f"{2 * rounds * workers} workers are needed and {len(pool)} can work: take fewer, or more --nodes"
        )
    cost, groups = Cost(workers, watchers), iter(range(0, len(pool), workers))

    def load() -> Load:
        first = next(groups)
        return load_of(big, pool[first : first + workers])

    for number in range(rounds):
        cost.without.append(_one_round(big, load(), seconds, number))
        with watching(big, watchers) as count:
            count()  # from now on
            cost.watched.append(_one_round(big, load(), seconds, number))
            cost.seen.append(count())
    return cost


def able_workers(big: BigRun) -> list[int]:
    """Return the numbers of the workers that are neither convicted nor away, who joined last first."""
    return np.flatnonzero(~big.rows.work.is_cheater & ~big.rows.away())[::-1].tolist()


def load_of(big: BigRun, workers: Sequence[int]) -> Load:
    """Return the load by some workers."""
    work, fixture = big.rows.work, big.run_fixture
    return Load(
        url=big.orchestrator.url,
        chain_id=fixture.book.chain_id,
        registry=fixture.book.registry,
        run=fixture.run,
        keys=[fixture.secret(big.key_name(number)) for number in workers],
        next_indices=[int(work.count[number]) for number in workers],
    )


def _one_round(big: BigRun, load: Load, seconds: float, number: int) -> dict[str, Any]:
    """Return what the workers counted in some seconds, while a trainer reports steps."""
    with started(module(LOAD, "workers", seconds)) as process:
        return asyncio.run(_with_trainer(big, asyncio.to_thread(ask, process, load.model_dump_json()), number))


async def _with_trainer(big: BigRun, working: Coroutine[Any, Any, dict[str, Any]], number: int) -> dict[str, Any]:
    done = asyncio.create_task(working)
    async with big.run_fixture.client(big.orchestrator.url, "trainer") as client:
        step = big.shape.steps + 1_000 * number
        while not done.done():
            step += 1
            metrics = {"reward": 0.5, "entropy": 0.7, "completions/mean_length": 900.0}
            await client.post_step(StepReport(run=big.run_fixture.run, step=step, metrics=metrics))
            await asyncio.wait([done], timeout=STEP_SECONDS)
    return await done


@contextmanager
def watching(big: BigRun, count: int) -> Iterator[Callable[[], dict[str, int]]]:
    """Yield a function that returns what the watchers have seen since it was called last, once all are connected."""
    path = f"/v1/runs/{big.run_fixture.run}/live"
    with started(module(LOAD, "watchers", big.orchestrator.port, count, path)) as process:
        yield partial(ask, process, "")


def cost_figure(name: str, cost: Cost) -> Figure:
    """Return the figure of this name: the median p99 of the rounds with watchers, over that of the rounds without."""
    watched, without = ([one["p99"] for one in rounds] for rounds in (cost.watched, cost.without))
    rounds = [*cost.watched, *cost.without]
    return relative(
        name,
        watched,
        limit=without,
        target=TARGET,
        unit="s, p99 of answers to workers",
        at_most=True,
        workers=cost.workers,
        watchers=cost.watchers,
        answers=[one["answers"] for one in rounds],
        refused=sum(one["refused"] for one in rounds),
        messages=[one.get("messages", 0) for one in cost.seen],
        lost=sum(one.get("lost", 0) for one in cost.seen),
    )


def cost_figures(big: BigRun, watchers: int, seconds: float) -> list[Figure]:
    """Measure and return the figures. seconds: of each round with or without watchers."""
    found, pool = [], able_workers(big)
    for name, workers, rounds in (("page_cost", WORKERS, ROUNDS), ("page_cost_busy", BUSY_WORKERS, BUSY_ROUNDS)):
        cost = measure_cost(big, pool, workers=workers, watchers=watchers, seconds=seconds, rounds=rounds)
        found.append(cost_figure(name, cost))
        pool = pool[2 * rounds * workers :]
    return found
