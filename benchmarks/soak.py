"""Soak: whether a swarm grows while it works, with weeks on the chain's clock and members that come and go.

    python benchmarks/soak.py [--minutes 125] [--json] [--keep FOLDER]

The swarm of `chaos`, without faults, on SQLite and a folder. The chain's clock is moved on by an hour every
HOUR_SECONDS, so that windows pass and pay is claimed. Every CHURN_SECONDS a worker joins, and the one that joined
before retires. Every SAMPLE_SECONDS memory and descriptors of the orchestrator, origin, relay, explorer and the members
that stay are counted, and the bytes that they keep on disk, without logs, histories and the chain's state.

`soak_growth_…` is the slope of the last half of the samples by least squares, in % of their mean an hour. Work goes by
the protocol's deadlines (`orchestrator.retention`): `bytes_per_commitment` is what stays of that half's commitments.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.chaos_swarm import Place, Swarm, running
from benchmarks.report import Figure, figure, parser, show
from benchmarks.watched import memory_of
from muster.contracts import runs
from muster.runtime import telemetry
from testbed.processes import Process

HOUR_SECONDS: Final = 10.0
CHURN_SECONDS: Final = 90.0
SAMPLE_SECONDS: Final = 15.0
MAKE_SECONDS: Final = 4.0
MINUTES: Final = 125.0
MOST_PERCENT: Final = 1.0
LEFT_OUT: Final = frozenset({"log.jsonl", "said.log", "history.jsonl", "chain.json"})
WEEK_HOURS: Final = 168


@dataclass(frozen=True)
class Sample:
    """What the swarm holds at one moment."""

    hours: float
    """Since the start."""
    memory: int
    """Resident bytes of the processes that stay, without those of mapped files."""
    descriptors: int
    disk: int
    """Bytes."""
    commitments: int


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser(__doc__)
    made.add_argument("--minutes", type=float, default=MINUTES)
    made.add_argument("--keep", type=Path, help="folder for what the processes keep, which must not exist")
    options = made.parse_args(arguments)
    telemetry.configure("soak", level="error")
    with tempfile.TemporaryDirectory(prefix="muster-soak-") as folder:
        if options.keep is not None:
            options.keep.mkdir(parents=True)
        samples, weeks = asyncio.run(soak(options.keep or Path(folder), options.minutes * 60))
    middle, last = samples[len(samples) // 2], samples[-1]
    found = {"minutes": round(last.hours * 60, 1), "weeks": round(weeks, 2), "samples": len(samples)}
    found["commitments"] = last.commitments
    found["bytes_per_commitment"] = round((last.disk - middle.disk) / max(1, last.commitments - middle.commitments))
    status = show(figures(samples), as_json=options.json, **found)
    if not options.json:
        print(*(f"{name}: {value}" for name, value in found.items()), sep="\n")
    return status


# --- Slopes


def growth(points: Sequence[tuple[float, float]]) -> float:
    """Return the least-squares slope of the last half of (hours, amount), in % of their mean an hour.

    Needs two points at different times in that half.
    """
    last = points[len(points) // 2 :]
    mean_x, mean_y = (sum(point[axis] for point in last) / len(last) for axis in (0, 1))
    rise = sum((x - mean_x) * (y - mean_y) for x, y in last)
    return 100 * rise / sum((x - mean_x) ** 2 for x, _ in last) / mean_y


def figures(samples: Sequence[Sample]) -> list[Figure]:
    """Return the document's figures."""
    kinds = ("memory", "descriptors", "disk")
    slopes = {kind: growth([(one.hours, getattr(one, kind)) for one in samples]) for kind in kinds}
    return [
        figure(
            f"soak_growth_{kind}",
            slope,
            target=MOST_PERCENT,
            unit="% an hour",
            at_most=True,
            first=getattr(samples[len(samples) // 2], kind),
            last=getattr(samples[-1], kind),
        )
        for kind, slope in slopes.items()
    ]


# --- The swarm


async def soak(folder: Path, seconds: float) -> tuple[list[Sample], float]:
    """Let a swarm work; return its samples and the weeks that passed on chain."""
    async with running(Place(folder, retention="deadlines"), 0, MAKE_SECONDS) as swarm, AsyncExitStack() as stack:
        stays = dict(swarm.processes)
        before = await _now(swarm)
        supervisor = asyncio.create_task(swarm.supervise())
        joining = asyncio.Lock()
        churn = asyncio.create_task(_churn(swarm, stack, joining))
        clock = asyncio.create_task(_pass_time(swarm, joining))
        samples, began = list[Sample](), time.monotonic()
        try:
            while (passed := time.monotonic() - began) < seconds:
                samples.append(await _sample(swarm, stays, passed / 3600))
                print(samples[-1], file=sys.stderr)
                for task in (supervisor, churn, clock):
                    if task.done():
                        task.result()
                await asyncio.sleep(SAMPLE_SECONDS)
        finally:
            for task in (churn, clock, supervisor):
                task.cancel()
            await asyncio.gather(churn, clock, supervisor, return_exceptions=True)
        return samples, (await _now(swarm) - before) / 3600 / WEEK_HOURS


async def _now(swarm: Swarm) -> int:
    async with swarm.clock() as local:
        return await local.now()


async def _pass_time(swarm: Swarm, joining: asyncio.Lock) -> None:
    """Move the clock on by an hour at a time, but not while a worker joins: its consent lasts an hour."""
    while True:
        await asyncio.sleep(HOUR_SECONDS)
        async with joining:
            await swarm.pass_hours(1)


async def _churn(swarm: Swarm, stack: AsyncExitStack, joining: asyncio.Lock) -> None:
    """Let a worker join, and the one before it retire."""
    number, previous = len(swarm.nodes), ""
    while True:
        await asyncio.sleep(CHURN_SECONDS)
        number += 1
        name = f"w{number}"
        async with joining:
            await swarm.add_worker(name, stack)
        if previous:
            await swarm.retire(previous)
        previous = name


async def _sample(swarm: Swarm, stays: Mapping[str, Process], hours: float) -> Sample:
    pids, passing = [process.pid for process in stays.values()], swarm.nodes.keys() - stays.keys()
    async with swarm.run.chain("stranger") as chain:
        counts = [(await chain.call(runs.work(node))).next for node in swarm.nodes.values()]
    return Sample(
        hours=hours,
        memory=sum(memory_of(pid) for pid in pids),
        descriptors=sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
        disk=await asyncio.to_thread(kept_bytes, swarm.place.folder, passing),
        commitments=sum(counts),
    )


def kept_bytes(folder: Path, without: Set[str] = frozenset()) -> int:
    """Return the bytes of the files in a folder, without those of LEFT_OUT and those in folders of these names."""
    total = 0
    for within, folders, names in os.walk(folder):  # which passes over folders that go meanwhile
        folders[:] = set(folders) - without
        for name in set(names) - LEFT_OUT:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(within, name)).st_size
    return total


if __name__ == "__main__":
    sys.exit(main())
