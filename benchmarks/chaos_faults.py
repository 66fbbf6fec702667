"""The faults of a chaos run, each as what it breaks and how that is mended."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final

from benchmarks.chaos_plan import CHAIN, Fault
from benchmarks.chaos_swarm import RELAY, STORE, Swarm
from muster.errors import MusterError
from testbed.chain.balancer import always

Breaks = Callable[[Swarm, Fault], AbstractAsyncContextManager[None]]
"""Breaks something for the length of a block."""


async def inflict(swarm: Swarm, fault: Fault) -> None:
    """Inflict one fault for its seconds, and record it, or that it could not be."""
    about = {"kind": fault.kind, "target": fault.target, "seconds": fault.seconds, "size": fault.size}
    try:
        async with FAULTS[fault.kind](swarm, fault):
            swarm.history.note("fault", **about)
            await asyncio.sleep(fault.seconds)
    except MusterError as error:  # such as a chain that cannot undo so many blocks
        swarm.history.note("fault_refused", **about, reason=str(error))


# --- Processes


@asynccontextmanager
async def _kill(swarm: Swarm, fault: Fault) -> AsyncIterator[None]:
    process = swarm.processes[fault.target]
    swarm.down.add(fault.target)
    if process.is_running:
        await asyncio.to_thread(process.kill)
    yield
    await asyncio.to_thread(process.spawn)
    swarm.down.discard(fault.target)


@asynccontextmanager
async def _stop(swarm: Swarm, fault: Fault) -> AsyncIterator[None]:
    process = swarm.processes[fault.target]
    if process.is_running:
        process.process.send_signal(signal.SIGSTOP)
    yield
    if process.is_running:
        process.process.send_signal(signal.SIGCONT)


# --- Lines


@asynccontextmanager
async def _cut(swarm: Swarm, fault: Fault) -> AsyncIterator[None]:
    line = swarm.lines[fault.target]
    line.cut()
    yield
    line.mend()


@asynccontextmanager
async def _silence(swarm: Swarm, fault: Fault) -> AsyncIterator[None]:
    line = swarm.lines[fault.target]
    line.fall_silent()
    yield
    line.mend()


@asynccontextmanager
async def _store_out(swarm: Swarm, _: Fault) -> AsyncIterator[None]:
    swarm.lines[STORE].cut()
    yield
    swarm.lines[STORE].mend()


@asynccontextmanager
async def _lying_relay(swarm: Swarm, _: Fault) -> AsyncIterator[None]:
    swarm.lines[RELAY].lies = True
    yield
    swarm.lines[RELAY].mend()


# --- The chain's endpoint of one process


@asynccontextmanager
async def _lag(swarm: Swarm, fault: Fault) -> AsyncIterator[None]:
    endpoint = swarm.endpoints[fault.target]
    async with swarm.clock() as local:
        endpoint.head = max(0, int(await local.request("eth_blockNumber"), 16) - fault.size)
    endpoint.lags = always
    yield
    endpoint.mend()


@asynccontextmanager
async def _lost_answers(swarm: Swarm, fault: Fault) -> AsyncIterator[None]:
    """Deal with every request, and lose every second answer."""
    endpoint, numbers = swarm.endpoints[fault.target], itertools.count()
    endpoint.loses = lambda _: next(numbers) % 2 == 0
    yield
    endpoint.mend()


@asynccontextmanager
async def _endpoint_errors(swarm: Swarm, fault: Fault) -> AsyncIterator[None]:
    endpoint = swarm.endpoints[fault.target]
    endpoint.fails = always
    yield
    endpoint.mend()


# --- The chain


@asynccontextmanager
async def _chain_killed(swarm: Swarm, _: Fault) -> AsyncIterator[None]:
    """Kill the chain; it resumes from its state of a moment ago."""
    async with swarm.clock() as local:
        await local.save(swarm.state)
    swarm.down.add(CHAIN)
    swarm.anvil.kill()
    yield
    await swarm.resume_chain()


@asynccontextmanager
async def _chain_silent(swarm: Swarm, _: Fault) -> AsyncIterator[None]:
    swarm.anvil.process.send_signal(signal.SIGSTOP)
    yield
    swarm.anvil.process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def _reorg(swarm: Swarm, fault: Fault) -> AsyncIterator[None]:
    async with swarm.clock() as local:
        await local.reorg(fault.size, drop=fault.drop)
    yield


@asynccontextmanager
async def _hours_pass(swarm: Swarm, fault: Fault) -> AsyncIterator[None]:
    await swarm.pass_hours(fault.size)
    yield


# --- What the orchestrator keeps its things in


@asynccontextmanager
async def _disk_full(swarm: Swarm, _: Fault) -> AsyncIterator[None]:
    assert swarm.place.disk is not None
    filler = swarm.place.disk / "filler"
    await asyncio.to_thread(_fill, filler)
    yield
    filler.unlink()


def _fill(path: Path) -> None:
    """Fill the file system of a path."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                os.write(file.fileno(), bytes(1 << 16))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


@asynccontextmanager
async def _database_out(swarm: Swarm, _: Fault) -> AsyncIterator[None]:
    assert swarm.place.postgres is not None
    swarm.place.postgres.freeze()
    yield
    swarm.place.postgres.thaw()


FAULTS: Final[Mapping[str, Breaks]] = {
    "kill": _kill,
    "stop": _stop,
    "cut": _cut,
    "silence": _silence,
    "lag": _lag,
    "lost_answers": _lost_answers,
    "endpoint_errors": _endpoint_errors,
    "chain_killed": _chain_killed,
    "chain_silent": _chain_silent,
    "reorg": _reorg,
    "hours_pass": _hours_pass,
    "disk_full": _disk_full,
    "store_out": _store_out,
    "database_out": _database_out,
    "lying_relay": _lying_relay,
}
"""By kind, as in `chaos_plan`."""
