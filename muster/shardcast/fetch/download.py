"""Get one version into a folder from several sources at once: what client and relay have in common.

Every source has a few connections. Each connection takes the next unclaimed shard, so faster sources deliver more. Once
all are claimed, an idle source also requests the shard that a slower one would deliver last; each is requested from two
sources at most. A shard is held in memory until its hash is known and only then written, so wrong bytes never touch the
disk.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final

from muster.errors import CheckError, StorageError, UnreachableError
from muster.runtime.failpoints import failpoint
from muster.runtime.files import sync
from muster.shardcast.fetch.sources import Pool, Retry, Source, Stream, shard_seconds
from muster.shardcast.format.manifest import Manifest, Shard
from muster.shardcast.format.partial import PartialVersion
from muster.shardcast.format.store import touch

MEMORY_BYTES: Final = 64 * 1024 * 1024
"""For shards whose hashes are not known yet. Each source has one connection even where that takes more."""

SECOND_TRY_SECONDS: Final = 1.0
"""A source of unknown speed also requests a shard once it takes three times the usual and this longer."""

TIMES_FASTER: Final = 2.0
"""How many times as soon a source must be able to deliver a shard that another one is sending."""

_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True)
class Progress:
    """How far a fetch is; all in bytes."""

    done: int
    """Verified and on disk, found there or fetched."""
    total: int
    found: int
    """Of `done`, what was on disk already."""

    def __str__(self) -> str:
        return f"{self.done / 2**20:.1f} of {self.total / 2**20:.1f} MiB"


@dataclass
class _Flight:
    """A shard under way."""

    since: float
    streams: list[Stream]

    def seconds_left(self, size: int, now: float) -> float:
        """Return how long the rest of its bytes takes at the pace so far."""
        received = self.streams[0].received
        return (now - self.since) * (size - received) / received if received else math.inf


class DownloadPlan:
    """Decide which shard is fetched next, and from where. Pure bookkeeping: the caller passes the time."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        """Bytes of each shard."""
        self.have: set[int] = set()
        """Shards on disk."""
        self._todo = list(range(len(sizes)))
        self._flying: dict[int, _Flight] = {}
        self._usual = 0.0

    @property
    def finished(self) -> bool:
        return len(self.have) == len(self.sizes)

    def take(self, stream: Stream, now: float) -> int | None:
        """Return the shard this stream should fetch now; None when there is none for it at the moment."""
        while self._todo:
            index = heapq.heappop(self._todo)
            if index not in self.have:
                self._flying[index] = _Flight(now, [stream])
                return index
        return self._second_try(stream, now)

    def _second_try(self, stream: Stream, now: float) -> int | None:
        """Return the shard that one other source would deliver last, if this one can deliver it sooner."""
        waiting = [
            (flight.seconds_left(self.sizes[index], now), -flight.since, index)
            for index, flight in self._flying.items()
            if len(flight.streams) == 1 and self._is_late(index, stream.source, now)
        ]
        if not waiting:
            return None
        index = max(waiting)[2]
        self._flying[index].streams.append(stream)
        return index

    def _is_late(self, index: int, source: Source, now: float) -> bool:
        """Return whether a source would deliver a shard much sooner than the other one that is sending it."""
        flight, size = self._flying[index], self.sizes[index]
        if flight.streams[0].source is source:
            return False
        elapsed = now - flight.since
        if elapsed > SECOND_TRY_SECONDS + 3 * self._usual:
            return True
        seconds = source.report.expected_seconds(size)
        return 0 < seconds / TIMES_FASTER < elapsed and flight.seconds_left(size, now) > TIMES_FASTER * seconds

    def arrived(self, index: int, now: float) -> bool:
        """Note that a shard has been verified; return False when another copy of it came first."""
        flight = self._flying.pop(index, None)
        if flight is None:
            return False
        seconds = now - flight.since
        self._usual = seconds if not self._usual else 0.8 * self._usual + 0.2 * seconds
        return True

    def lost(self, index: int, source: Source) -> None:
        """Note that a source did not deliver: the shard is fetched again unless another source still tries."""
        flight = self._flying.get(index)
        if flight is None:
            return
        flight.streams = [stream for stream in flight.streams if stream.source is not source]
        if not flight.streams:
            del self._flying[index]
            heapq.heappush(self._todo, index)


@dataclass(eq=False)
class Download:
    """One version on its way into `folder`; `run` it once. Its parts can be waited for while it runs.

    accept: called with the manifest once that is known to have the right root, before anything is written; raises a
    MusterError to refuse it.
    """

    root: bytes
    folder: Path
    pool: Pool
    _: KW_ONLY
    accept: Callable[[Manifest], Awaitable[None]]
    progress: Callable[[Progress], None] | None = None
    retry: Retry = "all"

    def __post_init__(self) -> None:
        self.found_bytes = 0
        """Of shards that were on disk already."""
        self.fetched_bytes = 0
        self.version: PartialVersion | None = None
        """Its manifest, and where its files are now, once the manifest is known and accepted."""
        self._plan = DownloadPlan([])
        self._changed = asyncio.Event()
        self._last_good = 0.0
        self._disk_failure: StorageError | None = None

    async def run(self, verified: Collection[int] = ()) -> Path:
        """Fetch what is missing and return the complete version's folder.

        verified: shards that the caller has just hashed and written, which are not hashed again.
        Raises MismatchError when all sources send wrong bytes, UnreachableError when none delivers, StorageError when
        the disk refuses, and what `accept` raises.
        """
        version = await asyncio.to_thread(PartialVersion.whole, self.folder, self.root)
        if version is None:
            version = await self._complete(verified)
        else:
            await self.accept(version.manifest)
            self._begin(version)
            for shard in version.manifest.shards:
                self._found(version.manifest, shard)
        await asyncio.to_thread(touch, version.path)
        return version.path

    async def _complete(self, verified: Collection[int]) -> PartialVersion:
        """Take up what is on disk, fetch the rest, and give the version its name."""
        manifest = await asyncio.to_thread(PartialVersion.stored_manifest, self.folder, self.root)
        if manifest is None:
            manifest = await self.pool.manifest(self.root, self.retry)
        await self.accept(manifest)
        version = await asyncio.to_thread(PartialVersion.prepare, self.folder, manifest)
        self._begin(version)
        for shard in () if version.fresh else manifest.shards:
            if shard.index in verified or await asyncio.to_thread(version.holds, shard):
                self._found(manifest, shard)
        await self._fetch_missing(version)
        await asyncio.to_thread(version.sync)
        version.finish()  # in this thread: no other task of this loop sees the old path after the rename
        await asyncio.to_thread(sync, self.folder)
        return version

    def _begin(self, version: PartialVersion) -> None:
        self._plan = DownloadPlan([shard.size for shard in version.manifest.shards])
        self.version = version
        self.notify()

    def _found(self, manifest: Manifest, shard: Shard) -> None:
        self._plan.have.add(shard.index)
        self.found_bytes += shard.size
        self._report(manifest)

    def has(self, shard: Shard) -> bool:
        """Return whether a shard is verified and on disk."""
        return shard.index in self._plan.have

    async def wait_change(self, seconds: float) -> None:
        """Return after the next change, or after `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def notify(self) -> None:
        """Wake all who `wait_change`."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _fetch_missing(self, version: PartialVersion) -> None:
        if self._plan.finished:
            return
        bounds = self.pool.bounds
        largest = max(shard.size for shard in version.manifest.shards)
        sources = self.pool.live
        per_source = max(1, min(bounds.streams, MEMORY_BYTES // (largest * max(1, len(sources)))))
        self._last_good = time.monotonic()
        async with asyncio.TaskGroup() as group:
            streams = [
                group.create_task(self._stream(version, source)) for source in sources for _ in range(per_source)
            ]
            seconds = shard_seconds(bounds, largest) + bounds.stall_seconds
            failure = await self._watch(max(bounds.give_up_seconds, seconds))
            for stream in streams:
                stream.cancel()
        if failure is not None:
            raise failure

    async def _watch(self, give_up: float) -> Exception | None:
        """Wait until all shards are here, or return why that will not happen."""
        while not self._plan.finished:
            if self._disk_failure is not None:
                return self._disk_failure
            if not self.pool.live or time.monotonic() - self._last_good > give_up:
                count = len(self._plan.sizes)
                return self.pool.nothing_left(
                    f"{count - len(self._plan.have)} of {count} shards of 0x{self.root.hex()}"
                )
            await self.wait_change(_POLL_SECONDS)
        return None

    async def _stream(self, version: PartialVersion, source: Source) -> None:
        """Fetch shard after shard from one source over one connection, until it is dropped."""
        stream = Stream(source)
        while not source.report.dropped:
            if source.backoff:
                await asyncio.sleep(source.backoff)
                continue
            index = self._plan.take(stream, time.monotonic())
            if index is None:
                await self.wait_change(_POLL_SECONDS)
            else:
                await self._fetch_shard(version, stream, version.manifest.shards[index])

    async def _fetch_shard(self, version: PartialVersion, stream: Stream, shard: Shard) -> None:
        source = stream.source
        try:
            seconds = await stream.fetch(version.manifest, shard, version.write)
        except UnreachableError as error:
            source.failed(error)
            self._plan.lost(shard.index, source)
        except CheckError as error:
            source.drop(error)
            self._plan.lost(shard.index, source)
        except StorageError as error:
            self._disk_failure = error
        else:
            self._note(version, shard, source, seconds)
        self.notify()

    def _note(self, version: PartialVersion, shard: Shard, source: Source, seconds: float) -> None:
        """Note that a shard is on disk. A second copy counts for nothing: verified bytes, at the same place."""
        if not self._plan.arrived(shard.index, time.monotonic()):
            return
        source.delivered(shard.size, seconds)
        self._plan.have.add(shard.index)
        self._last_good = time.monotonic()
        self.fetched_bytes += shard.size
        self._report(version.manifest)
        if not self._plan.finished:
            failpoint("shardcast.shard_written")

    def _report(self, manifest: Manifest) -> None:
        self.notify()
        if self.progress:
            found, fetched = self.found_bytes, self.fetched_bytes
            self.progress(Progress(done=found + fetched, total=manifest.total_bytes, found=found))
