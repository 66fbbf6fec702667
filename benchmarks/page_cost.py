"""What people who watch cost the workers: how long an orchestrator's answers to workers take with and without them.

Over the synthetic run of `testbed.big_run`, with an explorer that people watch. Both are measured in turns, with the
same load by workers from another process, while a trainer reports a step every few seconds and the chain goes on.
`benchmarks/page.py` prints it. Everything shares this machine: what the explorer and the watchers' own process take
counts against the orchestrator too.

`page_cost` has WORKERS at once: they send 24 times as many files as the run's own, which makes 16 commitments a minute.
A watcher does what a browser with the overview open does: it asks for the run's state every POLL_SECONDS by its ETag,
as live.js does, and fetches the page again some seconds after a change, as refresh.js does. Workers do what workers
with an engine do, at the pace of their settings' defaults and faster: they ask for demand, for their own report, and
upload files.

`page_cost_busy` has BUSY_WORKERS, with which the orchestrator cannot answer all on a machine of two cores. There a p99
is the length of a queue, and any use of processor time makes it longer.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
from pydantic import BaseModel

from benchmarks.report import Figure, relative
from benchmarks.watched import ask, done, module, started
from muster.chain.keys import Signer
from muster.clients.orchestrator import OrchestratorClient
from muster.errors import MusterError
from muster.protocol.messages import StepReport
from testbed.big_run.process import BigRun

HOST: Final = "127.0.0.1"
ADDRESSES: Final = 50
"""Of this machine, among which watchers divide: people come from many."""
AT_ONCE: Final = 50
"""Connections opened at the same time."""
CYCLE_SECONDS: Final = 0.5
"""Between two rounds of a worker: several times as busy as one that generates for minutes."""
REPORT_EVERY: Final = 4
UPLOAD_EVERY: Final = 5
"""Rounds of a worker."""
UPLOAD_BYTES: Final = 20_000
ROOTS: Final = 16
"""Roots of one index: as many as an orchestrator takes."""
POLL_SECONDS: Final = 2.0
"""Between two questions of a watcher for the run's state."""
REFRESH: Final = re.compile(rb'data-refresh="([0-9.]+)"')
_LENGTH: Final = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)
_TAG: Final = re.compile(rb'etag: *("[^"]*")', re.IGNORECASE)
TARGET: Final = 1.2
BUSY_TARGET: Final = 1.4
WORKERS: Final = 16
BUSY_WORKERS: Final = 64
ROUNDS: Final = 5
BUSY_ROUNDS: Final = 3
STEP_SECONDS: Final = 5.0


# --- Processes of watchers and workers, which count or work when a line says so


class Load(BaseModel):
    """What workers need to know. Keys come by stdin: other users can read arguments."""

    url: str
    chain_id: int
    registry: str
    run: int
    keys: list[str]
    next_indices: list[int]


class Watchers:
    """All watchers of one process, and what they have seen."""

    def __init__(self, port: int, path: str) -> None:
        self.port, self.path = port, path
        self.seen: Counter[str] = Counter()
        self.ready = asyncio.Event()

    async def watch(self, number: int, count: int, slots: asyncio.Semaphore) -> None:
        """Open the page, then ask for the run's state until cancelled; connect again when the connection ends."""
        source = f"127.0.1.{1 + number % ADDRESSES}"
        while True:
            try:
                async with slots:
                    page = await self._get("/", source)
                    found = REFRESH.search(page)
                    pause = float(found[1]) if found else 0.0
                    reader, writer = await self._connect(source)
                    tag = await self._state(reader, writer, "")
                self.seen["connected"] += 1
                if self.seen["connected"] == count:
                    self.ready.set()
                await self._follow(reader, writer, tag, pause, source)
            except (OSError, EOFError, ValueError) as error:
                self.seen["lost"] += 1
                print(f"watcher {number}: {error!r}", file=sys.stderr)
                await asyncio.sleep(1)

    async def _follow(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tag: str, pause: float, source: str
    ) -> None:
        waiting: asyncio.Task[None] | None = None
        while True:
            await asyncio.sleep(POLL_SECONDS * random.uniform(0.75, 1.25))
            before, tag = tag, await self._state(reader, writer, tag)
            if tag != before:
                self.seen["messages"] += 1
                if pause and (waiting is None or waiting.done()):
                    waiting = asyncio.create_task(self._refresh(pause, source))

    async def _state(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tag: str) -> str:
        """Ask for the run's state unless it is still the one with this tag; return its tag."""
        writer.write(self._request(self.path, "application/json", f"If-None-Match: {tag}\r\n" if tag else ""))
        head = await reader.readuntil(b"\r\n\r\n")
        length, found = _LENGTH.search(head), _TAG.search(head)
        if head[9:12] not in (b"200", b"304") or found is None:
            raise ConnectionError(head.split(b"\r\n")[0].decode())
        body = await reader.readexactly(int(length[1])) if length and head[9:12] == b"200" else b""
        self.seen["bytes"] += len(head) + len(body)
        return found[1].decode()

    async def _refresh(self, pause: float, source: str) -> None:
        await asyncio.sleep(pause * random.uniform(0.75, 1.25))
        try:
            self.seen["page_bytes"] += len(await self._get("/", source))
            self.seen["pages"] += 1
        except (OSError, EOFError) as error:
            self.seen["lost"] += 1
            print(f"a page: {error!r}", file=sys.stderr)

    async def _get(self, path: str, source: str) -> bytes:
        reader, writer = await self._connect(source)
        writer.write(self._request(path, "text/html", "Connection: close\r\n"))
        try:
            answer = await reader.read()
        finally:
            writer.close()
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise ConnectionError(answer[:80].decode(errors="replace"))
        return answer

    async def _connect(self, source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(HOST, self.port, local_addr=(source, 0), limit=1 << 22)

    def _request(self, path: str, accept: str, more: str = "") -> bytes:
        # Without compression, so that this process has less to do: the explorer keeps both forms.
        return f"GET {path} HTTP/1.1\r\nHost: {HOST}:{self.port}\r\nAccept: {accept}\r\n{more}\r\n".encode()


async def watch_all(port: int, count: int, path: str) -> None:
    watchers, slots = Watchers(port, path), asyncio.Semaphore(AT_ONCE)
    tasks = [asyncio.create_task(watchers.watch(number, count, slots)) for number in range(count)]
    async with asyncio.timeout(120):
        await watchers.ready.wait()
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print("done", json.dumps(watchers.seen), flush=True)
        watchers.seen.clear()
    for task in tasks:
        task.cancel()


class Counted:
    """How long answers took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.refused: list[str] = []

    async def time(self, call: Awaitable[object]) -> None:
        begun = time.monotonic()
        try:
            await call
        except MusterError as error:
            self.refused.append(str(error))
        self.seconds.append(time.monotonic() - begun)


async def work_all(load: Load, seconds: float) -> None:
    counted = Counted()
    clients = [
        OrchestratorClient(
            load.url, Signer.from_key(key), chain_id=load.chain_id, registry=load.registry, timeout=30, attempts=1
        )
        for key in load.keys
    ]
    until = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        for client, index in zip(clients, load.next_indices, strict=True):
            group.create_task(work(client, load.run, index, counted, until))
    for client in clients:
        await client.close()
    done(counted.seconds, (50, 90, 99), refused=len(counted.refused), why=counted.refused[:3])


async def work(client: OrchestratorClient, run: int, index: int, counted: Counted, until: float) -> None:
    """Act as a worker until the time is up."""
    assert client.signer is not None
    uploaded, turn = 0, random.randrange(REPORT_EVERY * UPLOAD_EVERY)
    await asyncio.sleep(random.uniform(0, CYCLE_SECONDS))
    while time.monotonic() < until:
        await counted.time(client.demand(run))
        if turn % REPORT_EVERY == 0:
            await counted.time(client.node(client.signer.address))
        if turn % UPLOAD_EVERY == 0:
            data, root = os.urandom(UPLOAD_BYTES), os.urandom(32)
            await counted.time(client.put_file(data, run, index + uploaded // ROOTS, root))
            uploaded += 1
        turn += 1
        await asyncio.sleep(CYCLE_SECONDS * random.uniform(0.75, 1.25))


# --- The orchestrator and the explorer


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
    """Measure both in turns. Orchestrator and explorer run.

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
    """Return the workers' counts over some seconds, while a trainer reports steps."""
    with started(module("benchmarks.page_cost", seconds)) as process:
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
    """Once all watchers are connected, yield a function that returns their counts since its last call."""
    path = f"/v1/runs/{big.run_fixture.run}/live"
    with started(module("benchmarks.page_cost", big.explorer.port, count, path)) as process:
        yield partial(ask, process, "")


def cost_figure(name: str, cost: Cost, target: float = TARGET) -> Figure:
    """Return the figure of this name: the median p99 of the rounds with watchers, over that of the rounds without."""
    watched, without = ([one["p99"] for one in rounds] for rounds in (cost.watched, cost.without))
    rounds = [*cost.watched, *cost.without]
    return relative(
        name,
        watched,
        limit=without,
        target=target,
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
    kinds = ("page_cost", WORKERS, ROUNDS, TARGET), ("page_cost_busy", BUSY_WORKERS, BUSY_ROUNDS, BUSY_TARGET)
    for name, workers, rounds, target in kinds:
        cost = measure_cost(big, pool, workers=workers, watchers=watchers, seconds=seconds, rounds=rounds)
        found.append(cost_figure(name, cost, target))
        pool = pool[2 * rounds * workers :]
    return found


def main() -> None:
    """`… PORT COUNT PATH` watches, ready once all are connected; `… SECONDS` reads a `Load` and works for so long."""
    if len(sys.argv) > 2:
        asyncio.run(watch_all(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
        return
    print("ready", flush=True)
    asyncio.run(work_all(Load.model_validate_json(sys.stdin.readline()), float(sys.argv[1])))
    sys.stdin.read()


if __name__ == "__main__":
    main()
