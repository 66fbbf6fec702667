"""Where a node gets its run's weights: the relays its operator chose, or else those in the orchestrator's directory.

The directory changes as members come and go, so it is read again every minute, and at once after a fetch that failed.
While it does not answer, its last answer is used. Sources are not trusted: every shard is checked on arrival, and a
source that sent something else is reported to the directory, signed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Final

from pydantic import ValidationError

from muster.clients.orchestrator import OrchestratorClient
from muster.errors import TRANSIENT, MusterError, UnreachableError
from muster.protocol.messages import MisbehaviourReport
from muster.runtime import telemetry
from muster.settings.schema import ShardcastSettings
from muster.shardcast.fetch.connection import url_problem
from muster.shardcast.fetch.sources import SourceReport

FRESH_SECONDS: Final = 60.0
"""An answer of the directory is used this long."""

REPORT_SECONDS: Final = 5.0
"""The longest that reporting may keep a node from its new weights."""

_MAX_REPORTED: Final = 256
"""Reports remembered, so that none is sent twice."""

_log = telemetry.logger("shardcast")


@dataclass(eq=False)
class Relays:
    """The sources of one run's weights, as one node sees them."""

    settings: ShardcastSettings
    client: OrchestratorClient | None
    """Whose directory is used unless settings name relays: without a client, at least one must be named."""
    run: int
    _: KW_ONLY
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.own = ""
        """Base URL at which this node serves weights itself, if it does; it is never fetched from."""
        self._chosen = list(self.settings.relays)
        self._listed: list[str] = []
        self._fresh_until = -float("inf")
        self._reported: dict[tuple[str, bytes], None] = {}

    async def urls(self) -> list[str]:
        """Return base URLs, best first.

        Raises UnreachableError when none is known, and as `OrchestratorClient.relays` when the directory has never
        answered.
        """
        urls = self._chosen or [url for url in await self._directory() if url != self.own]
        if not urls:
            raise UnreachableError(
                f"no relay of run {self.run} is known",
                hint="set shardcast.relays, or wait until the orchestrator names one",
            )
        return urls

    def expire(self) -> None:
        """Make the next call read the directory again."""
        self._fresh_until = -float("inf")

    async def report(self, root: bytes, bad_sources: Iterable[SourceReport]) -> None:
        """Report sources that sent other bytes than the root names to the directory, each once.

        Takes REPORT_SECONDS at most. A directory that does not answer raises nothing: other nodes report as well.
        """
        new = [source for source in bad_sources if (source.url, root) not in self._reported]
        if not new or self.client is None:
            return
        self.expire()
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                await asyncio.gather(*(self._report(self.client, root, source) for source in new))
        except TimeoutError:
            _log.warning("the directory does not answer reports", run=self.run)

    async def _report(self, client: OrchestratorClient, root: bytes, source: SourceReport) -> None:
        try:
            report = MisbehaviourReport(run=self.run, url=source.url, root=f"0x{root.hex()}", why=source.dropped[:300])
            await client.report_misbehaviour(report)
        except (MusterError, ValidationError) as error:  # its operator may have set a URL that no directory takes
            _log.warning("the directory did not take a report", url=source.url, error=str(error))
            return
        self._reported[source.url, root] = None
        while len(self._reported) > _MAX_REPORTED:
            del self._reported[next(iter(self._reported))]

    async def _directory(self) -> list[str]:
        if self.client is None or self.clock() < self._fresh_until:
            return self._listed
        try:
            listed = await self.client.relays(self.run)
        except TRANSIENT as error:
            if not self._listed:
                raise
            _log.warning("the directory does not answer; using its last answer", error=str(error))
        else:
            self._listed = [url for url in listed if not url_problem(url)]
            if wrong := set(listed) - set(self._listed):
                _log.warning("the directory names what is no base URL", urls=sorted(wrong)[:8])
        if any(url != self.own for url in self._listed):
            self._fresh_until = self.clock() + FRESH_SECONDS
        return self._listed
