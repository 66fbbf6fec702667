"""Find the route to a step: the nearest whole step, here or offered, and the differences that lead on from there.

Each difference's manifest names its base: the step before or, of an adapter, step 0. So one walk back from the step
finds every whole step that the route can begin with. The nearest is the one from which the fewest bytes are fetched;
the step itself is one of them where a source offers it whole. Else the differences of a route may have up to
MAX_CHAIN_STEPS times the bytes of the step. Publishers keep old steps within these limits
(`muster.shardcast.retention`).

Offers come from strangers. A wrong one costs some bytes and then leads back here, without what was wrong; it never
changes what is accepted in the end. A wrong route is tried before a right one only if it is offered as cheaper, and no
version larger than it was offered is fetched: so each wrong route costs less than the right one does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from muster.shardcast.delta.difference import TIMES_SMALLER
from muster.shardcast.format.store import MAX_CHAIN, Index

MAX_CHAIN_STEPS: Final = 8
"""Times the bytes of a whole step that the differences of a route may have together. Lowering it puts steps that are
published out of reach. At 16 steps from one whole step to the next no difference is too large for it."""

BASE_EXTRA_ONE_IN: Final = 2
"""A route that begins with fetching step 0, for an adapter to it, may cost one part in so many more than the whole
step: without that base every later step would be fetched whole."""


@dataclass(frozen=True)
class NamedVersion:
    """A version that somebody has, by its manifest."""

    root: bytes
    step: int
    base_step: int | None
    """None: the whole step."""
    size: int
    """Bytes of all files."""

    def is_difference(self, whole: int) -> bool:
        """Return whether routes may use this as a difference. whole: bytes of a whole step."""
        return self.base_step in (self.step - 1, 0) and self.size * TIMES_SMALLER <= whole


@dataclass(frozen=True)
class Offer(NamedVersion):
    """A version that sources list as available."""

    urls: tuple[str, ...] = field(compare=False)
    """The sources that offer it."""


@dataclass(frozen=True)
class Route:
    """A way to a step: a whole one to begin with, and the differences that lead on from there."""

    start: int
    begin_with: Offer | None
    """What the start must be fetched as; None when it is here."""
    chain: tuple[Offer, ...]
    """Empty where the step itself is fetched whole."""

    @property
    def offers(self) -> tuple[Offer, ...]:
        return (*([self.begin_with] if self.begin_with else ()), *self.chain)

    @property
    def cost(self) -> int:
        """Return the bytes to fetch."""
        return sum(offer.size for offer in self.offers)


def offers_of(indexes: Mapping[str, Iterable[Index]], run: int) -> list[Offer]:
    """Return what the indexes of some sources, by URL, offer of a run."""
    urls_of: dict[tuple[bytes, int, int | None, int], dict[str, None]] = {}
    for url, pages in indexes.items():
        for entry in (entry for index in pages for entry in index.versions):
            if entry.run == run and entry.size:
                named = bytes.fromhex(entry.root[2:]), entry.step, entry.base_step, entry.size
                urls_of.setdefault(named, {})[url] = None
    return [Offer(*named, tuple(urls)) for named, urls in urls_of.items()]


def route_to(step: int, root: bytes, offers: Collection[Offer], held: Collection[int], whole: int) -> Route | None:
    """Return the route to `step`, whose manifest root is `root`, that costs the fewest bytes; None for none.

    held: the steps that are here whole. whole: bytes of the whole step.
    """
    # 1. The smallest offer of each step and base; of the step itself only what has its root.
    best: dict[tuple[int, int | None], Offer] = {}
    for offer in sorted(offers, key=lambda offer: offer.size, reverse=True):
        may_begin = offer.base_step is None and (offer.step != step or offer.root == root)
        if may_begin or offer.is_difference(whole):
            best[offer.step, offer.base_step] = offer
    # 2. Back from the step, difference by difference: a route may begin at every whole step on the way.
    routes: list[Route] = []

    def begin(at: int, chain: tuple[Offer, ...]) -> None:
        here = at in held and at != step
        offer = None if here else best.get((at, None))
        if here or offer:
            routes.append(Route(at, offer, chain))

    chain: tuple[Offer, ...] = ()
    for at in range(step, -1, -1):
        begin(at, chain)
        if len(chain) == MAX_CHAIN:
            break
        if at > 1 and (adapter := best.get((at, 0))):
            begin(0, (adapter, *chain))
        if (difference := best.get((at, at - 1))) is None:
            break
        chain = (difference, *chain)
    # 3. The cheapest that is within the limits.
    limit = whole * (1 + MAX_CHAIN_STEPS)
    possible = [route for route in routes if not route.chain or route.cost <= limit]
    return min(possible, key=lambda route: _price(route, whole), default=None)


def _price(route: Route, whole: int) -> int:
    """Return the bytes that a route is taken to cost; the step itself costs as much as it has, whatever is said."""
    if not route.chain:
        return whole
    later_too = route.begin_with is not None and route.start == 0 and route.chain[0].step > 1
    return route.cost - (whole // BASE_EXTRA_ONE_IN if later_too else 0)
