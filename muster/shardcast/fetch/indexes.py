"""Ask a relay's upstreams for the pages of their indexes, which show old steps."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import Final

from muster.settings.schema import ShardcastSettings
from muster.shardcast.fetch.sources import Pool
from muster.shardcast.format.store import MAX_INDEX_ENTRIES, Index, IndexEntry, index_page, page_of

PAGE_SECONDS: Final = 3.0
"""A page made from upstreams' answers is used this long, and an upstream has so long to answer. Less than clients
wait."""

MAX_PAGES: Final = 16
"""Pages kept, and requested at the same time: clients may ask a relay for any page."""


class UpstreamPages:
    """Pages of what a relay's upstreams have.

    So old steps can be had by way of the relay, which fetches a version when it is first asked for.
    """

    def __init__(self, upstreams: Sequence[str], run: int | None, settings: ShardcastSettings) -> None:
        self._upstreams = upstreams
        self._run = run
        self._settings = settings
        self._turns: dict[int, asyncio.Lock] = {}
        """By number of a page that upstreams are asked for; others do not wait for it."""
        self._known: dict[int, tuple[float, dict[str, Index]]] = {}
        """By number of the page: when upstreams were asked, and their answers; the latest MAX_PAGES."""

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
        if number not in self._turns and len(self._turns) >= MAX_PAGES:
            return self._recent(number) or {}
        turn = self._turns.setdefault(number, asyncio.Lock())
        async with turn:
            if (answers := self._recent(number)) is None:
                try:
                    async with Pool(self._upstreams, self._settings) as pool:
                        answers = await pool.indexes(PAGE_SECONDS, number)
                    self._known.pop(number, None)
                    self._known[number] = time.monotonic(), answers
                    while len(self._known) > MAX_PAGES:
                        del self._known[next(iter(self._known))]
                finally:
                    self._turns.pop(number, None)  # waiting tasks find the answers
            elif self._turns.get(number) is turn:
                del self._turns[number]
        return answers

    def _recent(self, number: int) -> dict[str, Index] | None:
        when, answers = self._known.get(number, (-math.inf, {}))
        return answers if time.monotonic() - when <= PAGE_SECONDS else None
