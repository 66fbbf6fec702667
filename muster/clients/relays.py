"""Where a node gets its run's weights: the relays its operator chose, or else those in the orchestrator's directory.

The directory changes as members come and go, so it is asked again: every minute, and at once after a fetch that failed.
While it does not answer, its last answer serves. Nobody in it is trusted: every shard is checked on arrival, and who
sent something else is reported to it, signed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from pydantic import ValidationError

from muster import telemetry
from muster.errors import TRANSIENT, MusterError, UnreachableError
from muster.http import OrchestratorClient
from muster.messages import LieReport
from muster.settings import ShardcastSettings
from muster.shardcast.sources import SourceReport
from muster.shardcast.wire import url_problem

ASK_SECONDS: Final = 60.0
"""An answer of the directory is used this long."""

REPORT_SECONDS: Final = 5.0
"""The longest that reporting may keep a node from its new weights."""

_MAX_REPORTED: Final = 256
"""Lies remembered, so that none is reported twice."""

_log = telemetry.logger("shardcast")


class Relays:
    """The sources of one run's weights, as one node sees them."""

    def __init__(
        self,
        settings: ShardcastSettings,
        client: OrchestratorClient | None,
        run: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without a client there is no directory: `settings.relays` must then name one at least."""
        self.own = ""
        """Where this node serves weights itself, if it does: what the directory sends there is not fetched."""
        self._chosen = list(settings.relays)
        self._client = client
        self._run = run
        self._clock = clock
        self._listed: list[str] = []
        self._fresh_until = -float("inf")
        self._reported: dict[tuple[str, bytes], None] = {}

    async def urls(self) -> list[str]:
        """Base URLs, best first. Raises UnreachableError when none is known, and as `OrchestratorClient.relays` when
        the directory has never answered."""
        urls = self._chosen or [url for url in await self._directory() if url != self.own]
        if not urls:
            raise UnreachableError(
                f"no relay of run {self._run} is known",
                hint="set shardcast.relays, or wait until the orchestrator names one",
            )
        return urls

    def doubt(self) -> None:
        """Ask the directory the next time, whenever it last answered."""
        self._fresh_until = -float("inf")

    async def report(self, root: bytes, liars: Iterable[SourceReport]) -> None:
        """Tell the directory of sources that sent something else than the root says, of each once. Takes
        REPORT_SECONDS at most, and never raises for want of an answer: who else is lied to reports it too."""
        new = [liar for liar in liars if (liar.url, root) not in self._reported]
        if not new or self._client is None:
            return
        self.doubt()
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                await asyncio.gather(*(self._tell(self._client, root, liar) for liar in new))
        except TimeoutError:
            _log.warning("the directory does not answer reports", run=self._run)

    async def _tell(self, client: OrchestratorClient, root: bytes, liar: SourceReport) -> None:
        try:
            lie = LieReport(run=self._run, url=liar.url, root=f"0x{root.hex()}", why=liar.dropped[:300])
            await client.report_lie(lie)
        except (MusterError, ValidationError) as error:  # its operator may have set a URL that no directory takes
            _log.warning("the directory did not take a report", url=liar.url, error=str(error))
            return
        self._reported[liar.url, root] = None
        while len(self._reported) > _MAX_REPORTED:
            del self._reported[next(iter(self._reported))]

    async def _directory(self) -> list[str]:
        if self._client is None or self._clock() < self._fresh_until:
            return self._listed
        try:
            listed = await self._client.relays(self._run)
        except TRANSIENT as error:
            if not self._listed:
                raise
            _log.warning("the directory does not answer; using what it said before", error=str(error))
        else:
            self._listed = [url for url in listed if not url_problem(url)]
            if strange := set(listed) - set(self._listed):
                _log.warning("the directory names what is no base URL", urls=sorted(strange)[:8])
        if any(url != self.own for url in self._listed):
            self._fresh_until = self._clock() + ASK_SECONDS
        return self._listed
