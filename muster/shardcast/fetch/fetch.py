"""Fetch a version whole. Nodes come here by way of `delta_fetch.fetch_step`, which first applies differences.

    fetched = await fetch_version(FetchRequest(root, run, step, ["http://relay:8700"], Path(".muster/worker/weights")))

The root comes from the chain. What comes back is a folder in which every byte has been checked against it; nothing is
ever seen under that name before. A fetch that was killed resumes.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from muster.errors import MalformedError, MismatchError, UnreachableError
from muster.models.weights import weights_in
from muster.runtime import telemetry
from muster.shardcast.fetch.bounds import DEFAULT_BOUNDS, FetchBounds
from muster.shardcast.fetch.download import Download, Progress
from muster.shardcast.fetch.sources import Pool, Retry, SourceReport
from muster.shardcast.format.manifest import Manifest
from muster.shardcast.format.store import disk_errors, lock_path, locked

_LOCK_POLL_SECONDS = 0.1
_log = telemetry.logger("shardcast")


@dataclass(frozen=True)
class FetchRequest:
    """A version to be fetched into a folder inside `dest`: a step's weights, or a difference that leads to it."""

    root: bytes
    """Of its manifest, by the chain."""
    run: int
    step: int
    sources: Sequence[str]
    """Base URLs."""
    dest: Path
    public: bool = field(default=False, kw_only=True)
    """Whether strangers chose the sources: then nothing is asked of an address outside the public network."""
    bounds: FetchBounds = DEFAULT_BOUNDS
    progress: Callable[[Progress], None] | None = None
    on_source: Callable[[SourceReport], None] | None = None
    """Called for each source at the end, also of a fetch that fails."""
    base_step: int | None = None
    """Of a difference, the step that it is one to."""

    async def check(self, manifest: Manifest) -> None:
        """Raise MismatchError for another step's manifest, MalformedError for another kind's, or what is too large."""
        if (manifest.run, manifest.step) != (self.run, self.step):
            raise MismatchError(
                f"{manifest.id} is the root of step {manifest.step} of run {manifest.run}, "
                f"and not of step {self.step} of run {self.run}",
                hint="take the root from the chain: muster run show",
            )
        if manifest.base_step != self.base_step:
            what = "a whole step" if manifest.base_step is None else f"a difference to step {manifest.base_step}"
            raise MalformedError(f"{manifest.id} is {what}, which was not asked for")
        if manifest.total_bytes > (most := self.bounds.max_bytes):
            raise MalformedError(
                f"{manifest.id} of step {self.step} has {manifest.total_bytes} bytes; at most {most} are accepted",
                hint="ask the run's owner: no model that Muster trains is so large",
            )


@dataclass(frozen=True)
class FetchedVersion:
    """A version on disk, and how it came there."""

    path: Path
    manifest: Manifest
    found_bytes: int
    """Of shards that were on disk already and verified."""
    fetched_bytes: int
    """Of shards that came from sources."""
    seconds: float
    sources: tuple[SourceReport, ...]
    delta_bytes: int = 0
    """Fetched besides, to make shards out of what was here (`muster.shardcast.fetch.delta_fetch`)."""

    @property
    def bad_sources(self) -> tuple[SourceReport, ...]:
        """Sources that sent something else than the anchored root says."""
        return tuple(source for source in self.sources if source.dropped)


async def fetch_version(
    request: FetchRequest, *, retry: Retry = "all", verified: Collection[int] | None = None
) -> FetchedVersion:
    """Fetch a version whole.

    Waits for sources that are not ready yet, resumes what an earlier fetch left, and returns at once (after checking
    it) what is here already.

    retry: which sources that do not have the version are asked again. verified: for a caller that holds the version's
    lock (`exclusive`), shards that it has hashed and written under it; else the lock is taken here.

    Raises one of these:

    - MismatchError: every source sent something else, or the root is that of another run or step
    - MalformedError: the version is a difference, larger than `bounds.max_bytes`, or no checkpoint (`weights_in`)
    - UnreachableError: no source delivered in time
    - StorageError: the disk is full or refuses
    - ConfigError: `sources` is empty or holds what is no base URL
    """
    root, dest, seconds = request.root, request.dest, request.bounds.seconds
    started = time.monotonic()

    # 1. Fetch within the time-out, alone in this folder.
    async with Pool(request.sources, request.bounds, public=request.public) as pool:
        download = Download(root, dest, pool, accept=request.check, progress=request.progress, retry=retry)
        lock = exclusive(dest, root) if verified is None else nullcontext()
        try:
            async with asyncio.timeout(seconds), lock:
                path = await download.run(verified or ())
        except TimeoutError as error:
            raise UnreachableError(
                f"step {request.step} was not complete after {seconds:g} s "
                f"({download.found_bytes + download.fetched_bytes} bytes are kept)",
                hint="try again: the fetch resumes",
            ) from error
        finally:
            # 2. Say what each source did, however it ended.
            for report in pool.reports:
                if request.on_source is not None:
                    request.on_source(report)

    # 3. Refuse a step that two programs could read apart.
    if request.base_step is None:
        await asyncio.to_thread(weights_in, path)

    # 4. Say what came from where.
    assert download.version is not None
    fetched = FetchedVersion(
        path=path,
        manifest=download.version.manifest,
        found_bytes=download.found_bytes,
        fetched_bytes=download.fetched_bytes,
        seconds=time.monotonic() - started,
        sources=pool.reports,
    )
    found = {"bytes": fetched.fetched_bytes, "found": fetched.found_bytes, "seconds": fetched.seconds}
    _log.info("fetched", step=request.step, **found)
    return fetched


@asynccontextmanager
async def exclusive(dest: Path, root: bytes, seconds: float = math.inf) -> AsyncIterator[None]:
    """Be the only one, process or task, that fetches this version into this folder.

    Raises TimeoutError where another one goes on for longer than `seconds`.
    """
    path, deadline = lock_path(dest, root), time.monotonic() + seconds
    with disk_errors("cannot fetch into", dest):
        await asyncio.to_thread(dest.mkdir, parents=True, exist_ok=True)
    while True:
        with locked(path) as ours:
            if ours:
                yield
                return
        if time.monotonic() > deadline:
            raise TimeoutError
        await asyncio.sleep(_LOCK_POLL_SECONDS)
