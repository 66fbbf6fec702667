"""What signed writes and idle polls cost one orchestrator: processor time, and answers in a second.

A real orchestrator process over a real chain. Ten workers have committed six files each; four validators then post a
verdict on every file, four requests at a time each, over connections that they keep. Only the orchestrator's processor
time counts, its threads included, and only from each worker's second file on: with the first ones a process makes its
statements. Then eight connections ask for the run's demand, one question after the other, as workers without work do.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Figure, figure
from benchmarks.service_load import Line
from benchmarks.watched import cpu_of
from muster.protocol.hashes import content_hash
from muster.protocol.messages import Verdict
from testbed.chain.anvil import Anvil
from testbed.runs.run_fixture import VALIDATORS, Orchestrator, RunFixture, some_hash
from testbed.waiting import until

WORKERS, FILES = 10, 6
"""Workers, and what each has committed."""
AT_ONCE = 4
"""Requests of one validator at a time."""
POLLS = 8_000
RUNS = 3


@dataclass(frozen=True)
class Run:
    """What one run measured: milliseconds of processor time a verdict, verdicts a second, microseconds a poll."""

    verdict: float
    rate: float
    poll: float


def signed_writes(database: Callable[[], str] = str, *, quick: bool = False) -> list[Figure]:
    """Measure on SQLite, or where `database` returns the URL of an empty one on PostgreSQL, a new one each run.

    quick: a fifth of the work, once.
    """
    count, files, polls = (1, 2, POLLS // 5) if quick else (RUNS, FILES, POLLS)
    with tempfile.TemporaryDirectory(prefix="muster-writes-") as folder, Anvil() as anvil:
        workers = tuple(f"w{number}" for number in range(WORKERS))
        run_fixture = asyncio.run(RunFixture.build_on(anvil, Path(folder), seed="writes", workers=workers))
        asyncio.run(run_fixture.publish(0))
        runs, url = [], ""
        for number in range(count):
            used: dict[str, Any] = {"database_url": url} if (url := database()) else {}
            (run_folder := Path(folder) / f"run-{number}").mkdir()
            with Orchestrator(run_fixture, run_folder, **used) as orchestrator:
                runs.append(asyncio.run(measure(run_fixture, orchestrator, files, polls, commit=number == 0)))
    return figures(runs, "postgresql" if url else "sqlite")


def figures(runs: Sequence[Run], engine: str) -> list[Figure]:
    """Return the document's figures."""
    milliseconds = 3 if engine == "sqlite" else 4
    return [
        figure(f"verdict_cpu_{engine}", [r.verdict for r in runs], target=milliseconds, unit="ms", at_most=True),
        figure(f"verdicts_per_second_{engine}", [r.rate for r in runs], target=200, unit="1/s"),
        figure(f"poll_cpu_{engine}", [r.poll for r in runs], target=165, unit="µs", at_most=True),
    ]


async def measure(run_fixture: RunFixture, orchestrator: Orchestrator, files: int, polls: int, *, commit: bool) -> Run:
    """Measure an orchestrator that was just started. commit: nothing is committed yet."""
    works = [(f"w{number % WORKERS}", number // WORKERS) for number in range(WORKERS * files)]
    for worker, index in works:
        await work(run_fixture, orchestrator, worker, index, commit=commit)
    last, pid = run_fixture.key(works[-1][0]).address, orchestrator.pid
    await until(lambda: orchestrator.json(f"/v1/nodes/{last}").get("commitments") == files)
    verdicts = {name: [judge(run_fixture, name, *one) for one in works] for name in VALIDATORS}
    await asyncio.gather(*(post(run_fixture, orchestrator, name, some[:WORKERS]) for name, some in verdicts.items()))
    posts = (post(run_fixture, orchestrator, name, some[WORKERS:]) for name, some in verdicts.items())
    seconds, spent = await timed(pid, lambda: asyncio.gather(*posts))
    count = len(verdicts) * (len(works) - WORKERS)
    path = f"/v1/runs/{run_fixture.run}/demand"
    asked = (ask(orchestrator.port, path, polls // 8) for _ in range(8))
    _, polled = await timed(pid, lambda: asyncio.gather(*asked))
    return Run(1e3 * spent / count, count / seconds, 1e6 * polled / polls)


async def timed(pid: int, work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Return how long some work takes, and what it costs a process."""
    begun, spent = time.monotonic(), cpu_of(pid)
    await work()
    return time.monotonic() - begun, cpu_of(pid) - spent


async def work(run_fixture: RunFixture, orchestrator: Orchestrator, worker: str, index: int, *, commit: bool) -> None:
    """Upload a worker's file and commit to it."""
    root = some_hash(f"{worker} {index}")
    async with run_fixture.client(orchestrator.url, worker) as client:
        await client.put_file(root.encode(), run_fixture.run, index, root)
    if commit:
        await run_fixture.commit(worker, index, root)


def judge(run_fixture: RunFixture, validator: str, worker: str, index: int) -> Verdict:
    root = some_hash(f"{worker} {index}")
    return run_fixture.verdict(validator, worker, index, root, content_hash(root.encode()))


async def post(
    run_fixture: RunFixture, orchestrator: Orchestrator, validator: str, verdicts: Sequence[Verdict]
) -> None:
    """Post a validator's verdicts, AT_ONCE at a time."""
    waiting = iter(verdicts)
    async with run_fixture.client(orchestrator.url, validator) as client:

        async def some() -> None:
            for verdict in waiting:
                await client.post_verdict(verdict)

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))


async def ask(port: int, path: str, count: int) -> None:
    """Ask again and again over one connection."""
    line, request = await Line.open(port, 0, 0), f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    for _ in range(count):
        assert (answer := await line.ask(request)).status == 200, answer
    line.close()
