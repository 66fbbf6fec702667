"""Two orchestrators behind one PostgreSQL: what an answer costs beside one alone, and whether both know what one does.

Real orchestrators over a real chain and a real PostgreSQL. CPU: clients ask for demand and accepted work as fast as
they are answered, while a trainer reports, which makes kept answers old: one orchestrator alone, then two. It is the
processor time of the orchestrators per 1,000 answers; PostgreSQL's is left out. Pairs: the trainer reports to
one orchestrator that it needs no more work, or does again, and asks the other for demand as soon as that is
acknowledged. `quick` measures a twentieth.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.report import Figure, none, relative
from benchmarks.watched import cpu_of
from muster.protocol.messages import StepReport
from testbed.chain.anvil import Anvil
from testbed.processes import ended
from testbed.runs.run_fixture import Orchestrator, RunFixture
from testbed.servers.postgres import PostgresServer

ANSWERS = 20_000
PAIRS = 10_000
CLIENTS = 8
ANSWERS_PER_REPORT = 100
WARM_UP = 200
"""Answers before any is measured: a process makes its statements with the first ones."""
POLL_SECONDS = 0.5
"""The default of chain.poll_seconds."""
SHARE_OF_QUICK = 20


def two_processes(*, quick: bool = False) -> list[Figure]:
    """Measure one orchestrator, then two, behind one PostgreSQL."""
    share = SHARE_OF_QUICK if quick else 1
    with tempfile.TemporaryDirectory(prefix="muster-pair-") as folder, Anvil() as anvil, postgres() as server:
        run_fixture = asyncio.run(RunFixture.build_on(anvil, Path(folder), seed="pair", workers=("w1",)))
        asyncio.run(run_fixture.publish(0))
        run_fixture.settings = run_fixture.settings.model_copy(update={"poll_seconds": POLL_SECONDS})
        one, two = (measure(run_fixture, server, Path(folder) / str(n), n, ANSWERS // share) for n in (1, 2))
        missing = pairs(run_fixture, server, Path(folder) / "pairs", PAIRS // share)
    return figures(one, two, missing)


def figures(one: float, two: float, missing: int) -> list[Figure]:
    """Return the document's figures, from CPU seconds per 1,000 answers and the writes that were missing."""
    return [
        relative("two_processes_cpu", two, peer=one, target=1.15, unit="CPU s per 1,000 answers", at_most=True),
        none("two_processes_missing", missing, "writes"),
    ]


@contextmanager
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def serving(run_fixture: RunFixture, server: PostgresServer, folder: Path, count: int) -> Iterator[list[Orchestrator]]:
    """Yield so many orchestrators behind one new database."""
    url, storage = server.create_database(), f"file:{folder / 'storage'}"
    names = [folder / str(number) for number in range(count)]
    running = [Orchestrator(run_fixture, name, database_url=url, storage_url=storage) for name in names]
    with ended(*running):
        for orchestrator in running:
            orchestrator.start()
        yield running


def measure(run_fixture: RunFixture, server: PostgresServer, folder: Path, count: int, answers: int) -> float:
    """Return the orchestrators' CPU seconds per 1,000 answers."""
    with serving(run_fixture, server, folder, count) as running:
        urls = [orchestrator.url for orchestrator in running]
        asyncio.run(ask_all(run_fixture, urls, WARM_UP))
        before = sum(cpu_of(orchestrator.pid) for orchestrator in running)
        asyncio.run(ask_all(run_fixture, urls, answers))
        return (sum(cpu_of(orchestrator.pid) for orchestrator in running) - before) * 1_000 / answers


async def ask_all(run_fixture: RunFixture, urls: Sequence[str], answers: int) -> None:
    """Ask so often, as CLIENTS that take the orchestrators in turn."""
    left, run = iter(range(answers // 2)), run_fixture.run

    async def ask(url: str) -> None:
        async with run_fixture.client(url, "trainer") as client:
            for number in left:
                if number % (ANSWERS_PER_REPORT // 2) == 0:
                    await client.post_step(StepReport(run=run, step=0, metrics={}))
                await client.demand(run)
                await client.log(run)

    await asyncio.gather(*(ask(urls[number % len(urls)]) for number in range(CLIENTS)))


def pairs(run_fixture: RunFixture, server: PostgresServer, folder: Path, count: int) -> int:
    """Return how many of so many acknowledged reports were missing in the other's next answer."""

    async def work(first: str, second: str) -> int:
        run, missing = run_fixture.run, 0
        async with run_fixture.client(first, "trainer") as trainer, run_fixture.client(second, None) as reader:
            for number in range(count):
                finished = number % 2 == 0
                await trainer.post_step(StepReport(run=run, step=0, metrics={}, finished=finished))
                missing += (await reader.demand(run)).wanted == finished
        return missing

    with serving(run_fixture, server, folder, 2) as (first, second):
        return asyncio.run(work(first.url, second.url))
