"""Fetch a version whole. Nodes come here by way of `catch_up.fetch_step`, which first applies differences.

    fetched = await fetch_version(root, run, step, ["http://relay:8700"], Path(".muster/worker/weights"))

The root comes from the chain. What comes back is a folder in which every byte has been checked against it; nothing is
ever seen under that name before. A fetch that was killed goes on where it was.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from muster.errors import MalformedError, MismatchError, UnreachableError
from muster.runtime import telemetry
from muster.settings.schema import ShardcastSettings
from muster.shardcast.fetch.download import Download, Progress
from muster.shardcast.fetch.sources import Pool, Retry, SourceReport
from muster.shardcast.format.manifest import Manifest
from muster.shardcast.format.store import disk_errors, lock_path, locked

OnReceived = Callable[[str, int], None]
"""Takes the base URL of a source, and how many bytes came from it and were right."""

_LOCK_POLL_SECONDS = 0.1
_log = telemetry.logger("shardcast")


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
    """Fetched besides, to make shards out of what was here (`muster.shardcast.fetch.catch_up`)."""

    @property
    def bad_sources(self) -> tuple[SourceReport, ...]:
        """Sources that sent something else than the anchored root says."""
        return tuple(source for source in self.sources if source.dropped)


async def fetch_version(
    root: bytes,
    run: int,
    step: int,
    sources: Sequence[str],
    dest: Path,
    *,
    progress: Callable[[Progress], None] | None = None,
    settings: ShardcastSettings | None = None,
    on_bad_source: Callable[[SourceReport], None] | None = None,
    on_received: OnReceived | None = None,
    retry: Retry = "all",
    verified: Collection[int] | None = None,
) -> FetchedVersion:
    """Fetch the weights of (run, step), whose manifest root the chain says is `root`, into a folder inside `dest`.

    Waits for sources that are not ready yet, resumes what an earlier fetch left, and returns at once (after checking
    it) what is here already.

    on_bad_source, on_received: called at the end, also of a fetch that fails, for each source that sent something else
    than the root says, and for each that sent right shards. retry: which sources that do not have the version are asked
    again. verified: for a caller that holds the version's lock (`exclusive`), shards that it has hashed and written
    under it; else the lock is taken here.

    Raises one of these:

    - MismatchError: every source sent something else, or the root is that of another run or step
    - MalformedError: the version is a difference, or larger than `settings.max_bytes`
    - UnreachableError: no source delivered in time
    - StorageError: the disk is full or refuses
    - ConfigError: `sources` is empty or holds what is no base URL
    """
    bounds = settings or ShardcastSettings()
    started = time.monotonic()

    async def accept(manifest: Manifest) -> None:
        _check_is_wanted(manifest, run, step, bounds.max_bytes)

    # 1. Fetch within the time-out, alone in this folder.
    async with Pool(sources, bounds) as pool:
        download = Download(root, dest, pool, accept=accept, progress=progress, retry=retry)
        lock = exclusive(dest, root) if verified is None else nullcontext()
        try:
            async with asyncio.timeout(bounds.fetch_seconds), lock:
                path = await download.run(verified or ())
        except TimeoutError as error:
            raise UnreachableError(
                f"step {step} was not complete after {bounds.fetch_seconds:g} s "
                f"({download.found_bytes + download.fetched_bytes} bytes are kept)",
                hint="try again: it goes on where it was",
            ) from error
        finally:
            # 2. Name the bad sources, and count what the good ones sent, however it ended.
            for report in pool.reports:
                if report.dropped and on_bad_source is not None:
                    on_bad_source(report)
                if report.bytes and on_received is not None:
                    on_received(report.url, report.bytes)

    # 3. Say what came from where.
    assert download.version is not None
    fetched = FetchedVersion(
        path=path,
        manifest=download.version.manifest,
        found_bytes=download.found_bytes,
        fetched_bytes=download.fetched_bytes,
        seconds=time.monotonic() - started,
        sources=pool.reports,
    )
    _log.info("fetched", step=step, bytes=fetched.fetched_bytes, found=fetched.found_bytes, seconds=fetched.seconds)
    return fetched


def _check_is_wanted(manifest: Manifest, run: int, step: int, max_bytes: int) -> None:
    if (manifest.run, manifest.step) != (run, step):
        raise MismatchError(
            f"{manifest.id} is the root of step {manifest.step} of run {manifest.run}, "
            f"and not of step {step} of run {run}",
            hint="take the root from the chain: muster run show",
        )
    if manifest.base_step is not None:
        raise MalformedError(f"{manifest.id} is a difference to step {manifest.base_step}, and no step")
    if manifest.total_bytes > max_bytes:
        raise MalformedError(
            f"step {step} has {manifest.total_bytes} bytes; at most {max_bytes} are accepted",
            hint="raise shardcast.max_bytes if that is what you want",
        )


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
