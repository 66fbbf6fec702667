"""Which way to a step costs the fewest bytes: whole, or as differences to one that is here, or to one that is not.

What sources offer is advice from strangers. Following bad advice costs some bytes and then leads back here, without
those who gave it; it never changes what is accepted in the end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from muster.shardcast.folder import Index

MAX_CHAIN: Final = 64
"""Differences that are applied one after the other, at most."""

BASE_EXTRA_ONE_IN: Final = 2
"""A way that begins with fetching the first step, for an adapter to it, may cost one part in so many more than the
whole step: without that base every later step would be fetched whole."""


@dataclass(frozen=True)
class Offer:
    """A version that somebody says can be had."""

    root: bytes
    step: int
    base_step: int | None
    """None: the whole step."""
    size: int
    """In bytes."""
    urls: tuple[str, ...]
    """Who says so."""


@dataclass(frozen=True)
class Route:
    """A way to a step: a whole one to begin with, and the differences that lead on from there."""

    start: int
    begin_with: Offer | None = None
    """What the start must be fetched as; None when it is here."""
    chain: tuple[Offer, ...] = ()
    cost: int = field(default=0, compare=False)
    """Bytes to fetch."""

    def then(self, offer: Offer) -> Route:
        return Route(self.start, self.begin_with, (*self.chain, offer), self.cost + offer.size)


def offers_of(indexes: Mapping[str, Index], run: int) -> list[Offer]:
    """What the indexes of some sources, by URL, offer of a run."""
    said: dict[tuple[str, int, int | None, int], list[str]] = {}
    for url, index in indexes.items():
        for entry in index.versions:
            if entry.run == run and entry.size:
                said.setdefault((entry.root, entry.step, entry.base_step, entry.size), []).append(url)
    return [
        Offer(bytes.fromhex(root[2:]), step, base_step, size, tuple(dict.fromkeys(urls)))
        for (root, step, base_step, size), urls in said.items()
        if base_step is None or base_step < step
    ]


def without(offers: Collection[Offer], urls: Collection[str]) -> list[Offer]:
    """The offers that somebody else vouches for as well."""
    left = [(offer, tuple(url for url in offer.urls if url not in urls)) for offer in offers]
    return [Offer(o.root, o.step, o.base_step, o.size, others) for o, others in left if others]


def cheapest(offers: Collection[Offer], held: Collection[int], step: int, limit: int) -> Route | None:
    """The way to `step` by differences that costs the fewest bytes; None when none costs less than `limit`, or, where
    it fetches the first step for a difference that leads past others, half as much again.

    held: the steps that are here whole.
    """
    best: dict[int, Route] = {start: Route(start) for start in held if start < step}
    for offer in offers:
        if offer.base_step is None and offer.step < step:
            _take(best, Route(offer.step, offer, (), offer.size), offer.step)
    for offer in sorted(offers, key=lambda offer: (offer.step, offer.size)):  # every base comes before what it leads to
        if offer.base_step is not None and offer.step <= step and (way := best.get(offer.base_step)) is not None:
            _take(best, way.then(offer), offer.step)
    found = best.get(step)
    if found is None or not 0 < len(found.chain) <= MAX_CHAIN:
        return None
    comes_back = found.begin_with is not None and found.start == 0 and found.chain[0].step > 1
    return found if found.cost < limit + (limit // BASE_EXTRA_ONE_IN if comes_back else 0) else None


def _take(best: dict[int, Route], way: Route, step: int) -> None:
    if step not in best or way.cost < best[step].cost:
        best[step] = way
