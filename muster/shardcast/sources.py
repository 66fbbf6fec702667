"""Relays and origins as seen by somebody who fetches from them: what they sent, what it was worth.

A failure (no answer, a refusal, a broken connection) makes a source rest and be asked again; a lie (bytes that are not
what the anchored root says) drops it for the rest of the fetch.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Final, Self
from urllib.parse import urlsplit

import httpx2
from blake3 import blake3

from muster import telemetry
from muster.errors import CheckError, ConfigError, MalformedError, MismatchError, UnreachableError
from muster.shardcast.folder import INDEX_NAME, MAX_INDEX_BYTES, Index, parse_index
from muster.shardcast.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, Shard, parse_manifest

WEIGHTS_PATH: Final = "/v1/weights"
"""Where a server's folder of versions is mounted; a static server must use the same."""

MAX_SOURCES: Final = 16
"""Sources used in one fetch, the first of those given; each has a shard in memory."""

NOT_YET: Final = (404, 503)
NOT_YET_SECONDS: Final = 1.0
"""Longest rest of a source that answers, but does not have it yet."""

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_log = telemetry.logger("shardcast")


@dataclass(frozen=True)
class FetchLimits:
    """Bounds of one fetch. Sizes in bytes, times in seconds."""

    timeout: float = 600
    """For everything together."""
    patience: float = 120
    """Without a manifest, or without another good shard."""
    connect: float = 5
    stall: float = 20
    """Without a byte on a connection; longer than a relay holds a request for a shard that is on its way."""
    min_rate: int = 128 * 1024
    """Bytes per second under which a shard is given up and asked for elsewhere."""
    streams: int = 2
    """Connections per source."""
    memory: int = 64 * 1024 * 1024
    """For shards whose hashes are not known yet. Each source has one connection even where that takes more."""
    max_bytes: int = 1 << 40
    """Largest version that is accepted."""

    def shard_seconds(self, size: int) -> float:
        """The longest that one shard may take."""
        return self.stall + size / self.min_rate

    @property
    def rest_seconds(self) -> float:
        """The longest pause before a source that failed is asked again."""
        return min(5.0, self.patience / 4)


@dataclass(frozen=True)
class SourceReport:
    """What one source did in a fetch."""

    url: str
    bytes: int
    """Of shards that were what they should be."""
    shards: int
    seconds: float
    """Spent receiving them, summed over its connections."""
    failures: int
    last_failure: str
    dropped: str
    """Why it was dropped as a liar; "" when it was not."""


class Source:
    """One relay or origin during one fetch."""

    def __init__(self, url: str, client: httpx2.AsyncClient, limits: FetchLimits) -> None:
        self.url = url
        self.dropped = ""
        self.last_status: int | None = None
        """HTTP status of the last answer, None when there was none."""
        self._client = client
        self._limits = limits
        self._bytes = self._shards = self._failures = self._in_a_row = 0
        self._seconds = 0.0
        self._last_failure = ""
        self._rests_until = 0.0

    async def index(self) -> Index:
        """What it says it has. Raises UnreachableError, MalformedError."""
        return parse_index(await self._whole(f"{WEIGHTS_PATH}/{INDEX_NAME}", MAX_INDEX_BYTES))

    async def manifest(self, root: bytes) -> Manifest:
        """The manifest of a version. Raises UnreachableError, or CheckError when what it sent is not that."""
        data = await self._whole(f"{WEIGHTS_PATH}/0x{root.hex()}/{MANIFEST_NAME}", MAX_MANIFEST_BYTES)
        return await asyncio.to_thread(parse_manifest, data, root)

    async def shard(self, manifest: Manifest, shard: Shard) -> bytearray:
        """The verified bytes of one shard. Raises UnreachableError, or CheckError when what it sent is not that."""
        started = time.monotonic()
        target = f"{WEIGHTS_PATH}/{manifest.id}/{manifest.files[shard.file].name}"
        try:
            async with asyncio.timeout(self._limits.shard_seconds(shard.size)):
                data = await self._range(target, shard, manifest.files[shard.file].size)
        except TimeoutError as error:
            raise UnreachableError(f"{self.url} sends shard {shard.index} too slowly") from error
        except httpx2.HTTPError as error:
            self.last_status = None
            raise UnreachableError(f"{self.url}: {_reason(error)}") from error
        self._bytes += shard.size
        self._shards += 1
        self._seconds += time.monotonic() - started
        self._in_a_row = 0
        return data

    def failed(self, error: UnreachableError) -> None:
        """Note a failure: the source rests, longer each time, before it is asked again."""
        self._failures += 1
        self._in_a_row += 1
        self._last_failure = str(error)
        longest = NOT_YET_SECONDS if self.last_status in NOT_YET else self._limits.rest_seconds
        pause = min(longest, 0.1 * 2 ** min(self._in_a_row, 16))
        self._rests_until = time.monotonic() + pause * random.uniform(0.75, 1.25)
        _log.debug("source failed", source=self.url, why=str(error), rests=pause)

    def drop(self, error: CheckError) -> None:
        """Note a lie: the source is not asked again in this fetch."""
        if not self.dropped:
            self.dropped = str(error)
            _log.warning("source dropped", source=self.url, why=str(error))

    @property
    def rests(self) -> float:
        """Seconds until it may be asked again; 0 when now."""
        return max(0.0, self._rests_until - time.monotonic())

    @property
    def report(self) -> SourceReport:
        return SourceReport(
            self.url, self._bytes, self._shards, self._seconds, self._failures, self._last_failure, self.dropped
        )

    async def _whole(self, target: str, limit: int) -> bytes:
        """A small file as a whole."""
        try:
            async with asyncio.timeout(2 * self._limits.stall), self._request(target) as reply:
                self._check_status(reply, 200)
                data = bytearray()
                async for chunk in reply.aiter_raw():
                    data += chunk
                    if len(data) > limit:
                        raise MalformedError(f"{self.url}{target} is longer than {limit} bytes")
                return bytes(data)
        except TimeoutError as error:
            raise UnreachableError(f"{self.url} does not answer in time") from error
        except httpx2.HTTPError as error:
            self.last_status = None
            raise UnreachableError(f"{self.url}: {_reason(error)}") from error

    async def _range(self, target: str, shard: Shard, file_size: int) -> bytearray:
        """Receive a shard and check it, hashing what comes while it comes."""
        asked = f"bytes={shard.offset}-{shard.end - 1}"
        data, got, hasher = bytearray(shard.size), 0, blake3()
        async with self._request(target, {"Range": asked}) as reply:
            whole = shard.size == file_size
            self._check_status(reply, 206, *([200] if whole else []))
            expected = f"{asked.replace('=', ' ')}/{file_size}"
            if reply.status_code == 206 and (says := reply.headers.get("content-range")) != expected:
                raise MalformedError(f"asked {self.url} for {expected}, got {str(says)[:60]!r}")
            async for chunk in reply.aiter_raw():
                if got + len(chunk) > shard.size:
                    raise MalformedError(f"{self.url} sends more than shard {shard.index} has")
                data[got : got + len(chunk)] = chunk
                got += len(chunk)
                hasher.update(chunk)
        if got < shard.size:
            raise UnreachableError(f"{self.url} breaks off shard {shard.index} after {got} of {shard.size} bytes")
        if hasher.digest() != shard.digest:
            raise MismatchError(f"shard {shard.index} from {self.url} hashes to 0x{hasher.hexdigest()}")
        return data

    def _request(
        self, target: str, headers: dict[str, str] | None = None
    ) -> AbstractAsyncContextManager[httpx2.Response]:
        return self._client.stream("GET", self.url + target, headers={"Accept-Encoding": "identity"} | (headers or {}))

    def _check_status(self, reply: httpx2.Response, *wanted: int) -> None:
        self.last_status = reply.status_code
        if reply.status_code not in wanted:
            raise UnreachableError(f"{self.url} answers {reply.status_code} {reply.reason_phrase}")


@cache
def _tls_context() -> ssl.SSLContext:
    """One for the process: loading the certificates takes longer than fetching a small version."""
    return httpx2.create_ssl_context()


def check_urls(urls: Sequence[str]) -> list[str]:
    """Base URLs as they are used, each once. Raises ConfigError when there is none, or one that is no base URL."""
    bases = list(dict.fromkeys(url.rstrip("/") for url in urls))
    if not bases:
        raise ConfigError("there is no relay or origin to fetch from", hint="set shardcast.relays, or upstreams")
    for base in bases:
        if not _is_base_url(base):
            raise ConfigError(f"{base!r} is not the base URL of a relay", hint="e.g. http://relay.example:8700")
    return bases


def _is_base_url(text: str) -> bool:
    try:
        parts, _ = urlsplit(text), httpx2.URL(text)
    except (ValueError, httpx2.InvalidURL):
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)


class Pool:
    """The sources of one fetch, sharing one HTTP client. Use as an async context manager.

    Raises ConfigError as `check_urls`.
    """

    def __init__(self, urls: Sequence[str], limits: FetchLimits) -> None:
        bases = check_urls(urls)
        self.limits = limits
        local = all(urlsplit(base).hostname in _LOOPBACK for base in bases)
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(limits.stall, connect=limits.connect, pool=limits.timeout),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=10),
            verify=_tls_context(),
            trust_env=not local,
        )
        self.sources = [Source(base, self._client, limits) for base in bases[:MAX_SOURCES]]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    @property
    def live(self) -> list[Source]:
        """The sources that have not been dropped."""
        return [source for source in self.sources if not source.dropped]

    @property
    def reports(self) -> tuple[SourceReport, ...]:
        return tuple(source.report for source in self.sources)

    async def manifest(self, root: bytes, *, once: bool = False) -> Manifest:
        """The manifest with this root, from whoever sends it first.

        Sources that do not have it yet are asked again until `patience` runs out; with `once`, each is asked once.
        Raises as `nothing_left`.
        """
        asking = [asyncio.create_task(self._ask(source, root, once)) for source in self.live]
        with suppress(TimeoutError):
            try:
                async with asyncio.timeout(self.limits.patience):
                    for answer in asyncio.as_completed(asking):
                        if (manifest := await answer) is not None:
                            return manifest
            finally:
                for task in asking:
                    task.cancel()
                await asyncio.gather(*asking, return_exceptions=True)
        raise self.nothing_left(f"the manifest of 0x{root.hex()}")

    def nothing_left(self, what: str) -> MismatchError | UnreachableError:
        """Why `what` could not be had: MismatchError when all sources lied, UnreachableError otherwise."""
        reports = self.reports
        if not self.live:
            lies = "; ".join(f"{report.url}: {report.dropped}" for report in reports)
            return MismatchError(
                f"every source of {what} sent something else: {lies}",
                hint="nothing was kept; set other shardcast.relays",
            )
        why = "; ".join(f"{report.url}: {report.dropped or report.last_failure or 'no answer'}" for report in reports)
        return UnreachableError(
            f"no source has {what}: {why}", hint=f"is one up? curl {self.live[0].url}{WEIGHTS_PATH}/{INDEX_NAME}"
        )

    async def _ask(self, source: Source, root: bytes, once: bool) -> Manifest | None:
        while True:
            try:
                return await source.manifest(root)
            except UnreachableError as error:
                source.failed(error)
            except CheckError as error:
                source.drop(error)
            if once or source.dropped:
                return None
            await asyncio.sleep(source.rests)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
