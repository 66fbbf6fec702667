"""Make the shards of a step out of differences, by the cheapest route among those that sources offer.

    fetched = await fetch_step(FetchRequest(root, run, step, sources, dest), chain_root)

A route begins with a step that is held here, or with one that is fetched whole first. Its differences are fetched, and
each shard that comes out as the anchored manifest says is put where the ordinary fetch would have put it. A route that
fails is not tried again, nor is what made it fail. The ordinary fetch then gets what is missing, all of it if need be,
and trusts only shards that were hashed under the same lock: so an error here costs time, and never makes a node load a
wrong byte.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from muster.errors import MalformedError, MismatchError, MusterError, UnreachableError
from muster.runtime import telemetry
from muster.runtime.failpoints import failpoint
from muster.shardcast.delta.difference import (
    TIMES_SMALLER,
    TargetStep,
    first_wrong,
    made_shard,
    read_target,
    same_tiling,
)
from muster.shardcast.delta.kinds import check_difference, is_adapter, open_difference
from muster.shardcast.fetch.download import Download
from muster.shardcast.fetch.fetch import FetchedVersion, FetchRequest, exclusive, fetch_version
from muster.shardcast.fetch.route import MAX_CHAIN_STEPS, Offer, Route, cheapest
from muster.shardcast.fetch.source_offers import MAX_FAILED_OFFERS, SourceOffers
from muster.shardcast.fetch.sources import MAX_SOURCES, Pool
from muster.shardcast.format.manifest import Manifest
from muster.shardcast.format.partial import PartialVersion
from muster.shardcast.format.store import Index, described, prune, touch, version_path

DELTAS: Final = ".deltas"
"""Folder, beside the versions, of the differences that were fetched."""

KEPT_DELTAS: Final = 16
"""Differences that stay there, besides those in use."""

DELTA_IDLE_SECONDS: Final = 15.0
"""Without another byte of a difference, after which another route is tried."""

ATTEMPTS: Final = 3
"""Routes that are tried before a step that is offered whole is fetched whole."""

MAX_BAD_SHARDS: Final = 4
"""A difference of which so many shards came out wrong, and more than came out right, is applied no further."""

Anchored = Callable[[int], Awaitable[bytes]]
"""The manifest root that the chain has for a step. Raises ChainError when it has none."""


_in_use: Final[Counter[Path]] = Counter()
"""Differences that this process is about to apply, by folder: several steps may be made at the same time."""

_log = telemetry.logger("shardcast")


@dataclass(frozen=True)
class _Applied:
    """What came of the shards that were missing."""

    good: int
    bad: int
    blamed: frozenset[int]
    """Which differences of the chain made bad ones, by their places; -1 for the step to begin with."""


@dataclass(eq=False)
class DeltaFetch:
    """One attempt to come to a step by differences. Its caller has the version's lock, or the folder's."""

    request: FetchRequest
    """`on_received` is called only for sources of differences that made right shards, and of a step to begin with."""
    anchored: Anchored | None
    """Without it a route can only begin with a step that is held here."""
    accept: Callable[[Manifest], Awaitable[None]] | None = None
    """Called with the manifest that differences lead to, the right one by its root, before files are made for it;
    raises a MusterError to refuse it."""

    def __post_init__(self) -> None:
        self.offers = SourceOffers(self.request)
        self.fetched_bytes = 0
        """Of differences, and of a step to begin with."""
        self.tried: list[str] = []
        """For error messages: the routes that failed, or why there is none."""
        self.verified: set[int] = set()
        """Shards of the step that are on disk, hashed and right. That holds as long as the caller's lock does."""
        self._arrived: dict[bytes, Counter[str]] = {}
        """By root of a difference that was fetched and is not known to be right: bytes by source."""
        give_up = min(self.request.settings.give_up_seconds, DELTA_IDLE_SECONDS)
        self._quick = self.request.settings.model_copy(update={"give_up_seconds": give_up})
        self._suspects: tuple[Offer, ...] = ()
        """What is to blame if the route that is followed fails now."""
        self._bad_starts: set[int] = set()
        """Steps that are held here, and damaged."""
        self._step_bytes = 0
        """Of the whole step, once its manifest is known."""

    async def run(self, indexes: Mapping[str, Index] | None = None, *, whole: bool = True) -> bool:
        """Make as many shards of the step as differences give; return whether that is all of them.

        indexes: those of the sources, where they are known. whole: the caller fetches the step whole next, so nothing
        is done here where a source offers it whole and no route costs less. Raises ConfigError for urls that are no
        sources.
        """
        root, step = self.request.root, self.request.step
        await self.offers.load(indexes)
        deadline = time.monotonic() + self.request.settings.fetch_seconds
        for number in range(MAX_FAILED_OFFERS * MAX_SOURCES):
            # 1. Choose the cheapest route among the offers that have not failed.
            offers = self._offers(whole)
            whole_too = any(offer.root == root for offer in offers)
            held = await asyncio.to_thread(self._held)
            size = self._whole(offers, held)
            route = await asyncio.to_thread(cheapest, offers, held, step, root, size)
            if route is None and await self.offers.load_pages():
                continue
            # 2. Leave it to the caller where none is left, or enough were tried.
            late = (whole_too and number >= ATTEMPTS) or time.monotonic() > deadline
            if route is None or not route.chain or late:
                if route is None and not self.tried:
                    self.tried.append(f"no differences lead there ({self.offers})")
                return False
            # 3. Follow it.
            if await self._try(route, held, size, whole_too):
                return True
        return False

    async def _try(self, route: Route, held: dict[int, TargetStep], whole: int, whole_too: bool) -> bool:
        """Follow a route; return whether all shards came out right. What did not is avoided by the next route.

        whole_too: whether the step is offered whole besides.
        """
        urls = sorted({url for offer in route.offers for url in offer.urls})
        _log.info(
            "fetching differences",
            step=self.request.step,
            start=route.start,
            start_is_here=route.begin_with is None,
            differences=len(route.chain),
            mib=round(route.cost / 2**20, 1),
            sources=urls,
        )
        try:
            applied = await self._follow(route, held, whole, whole_too)
        except (MusterError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            _log.warning("cannot use differences", step=self.request.step, start=route.start, why=why)
            self.offers.mark_failed(self._suspects)
        else:
            _log.info("used differences", step=self.request.step, start=route.start, good=applied.good, bad=applied.bad)
            if not applied.bad:
                self._count(route)
                return True
            why = f"{applied.bad} shards came out wrong"
            self._bad_starts |= {route.start} if -1 in applied.blamed else set()
            self.offers.mark_failed([route.chain[place] for place in applied.blamed if place >= 0])
        self.tried.append(f"{len(route.chain)} differences from step {route.start} ({', '.join(urls)}): {why}")
        return False

    def _count(self, route: Route) -> None:
        """Count what came of a route's differences as received: they made what the anchored root says."""
        for offer in route.chain:
            for url, size in self._arrived.pop(offer.root, {}).items():
                if size and self.request.on_received is not None:
                    self.request.on_received(url, size)

    def _offers(self, whole: bool) -> list[Offer]:
        """Return the offers that a route may use. whole: those of the step itself included."""
        root = self.request.root
        offers = self.offers.usable([] if whole else [root])
        return offers if self.anchored else [o for o in offers if o.base_step is not None or o.root == root]

    def _held(self) -> dict[int, TargetStep]:
        """Return the steps of the run that are held here whole."""
        return {
            manifest.step: TargetStep(version.path, manifest)
            for version, manifest in described(self.request.dest, self.request.run)
            if manifest.base_step is None and manifest.step not in self._bad_starts
        }

    def _whole(self, offers: Sequence[Offer], held: dict[int, TargetStep]) -> int:
        """Return the bytes of a whole step: by its manifest if known, else by steps held here, else by offers."""
        ours = [step.manifest.total_bytes for step in held.values()]
        theirs = [offer.size for offer in offers if offer.root == self.request.root]
        others = [offer.size for offer in offers if offer.base_step is None]
        known = self._step_bytes or max(ours or theirs or others, default=self.request.settings.max_bytes)
        return min(known, self.request.settings.max_bytes)

    async def _follow(self, route: Route, held: dict[int, TargetStep], whole: int, whole_too: bool) -> _Applied:
        """Fetch what a route needs and make the shards that it gives. whole: bytes of the step."""
        with ExitStack() as stack:
            # 1. The differences, small as they are: if they are wrong, no whole step is fetched for them.
            async with asyncio.timeout(self.request.settings.fetch_seconds):
                if route.begin_with is not None:
                    self._suspects = (route.begin_with,)
                    if route.begin_with.root != await self._anchor(route.start):
                        raise MismatchError(f"the offered step {route.start} has another root than the chain's")
                folders = await self._fetch_chain(route, whole, whole_too, stack)
            # 2. The step to begin with, held here or fetched.
            start = held.get(route.start)
            if start is None:
                assert route.begin_with is not None
                self._suspects = (route.begin_with,)
                stack.enter_context(self.request.hold(route.begin_with.root))
                start = await self._fetch_start(route.begin_with)
            else:
                stack.enter_context(self.request.hold(start.manifest.root))
            # 3. The shards.
            self._suspects = route.chain
            await asyncio.to_thread(touch, start.path)
            async with asyncio.timeout(self.request.settings.fetch_seconds):
                stop = threading.Event()
                try:
                    return await asyncio.to_thread(self._apply, start, folders, stop)
                finally:
                    stop.set()

    async def _fetch_chain(self, route: Route, whole: int, whole_too: bool, stack: ExitStack) -> list[Path]:
        """Fetch a route's differences and return their folders.

        The last one is fetched first: the manifest in it is the anchored one, and its size of the step is the true one.
        """
        folders: list[Path] = []
        for offer in reversed(route.chain):
            self._suspects = (offer,)
            stack.enter_context(self._used(offer.root))
            folder = await self._fetch_difference(offer, whole)
            target = await asyncio.to_thread(read_target, folder, None)
            if offer is not route.chain[-1]:
                if self.anchored is not None and target.root != await self._anchor(offer.step):
                    raise MismatchError(f"a difference leads to {target.id}, which is not step {offer.step} on chain")
            else:
                await self._check_last(route, whole_too, folder, target)
                whole = self._step_bytes = target.total_bytes
                if route.cost > whole * (1 + MAX_CHAIN_STEPS):
                    self._suspects = ()
                    raise MismatchError(f"a route of {route.cost} bytes is too large for a step of {whole} bytes")
            folders.insert(0, folder)
        return folders

    async def _check_last(self, route: Route, whole_too: bool, folder: Path, target: Manifest) -> None:
        if target.root != self.request.root:
            raise MismatchError(f"a difference leads to {target.id} instead of 0x{self.request.root.hex()}")
        if self.accept is not None:
            await self.accept(target)
        expensive = whole_too and route.cost >= target.total_bytes
        if expensive and not await asyncio.to_thread(is_adapter, folder):
            raise MismatchError("the route costs more than the whole step, and its difference is no adapter")

    async def _fetch_start(self, offer: Offer) -> TargetStep:
        start = replace(self.request, root=offer.root, step=offer.step, on_source=None)
        fetched = await fetch_version(start, retry="busy")
        self.fetched_bytes += fetched.fetched_bytes
        return TargetStep(fetched.path, fetched.manifest)

    async def _anchor(self, step: int) -> bytes:
        assert self.anchored is not None, "a route that begins with a step that is not here"
        return await self.anchored(step)

    @contextmanager
    def _used(self, root: bytes) -> Iterator[None]:
        """Keep a difference until left; then prune those not in use, the one used longest ago first."""
        folder = self.request.dest / DELTAS
        path = version_path(folder, root)
        _in_use[path] += 1
        try:
            yield
        finally:
            _in_use[path] -= 1
            if not _in_use[path]:
                del _in_use[path]
            protected = [bytes.fromhex(path.name[2:]) for path in _in_use if path.parent == folder]
            prune(folder, KEPT_DELTAS, protected)

    async def _fetch_difference(self, offer: Offer, whole: int) -> Path:
        """Fetch a difference and return its folder. whole: bytes of the step, which say how large it may be."""

        async def accept(manifest: Manifest) -> None:
            assert offer.base_step is not None
            largest = min(offer.size, whole // TIMES_SMALLER, self.request.settings.max_bytes)
            check_difference(manifest, self.request.run, offer.step, offer.base_step, largest)

        folder = self.request.dest / DELTAS
        async with Pool(offer.urls, self._quick) as pool, exclusive(folder, offer.root):
            download = Download(offer.root, folder, pool, accept=accept, progress=self.request.progress, retry="busy")
            try:
                path = await download.run()
            finally:
                arrived = self._arrived.setdefault(offer.root, Counter())
                arrived.update({report.url: report.bytes for report in pool.reports})
            self.fetched_bytes += download.fetched_bytes
            return path

    def _apply(self, start: TargetStep, folders: Sequence[Path], stop: threading.Event) -> _Applied:
        """Make the shards that are not here yet. Blocking; ends early once `stop` is set."""
        good = bad = 0
        blamed: set[int] = set()
        # 1. Open the differences and lay out the files.
        chain = [open_difference(folder) for folder in folders]
        target = chain[-1].target
        if not all(same_tiling(start.manifest, difference.target) for difference in chain):
            raise MalformedError("differences between steps that are cut differently")
        partial = PartialVersion.prepare(self.request.dest, target)
        if partial.fresh:
            self.verified.clear()
        # 2. Make each shard, hash it, and write it only if it is right.
        for shard in target.shards:
            if stop.is_set() or bad >= max(MAX_BAD_SHARDS, good + 1):
                break
            if shard.index in self.verified:
                continue
            if not partial.fresh and partial.holds(shard):
                self.verified.add(shard.index)
                continue
            data = made_shard(start, chain, shard)
            if data is None:
                bad += 1
                if bad <= MAX_BAD_SHARDS:
                    blamed.add(first_wrong(start, chain, shard))
                continue
            partial.write(shard, memoryview(data))
            self.verified.add(shard.index)
            good += 1
            failpoint("shardcast.shard_made")
        return _Applied(good, bad, frozenset(blamed))


async def fetch_step(request: FetchRequest, anchored: Anchored) -> FetchedVersion:
    """Do as `fetch_version`, raising the same, but by way of differences where that costs fewer bytes.

    Differences also lead to a step that no source has whole. A source of a wrong difference is only avoided, not
    reported, since no anchored root says what a difference is; its bytes count as received once it has made what the
    anchored root says.
    """
    step, dest, root = request.step, request.dest, request.root
    delta = DeltaFetch(request, anchored)
    fetch_rest = partial(fetch_version, request, verified=delta.verified)
    try:
        async with exclusive(dest, root, request.settings.fetch_seconds):
            # 1. What differences give.
            if not await asyncio.to_thread(version_path(dest, root).is_dir):
                await delta.run()
            # 2. The rest, whole.
            try:
                fetched = await fetch_rest(retry=delta.offers.retry)
            except (UnreachableError, MismatchError) as error:
                # 3. No source offers the rest whole: use every difference.
                if not await delta.run(whole=False):
                    why = "; ".join([*delta.tried, f"whole: {error}"])
                    raise type(error)(f"step {step} cannot be had: {why}", hint=error.hint) from error
                fetched = await fetch_rest(retry=delta.offers.retry)
    except TimeoutError as error:  # of the lock: all else says what it waited for
        raise UnreachableError(f"another fetch of step {step} into {dest} has not ended in time") from error
    return replace(fetched, delta_bytes=delta.fetched_bytes)
