"""What sources offer for one step, and which of these offers have failed. Offers are untrusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

from muster.shardcast.fetch.fetch import FetchRequest
from muster.shardcast.fetch.route import Offer, offers_of
from muster.shardcast.fetch.sources import MAX_SOURCES, Pool, Retry
from muster.shardcast.format.store import Index, page_of

INDEX_SECONDS: Final = 5.0
"""Sources that have not answered by then are not asked for differences."""

MAX_FAILED_OFFERS: Final = 3
"""Failed offers of a source after which all its other offers are ignored, too."""


class SourceOffers:
    """What the sources of one fetch offer for a step."""

    def __init__(self, request: FetchRequest) -> None:
        self.retry: Retry = "all"
        """Which sources are asked again if they do not have the step. Once all have answered and have newer ones, it is
        not still on its way to them."""
        self._request = request
        self._indexes: dict[str, list[Index]] | None = None
        """By source: its index, and the page of the step."""
        self._has_pages = False
        self._failed: set[Offer] = set()
        self._ignored: set[bytes] = set()
        self._failures: Counter[str] = Counter()
        """By source: its offers that failed."""

    async def load(self) -> None:
        """Ask the sources for their indexes, once. Raises ConfigError for urls that are no sources."""
        if self._indexes is not None:
            return
        run = self._request.run
        async with Pool(self._request.sources, self._request.bounds, public=self._request.public) as pool:
            known = await pool.indexes(INDEX_SECONDS)
            asked = {source.url for source in pool.sources}
        newest = [max((e.step for e in i.versions if e.run == run), default=-1) for i in known.values()]
        if known.keys() == asked and min(newest) > self._request.step:
            self.retry = "busy"
        self._indexes = {url: [index] for url, index in known.items()}

    async def load_pages(self) -> bool:
        """Ask the sources for the page of the step, which shows older versions; return False when that is done."""
        if self._has_pages or self._indexes is None:
            return False
        self._has_pages = True
        async with Pool(self._request.sources, self._request.bounds, public=self._request.public) as pool:
            found = await pool.indexes(INDEX_SECONDS, page_of(self._request.step))
        for url, page in found.items():
            self._indexes.setdefault(url, []).append(page)
        return True

    def usable(self) -> list[Offer]:
        """Return the offers that have not failed."""
        all_of = (self._indexes or {}).items()
        indexes = {url: pages for url, pages in all_of if self._failures[url] < MAX_FAILED_OFFERS}
        found = offers_of(indexes, self._request.run)
        return [offer for offer in found if offer not in self._failed and offer.root not in self._ignored]

    def mark_failed(self, offers: Collection[Offer]) -> None:
        """Note that these offers, but not others of their versions, failed, and which sources made them."""
        self._failures += Counter(url for offer in offers for url in offer.urls)
        self._failed.update(offers)

    def ignore(self, root: bytes) -> None:
        """Use no offer of the version with this root any more."""
        self._ignored.add(root)

    def __str__(self) -> str:
        found = []
        for url in dict.fromkeys(source.rstrip("/") for source in self._request.sources[:MAX_SOURCES]):
            pages = (self._indexes or {}).get(url, ())
            steps = {entry.step for index in pages for entry in index.versions if entry.run == self._request.run}
            found.append(f"{url} has steps {min(steps)} to {max(steps)}" if steps else f"{url} lists no step")
        return ", ".join(found)
