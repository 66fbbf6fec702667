"""The policy to generate with: the newest checkpoint, fetched while the engine still generates with the one before.

`NewestCheckpoint` follows the chain and fetches; `CurrentWeights` owns the engine and its thread, and takes a new
checkpoint between two calls, never within one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from muster.chain.reads import ChainReader
from muster.chain.types import PolicyStep
from muster.clients.run_data import CheckpointFetcher
from muster.runtime import telemetry
from muster.runtime.loop import IDLE, Next
from muster.shardcast.format.store import used
from worker.engine import Engine, Generation, GenerationRequest

log = telemetry.logger("worker")
STEP = telemetry.gauge("worker_policy_step", "Checkpoint that the engine generates with")
PAUSE = telemetry.histogram(
    "worker_reload_seconds", "Pause of generation for new weights", (0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
)

T = TypeVar("T")


@dataclass(frozen=True)
class FetchedStep:
    """A checkpoint and where it lies, verified."""

    checkpoint: PolicyStep
    path: Path


class NewestCheckpoint:
    """Keeps the newest checkpoint on disk."""

    def __init__(self, chain: ChainReader, run: int, checkpoints: CheckpointFetcher) -> None:
        self._chain = chain
        self._run = run
        self._checkpoints = checkpoints
        self._newest: FetchedStep | None = None

    @contextmanager
    def held(self) -> Iterator[FetchedStep | None]:
        """Yield the newest checkpoint on disk, if any, and keep it there meanwhile.

        An engine may take longer to start than several steps take to come.
        """
        fetched = self._newest
        with used(fetched.path) if fetched else nullcontext():
            yield fetched

    async def poll(self) -> Next:
        """Fetch the newest checkpoint that is published, unless it is here."""
        known = self._newest.checkpoint.step if self._newest else 0
        latest = await self._chain.latest_checkpoint(self._run, known)
        if latest is None or (self._newest and self._newest.checkpoint == latest):
            return IDLE
        begun = time.monotonic()
        with self.held():  # until another one stands in its place, an engine may start from it
            path = await self._checkpoints.get(latest.step)
            self._newest = FetchedStep(latest, path)
        log.info(telemetry.WEIGHTS_ARRIVED, step=latest.step, seconds=round(time.monotonic() - begun, 3))
        return IDLE


class CurrentWeights:
    """The engine, in a separate thread, and the checkpoint it runs."""

    def __init__(self, make_engine: Callable[[Path], Engine]) -> None:
        self._make_engine = make_engine
        self._engine: Engine | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self.loaded: FetchedStep | None = None

    async def load(self, fetched: FetchedStep) -> None:
        """Run this checkpoint from now on."""
        if self.loaded is not None and self.loaded.checkpoint == fetched.checkpoint:
            return
        self.loaded, begun = None, time.monotonic()
        if self._engine is None:
            log.info("starting the engine", step=fetched.checkpoint.step)
            self._engine = await self._do(self._make_engine, fetched.path)
            seconds = round(time.monotonic() - begun, 3)
            log.info(telemetry.ENGINE_STARTED, step=fetched.checkpoint.step, seconds=seconds)
        else:
            await self._do(self._engine.load_weights, fetched.path)
            pause = time.monotonic() - begun
            PAUSE.observe(pause)
            log.info("weights loaded", step=fetched.checkpoint.step, seconds=round(pause, 3))
        self.loaded = fetched
        STEP.set(fetched.checkpoint.step)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Complete all requests, in order, as `Engine.generate`."""
        assert self._engine is not None, "load a checkpoint first"
        return await self._do(self._engine.generate, requests)

    async def close(self) -> None:
        """Stop what the engine generates. Close an engine that has its own processes.

        Any other is not closed, since vLLM collects garbage for seconds before it frees memory that the end of the
        process frees at once. An engine that is starting or loading weights goes on until then.
        """
        if self._engine is not None:
            engine, self._engine = self._engine, None
            engine.stop()
            if engine.limits.ranks > 1:
                await self._do(engine.close)
        self._thread.shutdown(wait=False)

    async def _do(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
