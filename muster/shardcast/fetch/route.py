"""Choose the route to a step that costs the fewest bytes among those that are possible.

A route is the step whole, if a source offers it whole, or another whole step, held or offered, and the differences that
lead from there. If no source offers the step whole any more, a route may cost more than the step: up to MAX_CHAIN_STEPS
times its bytes in differences, and one whole step to begin with. Publishers keep old steps within these limits
(`muster.shardcast.retention`).

Offers come from strangers. A wrong one costs some bytes and then leads back here, without what was wrong; it never
changes what is accepted in the end. A wrong route is tried before a right one only if it is offered as cheaper, and no
version larger than it was offered is fetched: so each wrong route costs less than the right one does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from muster.shardcast.delta.difference import TIMES_SMALLER
from muster.shardcast.format.store import Index

MAX_CHAIN: Final = 64
"""Differences that are applied one after the other, at most. Lowering it puts steps that are published out of reach."""

MAX_CHAIN_STEPS: Final = 8
"""Times the bytes of a whole step that the differences of a route may have together. Lowering it puts steps that are
published out of reach. At 16 steps from one whole step to the next no difference is too large for it."""

BASE_EXTRA_ONE_IN: Final = 2
"""A way that begins with fetching the first step, for an adapter to it, may cost one part in so many more than the
whole step: without that base every later step would be fetched whole."""


@dataclass(frozen=True)
class Offer:
    """A version that a source lists as available."""

    root: bytes
    step: int
    base_step: int | None
    """None: the whole step."""
    size: int
    """In bytes."""
    urls: tuple[str, ...]
    """The sources that offer it."""


@dataclass(frozen=True)
class Route:
    """A way to a step: a whole one to begin with, and the differences that lead on from there."""

    start: int
    begin_with: Offer | None = None
    """What the start must be fetched as; None when it is here."""
    chain: tuple[Offer, ...] = ()
    """Empty where the step itself is fetched whole."""
    cost: int = field(default=0, compare=False)
    """Bytes to fetch."""

    @property
    def offers(self) -> tuple[Offer, ...]:
        return (*([self.begin_with] if self.begin_with else ()), *self.chain)


def offers_of(indexes: Mapping[str, Collection[Index]], run: int) -> list[Offer]:
    """Return what the indexes of some sources, by URL, offer of a run."""
    urls_of: dict[tuple[str, int, int | None, int], list[str]] = {}
    for url, pages in indexes.items():
        for entry in (entry for index in pages for entry in index.versions):
            if entry.run == run and entry.size:
                urls_of.setdefault((entry.root, entry.step, entry.base_step, entry.size), []).append(url)
    return [
        Offer(bytes.fromhex(root[2:]), step, base_step, size, tuple(dict.fromkeys(urls)))
        for (root, step, base_step, size), urls in urls_of.items()
        if base_step is None or base_step < step
    ]


def without(offers: Collection[Offer], urls: Collection[str], roots: Collection[bytes] = ()) -> list[Offer]:
    """Return the offers that a source other than `urls` makes, without those under `roots`."""
    left = [(o, tuple(url for url in o.urls if url not in urls)) for o in offers if o.root not in roots]
    return [Offer(o.root, o.step, o.base_step, o.size, others) for o, others in left if others]


def cheapest(offers: Collection[Offer], held: Collection[int], step: int, root: bytes, whole: int) -> Route | None:
    """Return the possible route to `step`, whose manifest root is `root`, that costs the fewest bytes; None for none.

    Where the step is offered whole a route by differences costs less than that, or, where it fetches the first step
    for a difference that leads past others, less than half as much again.

    held: the steps that are here whole. whole: bytes of a whole step.
    """
    direct = min(
        (o for o in offers if o.base_step is None and (o.step, o.root) == (step, root)), key=_size, default=None
    )
    found = _by_differences(offers, held, step, whole)
    if direct is None:
        return found if found and found.cost <= whole * (1 + MAX_CHAIN_STEPS) else None
    if found is not None:
        comes_back = found.begin_with is not None and found.start == 0 and found.chain[0].step > 1
        if found.cost < whole + (whole // BASE_EXTRA_ONE_IN if comes_back else 0):
            return found
    return Route(step, direct, (), direct.size)


@dataclass(frozen=True)
class _PartialRoute:
    """The cheapest route found so far to a step by so many differences, as a linked list."""

    cost: int
    start: int
    offer: Offer | None
    """The last thing that is fetched for it."""
    before: _PartialRoute | None = None

    def route(self) -> Route:
        chain: list[Offer] = []
        way = self
        while way.before is not None:
            assert way.offer is not None
            chain.append(way.offer)
            way = way.before
        return Route(way.start, way.offer, tuple(reversed(chain)), self.cost)


def _by_differences(offers: Collection[Offer], held: Collection[int], step: int, whole: int) -> Route | None:
    """Return the route by differences, at most MAX_CHAIN of them, that costs the fewest bytes.

    A shortest path over steps, and over numbers of differences besides: what is cheapest may have too many.
    """
    ways: dict[int, dict[int, _PartialRoute]] = {
        start: {0: _PartialRoute(0, start, None)} for start in held if start < step
    }
    for offer in sorted((o for o in offers if o.base_step is None and o.step < step), key=_size):
        ways.setdefault(offer.step, {0: _PartialRoute(offer.size, offer.step, offer)})
    for offer in _smallest(offers, step, whole // TIMES_SMALLER):  # every base comes before what it leads to
        assert offer.base_step is not None
        here = ways.setdefault(offer.step, {})
        for count, before in ways.get(offer.base_step, {}).items():
            cost, old = before.cost + offer.size, here.get(count + 1)
            if count < MAX_CHAIN and (old is None or cost < old.cost):
                here[count + 1] = _PartialRoute(cost, before.start, offer, before)
    found = [way for count, way in ways.get(step, {}).items() if count]
    return min(found, key=lambda way: way.cost).route() if found else None


def _smallest(offers: Collection[Offer], step: int, largest: int) -> Iterator[Offer]:
    """Yield the smallest difference between each two steps up to `step`, none larger than `largest`, in order."""
    best: dict[tuple[int, int], Offer] = {}
    for offer in sorted(offers, key=_size, reverse=True):
        if offer.base_step is not None and offer.step <= step and offer.size <= largest:
            best[offer.step, offer.base_step] = offer
    return iter(sorted(best.values(), key=lambda offer: offer.step))


def _size(offer: Offer) -> int:
    return offer.size
