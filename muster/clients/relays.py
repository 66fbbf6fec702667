"""Where a node gets its run's weights: the relays its operator chose, or else those in the orchestrator's directory.

The directory changes as members come and go, so it is read again every minute, and at once after a fetch that failed.
While it does not answer, its last answer is used. A fetch uses only the first sources of a list, so each node has an
order of its own: the owner's relays, then the others by a salted hash, weighted by the pace that the node measured.
Sources are not trusted: every shard is checked on arrival, and a source that sent something else is reported to the
directory, signed.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from blake3 import blake3
from pydantic import ValidationError

from muster.clients.orchestrator import OrchestratorClient
from muster.errors import TRANSIENT, MusterError, UnreachableError
from muster.protocol.messages import MisbehaviourReport
from muster.runtime import telemetry
from muster.settings.schema import ShardcastSettings
from muster.shardcast.fetch.connection import is_private, url_problem
from muster.shardcast.fetch.sources import SourceReport

FRESH_SECONDS: Final = 60.0
"""An answer of the directory is used this long."""

REPORT_SECONDS: Final = 5.0
"""The longest that reporting may keep a node from its new weights."""

FIRST: Final = 4
"""Of the directory's list, which begins with the owner's relays, so many stay first: they have a new step first."""

MEASURED_SECONDS: Final = 3600.0
"""A measured pace counts this long; then its source gets another chance."""

LEAST_PACE: Final = 0.001
"""Weight of a source that delivers nothing, where the fastest one has 1."""

_MAX_MEASURED: Final = 256
"""Sources whose pace is remembered."""

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
    salt: bytes = field(default_factory=lambda: os.urandom(16))
    """Of this node's order of sources. Others do not know it, so no offered URL can be made to come first."""

    def __post_init__(self) -> None:
        self.own = ""
        """Base URL at which this node serves weights itself, if it does; it is never fetched from."""
        self._chosen = list(self.settings.relays)
        self._listed: list[str] = []
        self._fresh_until = -float("inf")
        self._reported: dict[tuple[str, bytes], None] = {}
        self._paces: dict[str, tuple[float, float]] = {}
        """By URL: bytes per second of one connection in the last fetch, and until when that counts."""

    async def urls(self) -> list[str]:
        """Return base URLs, best first.

        Raises UnreachableError when none is known, and as `OrchestratorClient.relays` when the directory has never
        answered.
        """
        urls = self._chosen or self._ordered([url for url in await self._directory() if url != self.own])
        if not urls:
            raise UnreachableError(
                f"no relay of run {self.run} is known",
                hint="set shardcast.relays, or wait until the orchestrator names one",
            )
        return urls

    @property
    def public(self) -> bool:
        """Return whether strangers may have chosen the URLs: not those of the settings, nor of an own network's run."""
        return not self._chosen and self.client is not None and not is_private(self.client.url)

    def expire(self) -> None:
        """Make the next call read the directory again."""
        self._fresh_until = -float("inf")

    async def report(self, root: bytes, sources: Collection[SourceReport]) -> None:
        """Measure the sources of a fetch, and report those that sent other bytes than the root names, each once.

        Takes REPORT_SECONDS at most. A directory that does not answer raises nothing: other nodes report as well.
        """
        self._measure(sources)
        new = [source for source in sources if source.dropped and (source.url, root) not in self._reported]
        if not new or self.client is None:
            return
        self.expire()
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                await asyncio.gather(*(self._report(self.client, root, source) for source in new))
        except TimeoutError:
            _log.warning("the directory does not answer reports", run=self.run)

    def _measure(self, sources: Iterable[SourceReport]) -> None:
        """Remember the pace of the sources that delivered or failed."""
        for source in sources:
            if source.bytes or source.failures:
                self._paces.pop(source.url, None)
                self._paces[source.url] = source.pace, self.clock() + MEASURED_SECONDS
        while len(self._paces) > _MAX_MEASURED:
            del self._paces[next(iter(self._paces))]

    def _ordered(self, urls: list[str]) -> list[str]:
        """Return URLs in this node's order: rendezvous hashing, after the first ones.

        A source that was not measured weighs as much as the fastest.
        """
        now = self.clock()
        paces = {url: pace for url, (pace, until) in self._paces.items() if until > now}
        fastest = max(paces.values(), default=0.0) or 1.0

        def score(url: str) -> float:
            digest = blake3(self.salt + url.encode()).digest(length=6)
            uniform = (int.from_bytes(digest, "big") + 1) / (2**48 + 1)
            return -max(paces.get(url, fastest) / fastest, LEAST_PACE) / math.log(uniform)

        return [*urls[:FIRST], *sorted(urls[FIRST:], key=score, reverse=True)]

    async def _report(self, client: OrchestratorClient, root: bytes, source: SourceReport) -> None:
        try:
            report = MisbehaviourReport(run=self.run, url=source.url, root=f"0x{root.hex()}", why=source.dropped[:300])
            await client.add_document("misbehaviour", report)
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
