"""Coming to a step by what has changed since one that is here, and getting only the rest whole.

    fetched = await fetch_step(root, run, step, sources, dest, anchored=chain_says)

Differences are looked for, fetched and applied first; each shard that comes out as the anchored manifest says is put
where the ordinary fetch would have put it. Then the ordinary fetch does its work: it believes nothing on the disk, and
gets what is missing, all of it if need be. So nothing here can make anybody load a wrong byte; whatever goes wrong here
costs time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from muster import telemetry
from muster.errors import CheckError, MalformedError, MismatchError, MusterError, StorageError
from muster.failpoints import failpoint
from muster.shardcast.client import Fetched, exclusive, fetch_with_report
from muster.shardcast.difference import TIMES_SMALLER, Step, made_shard, read_target, same_tiling
from muster.shardcast.folder import Index, prune, read_manifest, touch, version_path, versions
from muster.shardcast.kinds import check_difference, is_adapter, open_difference
from muster.shardcast.manifest import Manifest
from muster.shardcast.part import Part
from muster.shardcast.route import Offer, Route, cheapest, offers_of, without
from muster.shardcast.sources import FetchLimits, Pool, SourceReport
from muster.shardcast.transfer import Download, Progress

DELTAS: Final = ".deltas"
"""Folder, beside the versions, of the differences that were fetched."""

KEPT_DELTAS: Final = 16
INDEX_SECONDS: Final = 5.0
"""Sources that have not said by then what they have are not asked for differences."""

PATIENCE_SECONDS: Final = 15.0
"""Without another byte of a difference; then there are other ways."""

ATTEMPTS: Final = 3
"""Ways that are tried before the rest is fetched whole."""

HOPELESS: Final = 4
"""A difference of which so many shards came out wrong, and more than came out right, is applied no further."""

Anchored = Callable[[int], Awaitable[bytes]]
"""The manifest root that the chain has for a step. Raises ChainError when it has none."""

_log = telemetry.logger("shardcast")


async def fetch_step(
    root: bytes,
    run: int,
    step: int,
    sources: Sequence[str],
    dest: Path,
    *,
    anchored: Anchored,
    limits: FetchLimits | None = None,
    progress: Callable[[Progress], None] | None = None,
    lied: Callable[[SourceReport], None] | None = None,
) -> Fetched:
    """The same as `fetch_with_report`, and raising the same, by way of differences where that costs fewer bytes. Who
    lied about a difference has lied about no anchored root, and is only left aside."""
    bounds = limits or FetchLimits()
    catching_up = CatchUp(root, run, step, sources, dest, anchored, bounds)
    if not await asyncio.to_thread(version_path(dest, root).is_dir):
        await catching_up.run()
    fetched = await fetch_with_report(root, run, step, sources, dest, limits=bounds, progress=progress, lied=lied)
    return replace(fetched, delta_bytes=catching_up.fetched_bytes)


@dataclass(frozen=True)
class _Applied:
    """What came of the shards that were missing."""

    good: int
    bad: int


class CatchUp:
    """One attempt to come to a step by differences; `run` it once."""

    def __init__(
        self,
        root: bytes,
        run: int,
        step: int,
        sources: Sequence[str],
        dest: Path,
        anchored: Anchored | None,
        limits: FetchLimits,
        *,
        accept: Callable[[Manifest], Awaitable[None]] | None = None,
    ) -> None:
        """Without `anchored` only steps that are here are begun with. accept: called with the manifest that differences
        lead to, the right one by its root, before anything is laid out for it; raises a MusterError to refuse it."""
        self.fetched_bytes = 0
        """Of differences, and of a step to begin with."""
        self._root = root
        self._run = run
        self._step = step
        self._sources = sources
        self._dest = dest
        self._anchored = anchored
        self._limits = limits
        self._accept = accept
        self._quick = replace(limits, patience=min(limits.patience, PATIENCE_SECONDS))

    async def run(self, indexes: Mapping[str, Index] | None = None) -> None:
        """Make as many shards of the step as differences give. indexes: what each source says it has, where that is
        known. Raises ConfigError for sources that are none."""
        offers = offers_of(await self._indexes() if indexes is None else indexes, self._run)
        if self._anchored is None:
            offers = [offer for offer in offers if offer.base_step is not None]
        for _ in range(ATTEMPTS):
            held = await asyncio.to_thread(self._held)
            whole = self._limit(offers, held)
            route = cheapest(offers, held, self._step, whole)
            if route is None:
                return
            doubted = [*route.chain]
            try:
                if route.begin_with is not None and route.begin_with.root != await self._anchor(route.start):
                    doubted = [route.begin_with]
                    raise MismatchError(f"somebody offers another step {route.start} than the chain has")
                applied = await self._follow(route, held, whole)
            except (MusterError, TimeoutError) as error:
                _log.warning("cannot use differences", step=self._step, start=route.start, why=_reason(error))
            else:
                _log.info("used differences", step=self._step, start=route.start, **vars(applied))
                if not applied.bad:
                    return
            offers = without(offers, {url for offer in doubted for url in offer.urls})

    async def _indexes(self) -> dict[str, Index]:
        """What each source says it has, of those that say so in time."""
        async with Pool(self._sources, self._limits) as pool:
            asked = {asyncio.create_task(source.index()): source.url for source in pool.sources}
            answered, late = await asyncio.wait(asked, timeout=INDEX_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for task in answered:
            if (error := task.exception()) is not None and not isinstance(error, MusterError):
                raise error
        return {asked[task]: task.result() for task in answered if task.exception() is None}

    def _held(self) -> dict[int, Step]:
        """The steps of the run that are here."""
        found: dict[int, Step] = {}
        for version in versions(self._dest):
            try:
                manifest = read_manifest(version.path, version.root)
            except (StorageError, CheckError):
                continue
            if manifest.run == self._run and manifest.base_step is None:
                found[manifest.step] = Step(version.path, manifest)
        return found

    def _limit(self, offers: Sequence[Offer], held: dict[int, Step]) -> int:
        """What a way may cost: less than the whole step, whose size our own steps tell better than strangers do."""
        ours = [step.manifest.total_bytes for step in held.values()]
        theirs = [offer.size for offer in offers if offer.root == self._root]
        return min(max(ours or theirs, default=self._limits.max_bytes), self._limits.max_bytes)

    async def _follow(self, route: Route, held: dict[int, Step], whole: int) -> _Applied:
        """Fetch what a route needs and make what it gives: differences first, whose worth shows before a step to begin
        with is fetched for them. whole: bytes of the step."""
        async with asyncio.timeout(self._limits.timeout):
            folders = [await self._fetch_difference(offer, whole) for offer in route.chain]
            target = await asyncio.to_thread(read_target, folders[-1], None)
            if target.root != self._root:
                raise MismatchError(f"a difference leads to {target.id} instead of 0x{self._root.hex()}")
            if self._accept is not None:
                await self._accept(target)
            if route.cost >= whole and not await asyncio.to_thread(is_adapter, folders[-1]):
                raise MismatchError("a way that costs more than the step, and leads to no base for later ones")
        start = held.get(route.start) or await self._fetch_start(route.start)
        await asyncio.to_thread(touch, start.path)
        async with asyncio.timeout(self._limits.timeout):
            stop = threading.Event()
            async with exclusive(self._dest, self._root):
                try:
                    return await asyncio.to_thread(self._apply, start, folders, stop)
                finally:
                    stop.set()
                    await asyncio.to_thread(prune, self._dest / DELTAS, KEPT_DELTAS)

    async def _fetch_start(self, step: int) -> Step:
        root = await self._anchor(step)
        fetched = await fetch_with_report(root, self._run, step, self._sources, self._dest, limits=self._limits)
        self.fetched_bytes += fetched.fetched_bytes
        return Step(fetched.path, fetched.manifest)

    async def _anchor(self, step: int) -> bytes:
        assert self._anchored is not None, "a way that begins with a step that is not here"
        return await self._anchored(step)

    async def _fetch_difference(self, offer: Offer, whole: int) -> Path:
        """The folder of a difference: what was offered, and small enough for a step of so many bytes."""

        async def accept(manifest: Manifest) -> None:
            assert offer.base_step is not None
            largest = min(offer.size, whole // TIMES_SMALLER, self._limits.max_bytes)
            check_difference(manifest, self._run, offer.step, offer.base_step, largest)

        folder = self._dest / DELTAS
        async with Pool(offer.urls, self._quick) as pool, exclusive(folder, offer.root):
            download = Download(offer.root, folder, pool, accept=accept)
            path = await download.run()
            self.fetched_bytes += download.fetched_bytes
            return path

    def _apply(self, start: Step, folders: Sequence[Path], stop: threading.Event) -> _Applied:
        """Make the shards that are not here yet. Blocking; ends early when told to."""
        good = bad = 0
        with ExitStack() as stack:
            chain = [stack.enter_context(open_difference(folder)) for folder in folders]
            target = chain[-1].target
            if not all(same_tiling(start.manifest, difference.target) for difference in chain):
                raise MalformedError("differences between steps that are cut differently")
            part = Part.prepare(self._dest, target)
            for shard in target.shards:
                if stop.is_set() or bad >= max(HOPELESS, good + 1):
                    break
                if not part.fresh and part.holds(shard):
                    continue
                data = made_shard(start, chain, shard)
                if data is None:
                    bad += 1
                    continue
                part.write(shard, memoryview(data))
                good += 1
                failpoint("shardcast.shard_made")
        return _Applied(good, bad)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
