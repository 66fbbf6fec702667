"""Relays and origins as seen by somebody who fetches from them: what they sent, what it was worth.

A failure (no answer, a refusal, a broken connection) makes a source rest and be asked again; a lie (bytes that are not
what the anchored root says) drops it for the rest of the fetch. The event loop decides who fetches what; receiving,
hashing and writing happen in the pool's threads, one per connection (`muster.shardcast.wire`).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self, TypeVar

from blake3 import blake3

from muster import telemetry
from muster.errors import CheckError, ConfigError, MalformedError, MismatchError, UnreachableError
from muster.shardcast.bucket import Bucket
from muster.shardcast.folder import INDEX_NAME, MAX_INDEX_BYTES, Index, parse_index
from muster.shardcast.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, Shard, parse_manifest
from muster.shardcast.wire import PIECE_BYTES, Answer, Wire, url_problem

WEIGHTS_PATH: Final = "/v1/weights"
"""Where a server's folder of versions is mounted; a static server must use the same."""

MAX_SOURCES: Final = 16
"""Sources used in one fetch, the first of those given; each has a shard in memory."""

NOT_YET: Final = (404, 503)
NOT_YET_SECONDS: Final = 1.0
"""Longest rest of a source that answers, but does not have it yet."""

T = TypeVar("T")
_log = telemetry.logger("shardcast")


@dataclass(frozen=True)
class FetchLimits:
    """Bounds of one fetch. Sizes in bytes, times in seconds."""

    timeout: float = 3600
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
    rate: int = 0
    """Bytes per second received, over all sources; 0 for no bound."""

    def shard_seconds(self, size: int) -> float:
        """The longest that one shard may take; under a cap, its share of that with every stream at work."""
        capped = self.rate / (MAX_SOURCES * self.streams) if self.rate else self.min_rate
        return self.stall + size / min(self.min_rate, capped)

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

    def __init__(self, url: str, limits: FetchLimits, threads: ThreadPoolExecutor, bucket: Bucket) -> None:
        self.url = url
        self.limits = limits
        self.dropped = ""
        self.last_status: int | None = None
        """HTTP status of the last answer, None when there was none."""
        self.bucket = bucket
        self._threads = threads
        self._wires: set[Wire] = set()
        self._bytes = self._shards = self._failures = self._in_a_row = 0
        self._seconds = 0.0
        self._last_failure = ""
        self._rests_until = 0.0

    def wire(self) -> Wire:
        """A connection to it, which `close` ends with all others."""
        wire = Wire(self.url, connect=self.limits.connect, stall=self.limits.stall)
        self._wires.add(wire)
        return wire

    def close(self) -> None:
        """End all connections."""
        for wire in self._wires:
            wire.close()

    async def in_thread(self, wire: Wire, seconds: float, what: str, work: Callable[[], T]) -> T:
        """Do blocking `work` with a wire. The wire is closed when it fails, takes too long or is not waited for.

        Raises UnreachableError when it takes longer than `seconds`, and what `work` raises.
        """

        def run() -> T:
            with wire.in_use():
                return work()

        doing = asyncio.get_running_loop().run_in_executor(self._threads, run)
        doing.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(doing)
        except TimeoutError as error:
            raise UnreachableError(f"{self.url} sends {what} too slowly") from error
        finally:
            if not doing.done() or doing.exception() is not None:
                wire.close()
                self._wires.discard(wire)

    async def index(self) -> Index:
        """What it says it has. Raises UnreachableError, MalformedError."""
        return parse_index(await self._whole(f"{WEIGHTS_PATH}/{INDEX_NAME}", MAX_INDEX_BYTES))

    async def manifest(self, root: bytes) -> Manifest:
        """The manifest of a version. Raises UnreachableError, or CheckError when what it sent is not that."""
        data = await self._whole(f"{WEIGHTS_PATH}/0x{root.hex()}/{MANIFEST_NAME}", MAX_MANIFEST_BYTES)
        return await asyncio.to_thread(parse_manifest, data, root)

    async def _whole(self, target: str, limit: int) -> bytes:
        """A small file as a whole."""
        wire = self.wire()

        def receive() -> bytes:
            answer = self.ask(wire, target)
            self.check_status(answer, 200)
            if answer.length > limit:
                raise MalformedError(f"{self.url}{target} is longer than {limit} bytes")
            data = bytearray(answer.length)
            got = wire.read_into(memoryview(data)) if data else 0
            if got < len(data):
                raise UnreachableError(f"{self.url} breaks off {target} after {got} of {len(data)} bytes")
            return bytes(data)

        try:
            return await self.in_thread(wire, 2 * self.limits.stall, target, receive)
        finally:
            wire.close()
            self._wires.discard(wire)

    def ask(self, wire: Wire, target: str, headers: dict[str, str] | None = None) -> Answer:
        """Send a request, and note what came back. Blocks. Raises UnreachableError, MalformedError."""
        self.last_status = None
        answer = wire.ask(target, headers)
        self.last_status = answer.status
        return answer

    def check_status(self, answer: Answer, *wanted: int) -> None:
        """Raises UnreachableError for any other status."""
        if answer.status not in wanted:
            raise UnreachableError(f"{self.url} answers {answer.status} {answer.reason}")

    def delivered(self, size: int, seconds: float) -> None:
        """Note a shard that was what it should be."""
        self._bytes += size
        self._shards += 1
        self._seconds += seconds
        self._in_a_row = 0

    def failed(self, error: UnreachableError) -> None:
        """Note a failure: the source rests, longer each time, before it is asked again."""
        self._failures += 1
        self._in_a_row += 1
        self._last_failure = str(error)
        longest = NOT_YET_SECONDS if self.last_status in NOT_YET else self.limits.rest_seconds
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


class Stream:
    """One connection's worth of a source: shard after shard, through a buffer of its own."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._wire: Wire | None = None
        self._buffer = bytearray()

    async def fetch(self, manifest: Manifest, shard: Shard, keep: Callable[[Shard, memoryview], None]) -> None:
        """Receive a shard, check it, and only then give it to `keep`; all in one thread.

        Raises UnreachableError, CheckError when what was sent is not the shard, and what `keep` raises.
        """
        source, started = self._source, time.monotonic()
        if self._wire is None:
            self._wire, self._buffer = source.wire(), bytearray()
        wire, file = self._wire, manifest.files[shard.file]
        target = f"{WEIGHTS_PATH}/{manifest.id}/{file.name}"
        if len(self._buffer) < shard.size:
            self._buffer = bytearray(shard.size)
        view = memoryview(self._buffer)[: shard.size]

        def work() -> None:
            self._receive(wire, target, shard, file.size, view)
            keep(shard, view)

        seconds = source.limits.shard_seconds(shard.size)
        try:
            await source.in_thread(wire, seconds, f"shard {shard.index}", work)
        except BaseException:
            self._wire = None  # closed; a thread that does not know yet may still write into the buffer
            raise
        source.delivered(shard.size, time.monotonic() - started)

    def _receive(self, wire: Wire, target: str, shard: Shard, file_size: int, view: memoryview) -> None:
        """Fill `view` with the shard, hashing what has come while the rest comes. Blocks."""
        source = self._source
        asked = f"bytes={shard.offset}-{shard.end - 1}"
        answer = source.ask(wire, target, {"Range": asked})
        source.check_status(answer, 206, *([200] if shard.size == file_size else []))
        expected = f"{asked.replace('=', ' ')}/{file_size}"
        if answer.status == 206 and answer.range != expected:
            raise MalformedError(f"asked {source.url} for {expected}, got {answer.range[:60]!r}")
        if answer.length != shard.size:
            raise MalformedError(f"{source.url} sends {answer.length} bytes as shard {shard.index} of {shard.size}")
        got, hasher = 0, blake3()
        while got < shard.size:
            piece = view[got : got + PIECE_BYTES]
            count = wire.read_into(piece)
            if count == 0:
                raise UnreachableError(f"{source.url} breaks off shard {shard.index} after {got} of {shard.size} bytes")
            hasher.update(piece[:count])
            got += count
            if wait := source.bucket.spend(count):
                time.sleep(wait)
        wire.done()
        if hasher.digest() != shard.digest:
            raise MismatchError(f"shard {shard.index} from {source.url} hashes to 0x{hasher.hexdigest()}")


def check_urls(urls: Sequence[str]) -> list[str]:
    """Base URLs as they are used, each once. Raises ConfigError when there is none, or one that is no base URL."""
    bases = list(dict.fromkeys(url.rstrip("/") for url in urls))
    if not bases:
        raise ConfigError("there is no relay or origin to fetch from", hint="set shardcast.relays, or upstreams")
    for base in bases:
        if url_problem(base):
            raise ConfigError(f"{base!r} is not the base URL of a relay", hint="e.g. http://relay.example:8700")
    return bases


class Pool:
    """The sources of one fetch, and the threads that receive from them. Use as an async context manager.

    Raises ConfigError as `check_urls`.
    """

    def __init__(self, urls: Sequence[str], limits: FetchLimits) -> None:
        bases = check_urls(urls)
        self.limits = limits
        chosen = bases[:MAX_SOURCES]
        workers = len(chosen) * (limits.streams + 1)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="shardcast")
        bucket = Bucket(limits.rate)
        self.sources = [Source(base, limits, self._threads, bucket) for base in chosen]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for source in self.sources:
            source.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

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
