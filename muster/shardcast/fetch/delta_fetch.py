"""Fetch a step: the nearest whole step, here or offered, and the differences that lead on from there.

    fetched = await fetch_step(FetchRequest(root, run, step, sources, dest), chain_root)

Differences come first, the last one before the others. Each shard that comes out as the anchored manifest says is put
where the ordinary fetch would have put it. A route that fails is not tried again, nor is what made it fail. The
ordinary fetch then gets what is missing, all of it if need be, and trusts only shards that were hashed under the same
lock: so an error here costs time, and never makes a node load a wrong byte.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from muster.errors import MismatchError, MusterError, UnreachableError
from muster.runtime import telemetry
from muster.shardcast.delta.difference import TIMES_SMALLER, Made, TargetStep, make_shards, read_target
from muster.shardcast.delta.kinds import is_adapter, open_difference
from muster.shardcast.fetch.fetch import FetchedVersion, FetchRequest, exclusive, fetch_version
from muster.shardcast.fetch.route import MAX_CHAIN_STEPS, Offer, Route, route_to
from muster.shardcast.fetch.source_offers import MAX_FAILED_OFFERS, SourceOffers
from muster.shardcast.fetch.sources import MAX_SOURCES
from muster.shardcast.format.manifest import Manifest
from muster.shardcast.format.store import described, prune, touch, used, version_path

DELTAS: Final = ".deltas"
"""Folder, beside the versions, of the differences that were fetched."""

KEPT_DELTAS: Final = 16
"""Differences that stay there, besides those in use."""

DELTA_IDLE_SECONDS: Final = 15.0
"""Without another byte of a difference, after which another route is tried."""

ATTEMPTS: Final = 3
"""Routes that are tried before a step that is offered whole is fetched whole."""

Anchored = Callable[[int], Awaitable[bytes]]
"""The manifest root that the chain has for a step. Raises ChainError when it has none."""


_log = telemetry.logger("shardcast")


@dataclass(eq=False)
class DeltaFetch:
    """One attempt to come to a step by differences. Its caller has the version's lock."""

    request: FetchRequest
    anchored: Anchored

    def __post_init__(self) -> None:
        self.offers = SourceOffers(self.request)
        self.fetched_bytes = 0
        """Of differences, and of a step to begin with."""
        self.tried: list[str] = []
        """For error messages: the routes that failed, or why there is none."""
        self.verified: set[int] = set()
        """Shards of the step that are on disk, hashed and right. That holds as long as the caller's lock does."""
        self._suspects: tuple[Offer, ...] = ()
        """What is to blame if the route that is followed fails now."""
        self._bad_starts: set[int] = set()
        """Steps that are held here, and damaged."""
        self._step_bytes = 0
        """Of the whole step, once its manifest is known."""
        self._offered_whole = False
        """Whether a source offers the step whole."""

    async def run(self) -> bool:
        """Make as many shards of the step as differences give; return whether that is all of them.

        Nothing is done where no route costs less than the step whole, if a source offers that. Raises ConfigError for
        urls that are no sources.
        """
        await self.offers.load()
        deadline = time.monotonic() + self.request.bounds.seconds
        for number in range(MAX_FAILED_OFFERS * MAX_SOURCES):
            # 1. Choose the route among the offers that have not failed.
            offers, held = self.offers.usable(), await asyncio.to_thread(self._held)
            whole = self._whole(offers, held)
            route = await asyncio.to_thread(route_to, self.request.step, self.request.root, offers, held, whole)
            if route is None and await self.offers.load_pages():
                continue
            # 2. Leave it to the caller where none is left, or enough were tried.
            self._offered_whole = any(offer.root == self.request.root for offer in offers)
            late = (self._offered_whole and number >= ATTEMPTS) or time.monotonic() > deadline
            if route is None or not route.chain or late:
                if route is None and not self.tried:
                    self.tried.append(f"no differences lead there ({self.offers})")
                return False
            # 3. Follow it.
            if await self._try(route, held, whole):
                return True
        return False

    async def _try(self, route: Route, held: dict[int, TargetStep], whole: int) -> bool:
        """Follow a route; return whether all shards came out right. What did not is avoided by the next route."""
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
            made = await self._follow(route, held, whole)
        except (MusterError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            _log.warning("cannot use differences", step=self.request.step, start=route.start, why=why)
            self.offers.mark_failed(self._suspects)
        else:
            _log.info("used differences", step=self.request.step, start=route.start, good=made.good, bad=made.bad)
            if not made.bad:
                return True
            why = f"{made.bad} shards came out wrong"
            self._bad_starts |= {route.start} if -1 in made.blamed else set()
            self.offers.mark_failed([route.chain[place] for place in made.blamed if place >= 0])
        finally:
            await asyncio.to_thread(prune, self.request.dest / DELTAS, KEPT_DELTAS)  # they are no longer in use
        self.tried.append(f"{len(route.chain)} differences from step {route.start} ({', '.join(urls)}): {why}")
        return False

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
        known = self._step_bytes or max(ours or theirs or others, default=self.request.bounds.max_bytes)
        return min(known, self.request.bounds.max_bytes)

    async def _follow(self, route: Route, held: dict[int, TargetStep], whole: int) -> Made:
        """Fetch what a route needs and make the shards that it gives. whole: bytes of the step."""
        with ExitStack() as stack:
            root = route.begin_with.root if route.begin_with else held[route.start].manifest.root
            stack.enter_context(used(version_path(self.request.dest, root)))  # now: the differences take a while
            # 1. The differences, small as they are: if they are wrong, no whole step is fetched for them.
            async with asyncio.timeout(self.request.bounds.seconds):
                if route.begin_with is not None:
                    self._suspects = (route.begin_with,)
                    if route.begin_with.root != await self.anchored(route.start):
                        raise MismatchError(f"the offered step {route.start} has another root than the chain's")
                folders = await self._fetch_chain(route, whole, stack)
            # 2. The step to begin with, held here or fetched.
            if route.begin_with is None:
                start = held[route.start]
            else:
                self._suspects = (route.begin_with,)
                begin = replace(self.request, root=root, step=route.start, on_source=None)
                fetched = await self._fetch(begin)
                start = TargetStep(fetched.path, fetched.manifest)
            # 3. The shards.
            self._suspects = route.chain
            await asyncio.to_thread(touch, start.path)
            async with asyncio.timeout(self.request.bounds.seconds):
                stop = threading.Event()
                try:
                    return await asyncio.to_thread(self._make, start, folders, stop)
                finally:
                    stop.set()

    def _make(self, start: TargetStep, folders: Sequence[Path], stop: threading.Event) -> Made:
        return make_shards(start, [*map(open_difference, folders)], self.request.dest, self.verified, stop)

    async def _fetch_chain(self, route: Route, whole: int, stack: ExitStack) -> list[Path]:
        """Fetch a route's differences and return their folders.

        The last one is fetched first: the manifest in it is the anchored one, and its size of the step is the true one.
        """
        folders: list[Path] = []
        for offer in reversed(route.chain):
            self._suspects = (offer,)
            stack.enter_context(used(version_path(self.request.dest / DELTAS, offer.root)))
            folder = await self._fetch_difference(offer, whole)
            target = await asyncio.to_thread(read_target, folder, None)
            root = self.request.root if offer.step == self.request.step else await self.anchored(offer.step)
            if target.root != root:
                raise MismatchError(f"a difference leads to {target.id}, which is not step {offer.step} on chain")
            if offer is route.chain[-1]:
                await self._check_last(route, folder, target)
                whole = self._step_bytes = target.total_bytes
            folders.insert(0, folder)
        return folders

    async def _check_last(self, route: Route, folder: Path, target: Manifest) -> None:
        """Refuse a route that costs too much for a step of the size that the anchored manifest says."""
        dear = self._offered_whole and route.cost >= target.total_bytes
        if dear and not await asyncio.to_thread(is_adapter, folder):
            raise MismatchError("the route costs more than the whole step, and its difference is no adapter")
        if route.cost > target.total_bytes * (1 + MAX_CHAIN_STEPS):
            self._suspects = ()
            raise MismatchError(f"a route of {route.cost} bytes is too large for a step of {target.total_bytes} bytes")

    async def _fetch_difference(self, offer: Offer, whole: int) -> Path:
        """Fetch a difference and return its folder. whole: bytes of the step, which say how large it may be."""
        bounds = self.request.bounds
        largest = min(offer.size, whole // TIMES_SMALLER, bounds.max_bytes)
        give_up = min(bounds.give_up_seconds, DELTA_IDLE_SECONDS)
        request = replace(
            self.request,
            root=offer.root,
            step=offer.step,
            base_step=offer.base_step,
            sources=offer.urls,
            dest=self.request.dest / DELTAS,
            bounds=replace(bounds, give_up_seconds=give_up, max_bytes=largest),
            on_source=None,
        )
        return (await self._fetch(request)).path

    async def _fetch(self, request: FetchRequest) -> FetchedVersion:
        fetched = await fetch_version(request, retry="busy")
        self.fetched_bytes += fetched.fetched_bytes
        return fetched


async def fetch_step(request: FetchRequest, anchored: Anchored) -> FetchedVersion:
    """Do as `fetch_version`, raising the same, but by way of differences where that costs fewer bytes.

    Differences also lead to a step that no source has whole. A source of a wrong difference is only avoided, not
    reported, since no anchored root says what a difference is.
    """
    step, dest, root = request.step, request.dest, request.root
    delta = DeltaFetch(request, anchored)
    fetch_rest = partial(fetch_version, request, verified=delta.verified)
    try:
        async with exclusive(dest, root, request.bounds.seconds):
            # 1. What differences give.
            if not await asyncio.to_thread(version_path(dest, root).is_dir):
                await delta.run()
            # 2. The rest, whole.
            try:
                fetched = await fetch_rest(retry=delta.offers.retry)
            except (UnreachableError, MismatchError) as error:
                # 3. No source has it whole, whatever they say: by differences, then.
                delta.offers.ignore(root)
                if not await delta.run():
                    why = "; ".join([*delta.tried, f"whole: {error}"])
                    raise type(error)(f"step {step} cannot be had: {why}", hint=error.hint) from error
                fetched = await fetch_rest(retry=delta.offers.retry)
    except TimeoutError as error:  # of the lock: all else says what it waited for
        raise UnreachableError(f"another fetch of step {step} into {dest} has not ended in time") from error
    return replace(fetched, delta_bytes=delta.fetched_bytes)
