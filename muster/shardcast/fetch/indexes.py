"""Ask a relay's upstreams for the pages of their indexes, which show old steps."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import Final

from muster.shardcast.fetch.bounds import FetchBounds
from muster.shardcast.fetch.sources import Pool
from muster.shardcast.format.store import MAX_INDEX_ENTRIES, Index, IndexEntry, index_page, page_of

PAGE_SECONDS: Final = 3.0
"""How long an upstream has to answer. Less than clients wait."""

FRESH_SECONDS: Final = 2 * PAGE_SECONDS
"""Upstreams' answers are used this long after they were asked."""

MAX_PAGES: Final = 16
"""Pages kept, and requested at the same time: clients may ask a relay for any page."""


class UpstreamPages:
    """Pages of what a relay's upstreams have.

    So old steps can be had by way of the relay, which fetches a version when it is first asked for.
    """

    def __init__(self, upstreams: Sequence[str], run: int | None, bounds: FetchBounds) -> None:
        self._upstreams = upstreams
        self._run = run
        self._bounds = bounds
        self.asked: dict[int, tuple[float, asyncio.Task[dict[str, Index]]]] = {}
        """By number of the page: when upstreams were asked, and by which task; the latest MAX_PAGES."""

    async def page(self, number: int, own: Collection[IndexEntry], newest: int | None = None) -> Index:
        """Return a page of what is here, the versions in `own`, and of what upstreams have.

        newest: the newest step that upstreams name, where that is known; they are not asked for pages beyond it.
        """
        beyond = newest is not None and number > page_of(newest)
        answers = {} if beyond else await self._ask(number)
        own_page = index_page(own, number).versions
        theirs = [[e for e in index.versions if self._run in (None, e.run)] for index in answers.values()]
        turns = zip_longest(own_page, *theirs)  # so that none that names many keeps out what another names
        entries = {entry.root: entry for turn in turns for entry in turn if entry is not None}
        return Index(versions=list(entries.values())[:MAX_INDEX_ENTRIES])

    async def _ask(self, number: int) -> dict[str, Index]:
        """Return the upstreams' pages, now or of just before; nothing while too many others are asked for."""
        when, asking = self.asked.get(number, (-math.inf, None))
        if asking is None or (asking.done() and time.monotonic() - when > FRESH_SECONDS):
            if sum(not other.done() for _, other in self.asked.values()) >= MAX_PAGES:
                return {}
            asking = asyncio.create_task(self._ask_now(number))
            self.asked.pop(number, None)
            self.asked[number] = time.monotonic(), asking
            if len(self.asked) > MAX_PAGES:
                del self.asked[next(old for old, (_, other) in self.asked.items() if other.done())]
        return await asyncio.shield(asking)  # a client that leaves does not end it for the others

    async def _ask_now(self, number: int) -> dict[str, Index]:
        async with Pool(self._upstreams, self._bounds) as pool:
            return await pool.indexes(PAGE_SECONDS, number)
