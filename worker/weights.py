"""The policy to generate with: the newest checkpoint, fetched while the engine still generates with the one before.

`NewestCheckpoint` follows the chain and fetches; `Policy` owns the engine and its thread, and takes a new checkpoint
between two calls, never within one.
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

from muster import telemetry
from muster.chain.reads import ChainReader
from muster.chain.types import Checkpoint
from muster.errors import ChainError, CheckError, UnreachableError
from muster.run_data import Checkpoints
from worker.engine import Engine, Generation, GenerationRequest

log = telemetry.logger("worker")
STEP = telemetry.gauge("worker_policy_step", "Checkpoint that the engine generates with")
PAUSE = telemetry.histogram(
    "worker_reload_seconds", "Pause of generation for new weights", (0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
)

T = TypeVar("T")


@dataclass(frozen=True)
class Fetched:
    """A checkpoint and where it lies, verified."""

    checkpoint: Checkpoint
    path: Path


class Stopwatch:
    """How long something has been going on, all times together."""

    def __init__(self) -> None:
        self._before = 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        return self._before + (time.monotonic() - self._since if self._since is not None else 0.0)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._before, self._since = self.seconds, None


class NewestCheckpoint:
    """Keeps the newest checkpoint on disk, while `follow` runs."""

    def __init__(self, chain: ChainReader, run: int, checkpoints: Checkpoints, poll_seconds: float) -> None:
        self._chain = chain
        self._run = run
        self._checkpoints = checkpoints
        self._poll_seconds = poll_seconds
        self._newest: Fetched | None = None
        self.generating = Stopwatch()
        """Of whoever generates meanwhile."""

    @contextmanager
    def held(self) -> Iterator[Fetched | None]:
        """The newest checkpoint that is here, if any, kept on the disk meanwhile: an engine may take longer to start
        than several steps take to come."""
        fetched = self._newest
        with self._checkpoints.held(fetched.checkpoint.manifest_root) if fetched else nullcontext():
            yield fetched

    async def follow(self) -> None:
        """Fetch whatever is published, for ever. What cannot be had is tried again, and said in the log."""
        while True:
            try:
                await self._look()
            except (UnreachableError, ChainError, CheckError) as error:
                log.warning("no newer weights yet", error=str(error))
            await asyncio.sleep(self._poll_seconds)

    async def _look(self) -> None:
        latest = await self._chain.latest_checkpoint(self._run)
        if latest is None or (self._newest and self._newest.checkpoint == latest):
            return
        begun, generated = time.monotonic(), self.generating.seconds
        with self.held():  # until another one stands in its place, an engine may start from it
            path = await self._checkpoints.get(latest.step)
            self._newest = Fetched(latest, path)
        seconds, meanwhile = time.monotonic() - begun, self.generating.seconds - generated
        log.info(telemetry.WEIGHTS_ARRIVED, step=latest.step, seconds=round(seconds, 3), generating=round(meanwhile, 3))


class Policy:
    """The engine, in a thread of its own, and the checkpoint it runs."""

    def __init__(self, make_engine: Callable[[Path], Engine], generating: Stopwatch) -> None:
        self._make_engine = make_engine
        self._generating = generating
        self._engine: Engine | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self.loaded: Fetched | None = None

    async def load(self, fetched: Fetched) -> None:
        """Run this checkpoint from now on."""
        if self.loaded is not None and self.loaded.checkpoint == fetched.checkpoint:
            return
        self.loaded, begun = None, time.monotonic()
        if self._engine is None:
            log.info("starting the engine", step=fetched.checkpoint.step)
            self._engine = await self._do(self._make_engine, fetched.path)
        else:
            await self._do(self._engine.load_weights, fetched.path)
            pause = time.monotonic() - begun
            PAUSE.observe(pause)
            log.info(telemetry.WEIGHTS_LOADED, step=fetched.checkpoint.step, seconds=round(pause, 3))
        self.loaded = fetched
        STEP.set(fetched.checkpoint.step)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        assert self._engine is not None, "load a checkpoint first"
        with self._generating.running():
            return await self._do(self._engine.generate, requests)

    async def close(self) -> None:
        """Wait for what the engine is doing, and free it."""
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await self._do(engine.close)
        self._thread.shutdown(wait=False)

    async def _do(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
