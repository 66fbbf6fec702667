"""One orchestrator with 2,000 idle workers and 520 slow strangers: how long an answer takes, and what it costs.

    python benchmarks/orchestrator_idle.py [--json] [--workers 2000] [--strangers 520] [--seconds 30] [--runs 3]

A real orchestrator process over a real chain, with plain settings. Beside it one process holds a connection for each
worker, all from 127.0.0.1, and asks for the run's demand every 2 s (worker.poll_seconds), as workers without work do.
Nothing is signed, so that all of them are strangers to the orchestrator. Another holds the strangers' connections, half
of them from the workers' address, each of which sends one byte of a request's head per second and connects again when
it is cut. Meanwhile health is asked for, over a new connection each time, and a trainer asks for accepted work and
reports steps. Everything shares this machine, so the load costs the orchestrator processor time.

`answers_p99` is over all answers to workers, `health_slowest` and `trainer_slowest` are the slowest of theirs.
`refused` counts answers other than 200, and connections that were lost. `cpu` is the orchestrator's share of a core,
`memory` its resident memory per open connection at the end. A ratio is the worst of all runs.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.report import Figure, figure, parser, show
from benchmarks.watched import ask, cpu_of, done, memory_of, module, started
from muster.protocol.messages import StepReport
from testbed.chain.anvil import Anvil
from testbed.runs.run_fixture import Orchestrator, RunFixture

HOST = "127.0.0.1"
ELSEWHERE = "127.0.0.2"
POLL_SECONDS = 2.0
"""The default of worker.poll_seconds."""
TRICKLE_SECONDS = 1.0
AT_ONCE = 200
"""Connections opened at the same time."""
LENGTH = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)
HEALTH = ("/healthz", "/readyz", "/metrics", "/version")
HEALTH_SECONDS = 0.5
TRAINER_SECONDS = 0.5
STEP_SECONDS = 5.0


@dataclass(frozen=True)
class Run:
    """What one run measured. Seconds, bytes and shares of a core."""

    p50: float
    p99: float
    slowest: float
    answers: int
    refused: int
    health: float
    trainer: float
    cpu: float
    memory: float


# --- Processes of workers and strangers, which say "ready" once all are connected


class Worker(asyncio.Protocol):
    """A worker that asks, waits for the answer, and asks again after POLL_SECONDS."""

    def __init__(self, request: bytes, count: Count) -> None:
        self._request = request
        self._count = count
        self._received = b""
        self._asked = 0.0
        self.over = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._loop = asyncio.get_running_loop()

    def ask(self) -> None:
        if not self.over and not self._transport.is_closing():
            self._asked = self._loop.time()
            self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        if not end or (length is not None and len(body) < int(length[1])):
            return
        self._received = b""
        self._count.seconds.append(self._loop.time() - self._asked)
        self._count.refused += not head.startswith(b"HTTP/1.1 200 ")
        self._asked = 0.0
        self._loop.call_later(POLL_SECONDS, self.ask)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over:
            self._count.refused += 1

    def finish(self) -> None:
        """Count an answer that is still awaited as one that took until now."""
        self.over = True
        if self._asked:
            self._count.seconds.append(self._loop.time() - self._asked)


class Count:
    """What all workers have seen."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.refused = 0


async def work(port: int, count: int, path: str, seconds: str) -> None:
    """Ask as so many workers; after a line on stdin, count answers for some seconds."""
    request = f"GET {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nAccept: */*\r\nAccept-Encoding: identity\r\n\r\n".encode()
    counted, workers = Count(), []
    loop, slots = asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE)

    async def connect() -> None:
        async with slots:
            _, worker = await loop.create_connection(lambda: Worker(request, counted), HOST, port)
            workers.append(worker)
            loop.call_later(random.uniform(0, POLL_SECONDS), worker.ask)

    await asyncio.gather(*(connect() for _ in range(count)))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.sleep(float(seconds))
    for worker in workers:
        worker.finish()
    done(counted.seconds, (50, 99), refused=counted.refused)


async def trickle(port: int, count: int) -> None:
    """Send heads that never end as so many strangers, until this is ended."""
    connected, ready = 0, asyncio.Event()

    async def hang_on(source: str) -> None:
        nonlocal connected
        while True:
            try:
                reader, writer = await asyncio.open_connection(HOST, port, local_addr=(source, 0))
            except OSError:
                await asyncio.sleep(TRICKLE_SECONDS)
                continue
            connected += 1
            if connected == count:
                ready.set()
            try:
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nA: ")
                while not reader.at_eof():
                    writer.write(b"a")
                    await writer.drain()
                    await asyncio.sleep(TRICKLE_SECONDS)
            except ConnectionError:
                pass
            finally:
                writer.close()

    async with asyncio.TaskGroup() as group:
        for i in range(count):
            group.create_task(hang_on(HOST if i % 2 else ELSEWHERE))
        if count:
            await ready.wait()
        print("ready", flush=True)


# --- The orchestrator


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser(__doc__)
    made.add_argument("--workers", type=int, default=2_000)
    made.add_argument("--strangers", type=int, default=520)
    made.add_argument("--seconds", type=float, default=30.0, help="of one run")
    made.add_argument("--runs", type=int, default=3)
    made.add_argument("--load", nargs="+", help=argparse.SUPPRESS)
    options = made.parse_args(arguments)
    if options.load:
        port, count, *more = options.load
        asyncio.run(work(int(port), int(count), *more) if more else trickle(int(port), int(count)))
        return 0
    with tempfile.TemporaryDirectory(prefix="muster-idle-") as folder, furnished(Path(folder)) as run_fixture:
        runs = [run_once(run_fixture, options.workers, options.strangers, options.seconds) for _ in range(options.runs)]
    about = f"{options.workers} workers, {options.strangers} strangers, {options.seconds:g} s"
    return show(figures(runs), as_json=options.json, about=[about])


def figures(runs: Sequence[Run]) -> list[Figure]:
    """Return the document's figures."""

    def at_most(name: str, target: float, unit: str, values: Sequence[float], **more: object) -> Figure:
        return figure(name, values, ratio=max, target=target, unit=unit, at_most=True, **more)

    def over(name: str) -> list[float]:
        return [getattr(run, name) for run in runs]

    answers = {name: over(name) for name in ("answers", "p50", "slowest")}
    return [
        at_most("answers_p99", 1.0, "s", over("p99"), **answers),
        at_most("refused", 0, "answers", over("refused")),
        at_most("health_slowest", 1.0, "s", over("health")),
        at_most("trainer_slowest", 1.0, "s", over("trainer")),
        at_most("cpu", 0.5, "cores", over("cpu")),
        at_most("memory", 32.0, "KiB per connection", [run.memory / 1024 for run in runs]),
    ]


@contextmanager
def furnished(folder: Path) -> Iterator[RunFixture]:
    """Yield a run on a fresh chain."""
    with Anvil() as anvil:
        run_fixture = asyncio.run(RunFixture.build_on(anvil, folder, seed="idle", workers=()))
        asyncio.run(run_fixture.publish(0))
        yield run_fixture


def run_once(run_fixture: RunFixture, workers: int, strangers: int, seconds: float) -> Run:
    """Measure an orchestrator that was just started."""
    with (
        tempfile.TemporaryDirectory(dir=run_fixture.folder) as folder,
        Orchestrator(run_fixture, Path(folder)) as orchestrator,
    ):
        return asyncio.run(measure(run_fixture, orchestrator, workers, strangers, seconds))


async def measure(
    run_fixture: RunFixture, orchestrator: Orchestrator, workers: int, strangers: int, seconds: float
) -> Run:
    """Measure one run: strangers connect first, then the workers; health and the trainer are asked meanwhile."""
    pid, port = orchestrator.pid, orchestrator.port
    before = memory_of(pid, "VmRSS")
    load, path = module("benchmarks.orchestrator_idle", "--load", port), f"/v1/runs/{run_fixture.run}/demand"
    polls = [*load, str(workers), path, str(seconds)]
    with started([*load, str(strangers)]), started(polls) as polling:
        spent, begun = cpu_of(pid), time.monotonic()
        result = asyncio.create_task(asyncio.to_thread(ask, polling, "go"))
        health, trainer = await asyncio.gather(
            ask_health(orchestrator, result), be_trainer(run_fixture, orchestrator, result)
        )
        cpu = (cpu_of(pid) - spent) / (time.monotonic() - begun)
        counted = await result
        memory = (memory_of(pid, "VmRSS") - before) / (workers + strangers)
    return Run(**counted, health=health, trainer=trainer, cpu=cpu, memory=max(0.0, memory))


async def ask_health(orchestrator: Orchestrator, until: asyncio.Task[Any]) -> float:
    """Return the seconds of the slowest answer to a health check. One that fails ends the benchmark."""
    slowest = 0.0
    while not until.done():
        for path in HEALTH:
            started = time.monotonic()
            status, _ = await asyncio.to_thread(orchestrator.get, path)
            slowest = max(slowest, time.monotonic() - started)
            if status != 200:
                raise SystemExit(f"{path} was answered with {status}")
        await asyncio.wait([until], timeout=HEALTH_SECONDS)
    return slowest


async def be_trainer(run_fixture: RunFixture, orchestrator: Orchestrator, until: asyncio.Task[Any]) -> float:
    """Return the seconds of the slowest answer to a trainer that asks for work and reports a step now and then."""
    slowest, reported = 0.0, float("-inf")
    async with run_fixture.client(orchestrator.url, "trainer", attempts=1) as client:
        while not until.done():
            started = time.monotonic()
            await client.accepted(run_fixture.run)
            if started - reported > STEP_SECONDS:
                await client.post_step(StepReport(run=run_fixture.run, step=0, metrics={}))
                reported = started
            slowest = max(slowest, time.monotonic() - started)
            await asyncio.wait([until], timeout=TRAINER_SECONDS)
    return slowest


if __name__ == "__main__":
    sys.exit(main())
