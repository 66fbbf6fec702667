"""Where a node gets its run's weights: the relays its operator chose, or else those in the orchestrator's directory.

The directory changes as members come and go, so it is asked again: every minute, and at once after a fetch that failed.
While it does not answer, its last answer serves. Nobody in it is trusted: every shard is checked on arrival, and who
sent something else is reported to it, signed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from muster import telemetry
from muster.errors import TRANSIENT, MusterError, UnreachableError
from muster.http import OrchestratorClient
from muster.messages import LieReport
from muster.settings import ShardcastSettings
from muster.shardcast.sources import SourceReport

ASK_SECONDS: Final = 60.0
"""An answer of the directory is used this long."""

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
        """Where this node serves weights itself, if it does: it does not fetch from there."""
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
        """Tell the directory of sources that sent something else than the root says, of each once. Never raises for
        want of an answer: who else is lied to reports it too."""
        for liar in liars:
            if self._client is None or (liar.url, root) in self._reported:
                continue
            self._reported[liar.url, root] = None
            while len(self._reported) > _MAX_REPORTED:
                del self._reported[next(iter(self._reported))]
            lie = LieReport(run=self._run, url=liar.url, root=f"0x{root.hex()}", why=liar.dropped[:300])
            try:
                await self._client.report_lie(lie)
            except MusterError as error:
                _log.warning("the directory did not take a report", url=liar.url, error=str(error))
            self.doubt()

    async def _directory(self) -> list[str]:
        if self._client is None or self._clock() < self._fresh_until:
            return self._listed
        try:
            self._listed = await self._client.relays(self._run)
        except TRANSIENT as error:
            if not self._listed:
                raise
            _log.warning("the directory does not answer; using what it said before", error=str(error))
        self._fresh_until = self._clock() + ASK_SECONDS
        return self._listed
