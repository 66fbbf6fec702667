"""The client of an explorer: what people see of a run, as documents. No member of a run depends on it."""

from __future__ import annotations

from typing import Any, Self

from muster.chain.reads import ChainReader
from muster.clients.transport import SignedClient
from muster.protocol.announcements import DayEarnings


class ExplorerClient(SignedClient):
    """A client of one explorer; how long a call lasts is `SignedClient`'s. It never signs."""

    @classmethod
    def at(cls, url: str, chain: ChainReader, *, timeout: float = 30) -> Self:
        """Return a client of the explorer at `url`."""
        return cls.on_chain(url, chain, timeout=timeout)

    async def check_ready(self) -> None:
        """Raise UnreachableError while chain and log are not read up to now."""
        await self._call("GET", "/readyz")

    async def summary(self, run: int) -> dict[str, Any]:
        """Return a run in one bounded document. Schema: the explorer's OpenAPI document."""
        return await self._get(dict[str, Any], f"/v1/runs/{run}/summary")

    async def earnings(self, run: int) -> DayEarnings:
        """Return what the workers of a run made in the last day."""
        return await self._get(DayEarnings, f"/v1/runs/{run}/earnings")

    async def chart(self, run: int, metric: str) -> str:
        """Return a chart of a metric over the run's steps, as SVG."""
        return (await self._call("GET", f"/v1/runs/{run}/charts/{metric}.svg")).decode()

    async def events(self, run: int, after: int = 0) -> dict[str, Any]:
        """Return events after number `after`, oldest first: {"events": [...], "cursor": number to go on from}."""
        return await self._get(dict[str, Any], f"/v1/runs/{run}/events", after=after)
