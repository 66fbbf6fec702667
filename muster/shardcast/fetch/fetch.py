"""Fetching a version whole. Nodes come here by way of `catch_up.fetch_step`, which first makes what it can out of
differences.

    path = await fetch(root, run, step, ["http://relay:8700"], Path(".muster/worker/weights"))

The root comes from the chain. What comes back is a folder in which every byte has been checked against it; nothing is
ever seen under that name before. A fetch that was killed goes on where it was.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from muster import telemetry
from muster.errors import MalformedError, MismatchError, UnreachableError
from muster.settings import ShardcastSettings
from muster.shardcast.folder import disk_error, lock_path, locked
from muster.shardcast.manifest import Manifest
from muster.shardcast.sources import FetchLimits, Pool, SourceReport
from muster.shardcast.transfer import Download, Progress

_LOCK_POLL_SECONDS = 0.1
_log = telemetry.logger("shardcast")


@dataclass(frozen=True)
class Fetched:
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
    """Fetched besides, to make shards out of what was here (`muster.shardcast.catch_up`)."""

    @property
    def liars(self) -> tuple[SourceReport, ...]:
        """The sources that sent something else than the anchored root says."""
        return tuple(source for source in self.sources if source.dropped)


def limits_of(settings: ShardcastSettings) -> FetchLimits:
    """The bounds an operator chose."""
    return FetchLimits(
        timeout=settings.fetch_seconds,
        patience=settings.patience_seconds,
        stall=settings.stall_seconds,
        streams=settings.streams,
        max_bytes=settings.max_bytes,
        rate=settings.download_rate,
    )


async def fetch(
    root: bytes,
    run: int,
    step: int,
    sources: Sequence[str],
    dest: Path,
    *,
    progress: Callable[[Progress], None] | None = None,
    limits: FetchLimits | None = None,
) -> Path:
    """The folder, inside `dest`, of the weights of (run, step), whose manifest root the chain says is `root`.

    Waits for sources that are not ready yet, resumes what an earlier fetch left, and returns at once (after checking
    it) what is here already. Raises

    - MismatchError: every source sent something else, or the root is that of another run or step
    - MalformedError: the version is a difference, or larger than `limits.max_bytes`
    - UnreachableError: no source delivered in time
    - StorageError: the disk is full or refuses
    - ConfigError: `sources` is empty or holds what is no base URL
    """
    fetched = await fetch_with_report(root, run, step, sources, dest, progress=progress, limits=limits)
    return fetched.path


async def fetch_with_report(
    root: bytes,
    run: int,
    step: int,
    sources: Sequence[str],
    dest: Path,
    *,
    progress: Callable[[Progress], None] | None = None,
    limits: FetchLimits | None = None,
    lied: Callable[[SourceReport], None] | None = None,
) -> Fetched:
    """The same as `fetch`, telling also what came from where and which sources lied; `lied` is called with each of
    these at the end, also of a fetch that fails."""
    bounds = limits or FetchLimits()
    started = time.monotonic()

    async def accept(manifest: Manifest) -> None:
        _check_is_wanted(manifest, run, step, bounds.max_bytes)

    async with Pool(sources, bounds) as pool:
        download = Download(root, dest, pool, accept=accept, progress=progress)
        try:
            async with asyncio.timeout(bounds.timeout), exclusive(dest, root):
                path = await download.run()
        except TimeoutError as error:
            raise UnreachableError(
                f"step {step} was not complete after {bounds.timeout:g} s "
                f"({download.found_bytes + download.fetched_bytes} bytes are kept)",
                hint="try again: it goes on where it was",
            ) from error
        finally:
            if lied is not None:
                for liar in [source for source in pool.reports if source.dropped]:
                    lied(liar)
    assert download.manifest is not None
    fetched = Fetched(
        path=path,
        manifest=download.manifest,
        found_bytes=download.found_bytes,
        fetched_bytes=download.fetched_bytes,
        seconds=time.monotonic() - started,
        sources=download.reports,
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
async def exclusive(dest: Path, root: bytes) -> AsyncIterator[None]:
    """Be the only one, process or task, that fetches this version into this folder."""
    path = lock_path(dest, root)
    try:
        await asyncio.to_thread(dest.mkdir, parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error("cannot fetch into", dest, error) from error
    while True:
        with locked(path) as ours:
            if ours:
                yield
                return
        await asyncio.sleep(_LOCK_POLL_SECONDS)
