"""Make the documents about single things, each at most once in some seconds however many ask.

One per service. The routes ask here.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Hashable
from typing import Final, TypeVar

from explorer.assets import pack
from explorer.boards import Boards
from explorer.live import read_live
from explorer.nodes import NodeView, node_view
from explorer.reading import RowReader
from explorer.rollouts import BeforeAndAfter, Rollouts, RolloutView
from explorer.source import PageSource
from muster.runtime.kept import KeptAnswers

LIVE_SECONDS: Final = 1.0
"""Age of the state of the run."""
SHORT_SECONDS: Final = 2.0
"""Age of documents about single things."""
LISTED_SECONDS: Final = 5.0
"""Age of lists."""
EARNINGS_SECONDS: Final = 60.0
PICTURE_SECONDS: Final = 30.0
"""Age of pictures for other sites, which they may keep as long again."""

T = TypeVar("T")


class Views:
    """The documents of one run."""

    def __init__(self, source: PageSource, reader: RowReader) -> None:
        self._source = source
        self._rollouts = Rollouts(source, reader)
        ages = (LIVE_SECONDS, SHORT_SECONDS, LISTED_SECONDS, EARNINGS_SECONDS, PICTURE_SECONDS)
        self._kept = {seconds: KeptAnswers(seconds) for seconds in ages}

    async def read(self, make: Callable[..., T], *asked: Hashable, seconds: float = SHORT_SECONDS) -> T:
        """Return what `make` reads of a connection, the source and what was `asked`, at most so many seconds old.

        Raises as `make` does: RefusedError for what does not exist.
        """
        return await self._kept[seconds].get(
            (make, *asked),
            lambda: self._source.database.read(lambda connection: make(connection, self._source, *asked)),
        )

    async def node(self, address: str) -> NodeView:
        """Return a node. Raises as `read`."""

        async def make() -> NodeView:
            facts = await self._source.queries.facts()
            return await self._source.database.read(
                lambda connection: node_view(connection, self._source, address, facts)
            )

        return await self._kept[SHORT_SECONDS].get(("node", address), make)

    async def rollout(self, file_hash: str, position: int) -> RolloutView:
        """Return a row of an accepted file. Raises as `Rollouts.row`."""
        asked = "rollout", file_hash, position
        return await self._kept[LISTED_SECONDS].get(asked, lambda: self._rollouts.row(file_hash, position))

    async def live(self, boards: Boards) -> tuple[str, bytes, bytes]:
        """Return the state of the run as JSON: its ETag, plain, compressed."""

        async def make() -> tuple[str, bytes, bytes]:
            state = await read_live(boards)
            plain = state.model_dump_json().encode("utf-8", "backslashreplace")
            digest = hashlib.sha256(repr(state.model_dump(exclude={"time"})).encode("utf-8", "backslashreplace"))
            return f'"{digest.hexdigest()[:16]}"', plain, await asyncio.to_thread(pack, plain)

        return await self._kept[LIVE_SECONDS].get("live", make)

    async def compared(self) -> BeforeAndAfter:
        """Return an early row and a late one, or why there are none."""
        return await self._kept[LISTED_SECONDS].get("compared", self._rollouts.compared)
