"""Fetch versions from upstream, check every shard, and serve what is checked while more arrives.

A version is named by its root, so whatever upstream sends, a relay serves bytes that belong under that root or none.
It fetches a version when upstream's index shows a new one, or when it is first asked for. Of a new step it makes what
it can out of the one before and their difference. Its disk is bounded: the versions asked for last stay.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from muster.errors import MalformedError, MismatchError, MusterError, StorageError, UnreachableError
from muster.runtime import telemetry
from muster.runtime.journal import FolderLock
from muster.settings.schema import ShardcastSettings
from muster.shardcast.delta.difference import TargetStep, make_shards
from muster.shardcast.delta.kinds import open_difference
from muster.shardcast.fetch.bounds import DEFAULT_BOUNDS, FetchBounds
from muster.shardcast.fetch.download import Download
from muster.shardcast.fetch.indexes import UpstreamPages
from muster.shardcast.fetch.sources import Pool, check_urls
from muster.shardcast.format.manifest import MANIFEST_NAME, Manifest, Shard
from muster.shardcast.format.store import (
    Index,
    IndexEntry,
    entry_of,
    folder_bytes,
    incomplete,
    index_of,
    partial_path,
    remove_leftovers,
    remove_version,
    touch,
    version_path,
    versions,
)
from muster.shardcast.serve.http_server import RETRY_SOON, FileProblem, OpenFile, open_file
from muster.shardcast.serve.routes import Stats

MAX_PULLS: Final = 4
"""Versions fetched at the same time because somebody asked for them."""

MAX_OF_A_STEP: Final = 2
"""Versions that are fetched because an upstream shows them: its newest step, and one difference that leads there. The
first step comes besides, where that difference is an adapter to it."""

MAKE_SECONDS: Final = 10.0
MAKE_RATE: Final = 200e6
"""A step is made out of a difference within these seconds, and one more for so many bytes of it; else it is fetched."""

POLL_SECONDS: Final = 1.0
"""Pause between two polls of the upstreams: what a relay adds to the way of a new step."""

HOLD_SECONDS: Final = 10.0
"""How long a client waits for a shard that is on its way: half of what a fetch takes for a source's failure."""

MOST_VERSIONS: Final = 8
"""Versions a relay keeps, differences included, those asked for last: four steps. `cache_bytes` may allow fewer."""

FAILURE_SECONDS: Final = 5.0
"""A version that could not be fetched is not tried again for this long, however often it is asked for."""

MAX_FAILURES: Final = 64
_log = telemetry.logger("shardcast")

Anchor = Callable[[Manifest], Awaitable[None]]
"""Raises a MusterError when the chain does not have this manifest as a checkpoint."""


class VersionPull:
    """One version of this relay: on its way, complete, or failed."""

    def __init__(self, download: Download, hold_seconds: float) -> None:
        self.download = download
        self.leads_to: int | None = None
        """Of a difference that an upstream lists, the step that it makes."""
        self.failure: FileProblem | None = None
        self.task: asyncio.Task[None] | None = None
        self.counted = 0
        """Bytes of it that the statistics know."""
        self._hold_seconds = hold_seconds

    @property
    def running(self) -> bool:
        return self.task is not None and not self.task.done()

    async def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds. Raises FileProblem: why it never will, or 503 after `hold_seconds`."""
        deadline = time.monotonic() + self._hold_seconds
        while not condition():
            if self.failure is not None:
                raise self.failure
            if (seconds := deadline - time.monotonic()) <= 0:
                raise FileProblem(503, f"{what} still on the way", headers=RETRY_SOON)
            await self.download.wait_change(seconds)


class IncomingFile(OpenFile):
    """A file of a version that is on its way: its shards can be served one by one, as they are verified."""

    def __init__(self, opened: OpenFile, shards: Sequence[Shard], pull: VersionPull) -> None:
        super().__init__(opened.file, opened.size)
        self._shards = shards
        self._pull = pull

    async def ready(self, start: int, stop: int) -> int:
        await self._pull.wait_until(lambda: self._verified_to(start, stop) > start, "these bytes are")
        return self._verified_to(start, stop)

    def _verified_to(self, start: int, stop: int) -> int:
        """Return the end of the verified bytes that begin at `start`; `start` when that byte is not verified."""
        end = start
        for shard in self._shards:
            if shard.offset <= end < shard.end and end < stop and self._pull.download.has(shard):
                end = shard.end
        return min(end, stop)


@dataclass(eq=False)
class Relay:
    """A `VersionStore` over one folder, filled from upstreams. Use as an async context manager.

    settings: names folder and upstreams, and bounds what it takes of its machine.
    run: versions of other runs are refused; None accepts any. anchor: checks a manifest against the chain.
    follow: fetch new versions when they appear upstream, not only when first asked for them.
    Raises ConfigError when there is no upstream or another process has the folder, StorageError when it cannot be made.
    """

    settings: ShardcastSettings
    stats: Stats
    _: KW_ONLY
    run: int | None = None
    anchor: Anchor | None = None
    bounds: FetchBounds = DEFAULT_BOUNDS
    follow: bool = True
    poll_seconds: float = POLL_SECONDS
    hold_seconds: float = HOLD_SECONDS
    most_versions: int = MOST_VERSIONS

    def __post_init__(self) -> None:
        self.folder = self.settings.dir
        self.upstreams = check_urls(self.settings.upstreams)
        self.follower: asyncio.Task[None] | None = None
        """The task that follows the upstreams. Runs until cancelled; ends early where there is none to follow."""
        self._pulls: dict[bytes, VersionPull] = {}
        self._failed: dict[bytes, tuple[float, FileProblem]] = {}
        """When, and how, a version failed; the latest MAX_FAILURES."""
        self.upstream_answers = not self.follow
        self._room = asyncio.Lock()
        self._making = asyncio.Lock()
        self._indexes: dict[str, Index] = {}
        """The last index of each upstream."""
        self._newest_roots: set[bytes] = set()
        """Of the versions that upstreams listed as newest when last asked; they are removed last."""
        self._upstream_pages = UpstreamPages(self.upstreams, self.run, self.bounds)

    async def __aenter__(self) -> Relay:
        self._lock = FolderLock(self.folder)
        self.follower = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *_: object) -> None:
        pulls = [pull.task for pull in self._pulls.values()]
        asking = [task for _, task in self._upstream_pages.asked.values()]
        tasks: list[asyncio.Task[Any]] = [task for task in (self.follower, *pulls, *asking) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._lock.close()

    # Serving

    async def open(self, root: bytes, name: str) -> OpenFile:
        pull = self._pulls.get(root)
        if pull is None:
            when, problem = self._failed.get(root, (0.0, None))
            if problem is not None and time.monotonic() - when < FAILURE_SECONDS:
                raise problem
            if sum(other.running for other in self._pulls.values()) >= MAX_PULLS:
                raise FileProblem(503, "too many versions are on their way", headers=RETRY_SOON)
            pull = self._start(root)
        await pull.wait_until(lambda: pull.download.version is not None, "the manifest is")
        version = pull.download.version
        assert version is not None
        if name == MANIFEST_NAME:
            await asyncio.to_thread(touch, version.path)
            return open_file(version.path, name)  # a version that became complete meanwhile has moved
        opened = open_file(version.path, name)
        return IncomingFile(opened, version.manifest.shards_of(name), pull)

    async def index(self, page: int | None = None) -> Index:
        """Return the index of what is here, or a page of that and of what upstreams list.

        A client that asks for one that is not here gets it by way of this relay.
        """
        here = [pull.download.version for pull in self._pulls.values() if not pull.failure]
        entries = [entry_of(version.manifest) for version in here if version is not None]
        if page is None:
            return index_of(entries)
        steps = [entry.step for index in self._indexes.values() for entry in index.versions]
        return await self._upstream_pages.page(page, entries, max(steps, default=None))

    async def unready(self) -> list[str]:
        return [] if self.upstream_answers else ["no upstream has answered"]

    # Fetching

    async def _work(self) -> None:
        """Take up what is on disk, then follow upstream."""
        stored = [version.root for version in await asyncio.to_thread(versions, self.folder)]
        for root in (*reversed(stored), *await asyncio.to_thread(incomplete, self.folder)):
            pull = self._pulls.get(root) or self._start(root)
            if pull.task is not None and root in stored:
                await asyncio.wait([pull.task])  # one after the other: this hashes what is on disk
        async with Pool(self.upstreams, self.bounds) as pool:
            while self.follow:
                for root, entry in (await self._newest(pool)).items():
                    pull = self._pulls.get(root) or self._start(root, entry)
                    pull.leads_to = None if entry.base_step is None else entry.step
                await asyncio.sleep(self.poll_seconds)

    async def _newest(self, pool: Pool) -> dict[bytes, IndexEntry]:
        """Return the newest step of our run that each upstream lists, and its differences, by root.

        The first step is included where one of them is a difference to that.
        """
        found: dict[bytes, IndexEntry] = {}
        self._indexes = await pool.indexes()
        for index in self._indexes.values():
            entries = [entry for entry in index.versions if self.run in (None, entry.run)]
            newest = [entry for entry in entries if entry.step == entries[0].step][:MAX_OF_A_STEP]
            bases = {entry.base_step for entry in newest if entry.step > 1}
            newest += [entry for entry in entries if entry.step == 0 and entry.base_step is None and 0 in bases][:1]
            found |= {bytes.fromhex(entry.root[2:]): entry for entry in newest}
        self.upstream_answers = bool(self._indexes)
        if self.upstream_answers:
            self._newest_roots = set(found)
        return found

    def _start(self, root: bytes, entry: IndexEntry | None = None) -> VersionPull:
        """Fetch a version; `entry` is what an upstream says of it."""
        pool = Pool(self.upstreams, self.bounds)
        download = Download(
            root,
            self.folder,
            pool,
            accept=self._accept,
            progress=lambda _: self._count(pull),
            retry="none",
        )
        pull = self._pulls[root] = VersionPull(download, self.hold_seconds)
        pull.task = asyncio.create_task(self._run(root, pull, pool, entry))
        return pull

    async def _make(self, root: bytes, step: int) -> Collection[int]:
        """Make what shards can be made of a whole step that is here and a listed difference; return which.

        The download gets the rest. What goes wrong here costs some seconds, and no more.
        """
        verified, stop = set[int](), threading.Event()
        here = [pull.download.version for pull in self._pulls.values() if not pull.running]
        bases = [TargetStep(v.path, v.manifest) for v in here if v and v.manifest.base_step is None]
        largest = max((base.manifest.total_bytes for base in bases), default=0)
        async with self._making:
            try:
                async with asyncio.timeout(MAKE_SECONDS + largest / MAKE_RATE):
                    for pull in [pull for pull in self._pulls.values() if pull.leads_to == step]:
                        await self._apply(pull, root, bases, verified, stop)
            except TimeoutError:
                _log.warning("a difference came too slowly", root=root)
            finally:
                stop.set()
        return verified

    async def _apply(
        self, pull: VersionPull, root: bytes, bases: Sequence[TargetStep], verified: set[int], stop: threading.Event
    ) -> None:
        """Wait for a difference and make the shards that it gives."""
        assert pull.task is not None, "it has been started"
        await asyncio.wait([pull.task])
        if pull.failure or pull.download.version is None:
            return
        made = pull.download.version.manifest
        try:
            difference = await asyncio.to_thread(open_difference, pull.download.version.path, root)
            await self._accept(difference.target)
            for base in bases:
                if (base.manifest.run, base.manifest.step) == (made.run, made.base_step):
                    await asyncio.to_thread(make_shards, base, [difference], self.folder, verified, stop)
        except MusterError as error:
            _log.warning("cannot use a difference", root=root, why=str(error))

    async def _run(self, root: bytes, pull: VersionPull, pool: Pool, entry: IndexEntry | None) -> None:
        complete, made = False, ()
        try:
            if entry is not None and entry.base_step is None and not partial_path(self.folder, root).exists():
                made = await self._make(root, entry.step)
            async with pool:
                await pull.download.run(made)
            complete = True
        except MusterError as error:
            pull.failure = _problem_of(error, pool)
            log = _log.debug if pull.failure.status == 404 else _log.warning  # 404: not upstream or on chain yet
            log("not relayed", root=root, why=str(error))
            self._remember(root, pull.failure)
        finally:
            if not complete:
                self._pulls.pop(root, None)
            for report in pool.reports:
                if report.dropped:
                    self.stats.count_rejected(report.url)
            pull.download.notify()

    def _remember(self, root: bytes, problem: FileProblem) -> None:
        self._failed.pop(root, None)
        if problem.status != 404:  # it may appear upstream any moment
            self._failed[root] = time.monotonic(), problem
            while len(self._failed) > MAX_FAILURES:
                del self._failed[next(iter(self._failed))]

    def _count(self, pull: VersionPull) -> None:
        self.stats.count_fetched(pull.download.fetched_bytes - pull.counted)
        pull.counted = pull.download.fetched_bytes

    async def _accept(self, manifest: Manifest) -> None:
        """Refuse what is not to be relayed, and make room for the rest."""
        if self.run not in (None, manifest.run):
            raise MalformedError(f"{manifest.id} belongs to run {manifest.run}; this relay serves run {self.run}")
        if manifest.total_bytes > min(self.settings.cache_bytes, self.bounds.max_bytes):
            raise StorageError(f"{manifest.id} has {manifest.total_bytes} bytes, more than this relay keeps")
        if self.anchor is not None:
            await self.anchor(manifest)
        async with self._room:
            busy = {root for root, pull in self._pulls.items() if pull.running}
            for root in await asyncio.to_thread(self._make_room, manifest, busy):
                self._pulls.pop(root, None)

    def _make_room(self, manifest: Manifest, busy: set[bytes]) -> list[bytes]:
        """Remove versions until a new one fits, and return their roots.

        The one used longest ago goes first, the newest step last.
        """
        remove_leftovers(self.folder, protect=busy)
        idle = [version for version in versions(self.folder) if version.root not in busy]
        idle.sort(key=lambda version: version.root in self._newest_roots)
        coming = [path(self.folder, root) for root in busy - {manifest.root} for path in (partial_path, version_path)]
        used = sum(folder_bytes(path) for path in coming) + sum(folder_bytes(version.path) for version in idle)
        removed = []
        bytes_left, most = self.settings.cache_bytes - manifest.total_bytes, self.most_versions
        while idle and (used > bytes_left or len(idle) + len(busy) > most):
            oldest = idle.pop(0)
            used -= folder_bytes(oldest.path)
            remove_version(oldest.path)
            removed.append(oldest.root)
        if used > bytes_left:
            raise StorageError(f"no room for {manifest.id} while other versions are on their way")
        return removed


def _problem_of(error: MusterError, pool: Pool) -> FileProblem:
    """Return the answer to a request for a version that could not be fetched."""
    if isinstance(error, MismatchError):
        return FileProblem(502, "upstream sends something else", hint="fetch from another source")
    if isinstance(error, UnreachableError):
        if all(source.last_status == 404 for source in pool.sources):
            return FileProblem(404, "no upstream has this version", hint="see /v1/weights/index.json")
        return FileProblem(503, "no upstream delivers this version now", headers=RETRY_SOON)
    if isinstance(error, StorageError):
        return FileProblem(507, str(error))
    return FileProblem(404, str(error))
