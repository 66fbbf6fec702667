"""Relays and origins during one fetch: what each delivered, and when it may be asked again.

After a failure (no answer, a refusal, a broken connection) a source is asked again later. After wrong bytes (not what
the anchored root says) it is dropped for the rest of the fetch. The event loop decides who fetches what; receiving,
hashing and writing happen in the pool's threads, one per connection (`muster.shardcast.fetch.connection`).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from blake3 import blake3

from muster.errors import CheckError, ConfigError, MalformedError, MismatchError, MusterError, UnreachableError
from muster.runtime import telemetry
from muster.runtime.closing import AsyncClosing
from muster.shardcast.fetch.bounds import FetchBounds
from muster.shardcast.fetch.connection import PIECE_BYTES, Answer, Connection, url_problem
from muster.shardcast.fetch.rate_limit import TokenBucket
from muster.shardcast.format.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, Shard, parse_manifest
from muster.shardcast.format.store import INDEX_NAME, MAX_INDEX_BYTES, Index, page_name, parse_index

WEIGHTS_PATH: Final = "/v1/weights"
"""Where a server's folder of versions is mounted; a static server must use the same."""

MAX_SOURCES: Final = 16
"""Sources used in one fetch, the first of those given; each has a shard in memory."""

CONNECT_SECONDS: Final = 5.0

MIN_RATE: Final = 128 * 1024
"""Bytes per second under which a shard is given up and asked for elsewhere."""

NOT_THERE: Final = 404
NOT_YET: Final = (NOT_THERE, 503)
NOT_YET_SECONDS: Final = 1.0
"""Longest back-off of a source that answers, but does not have it yet."""

Retry = Literal["all", "busy", "none"]
"""Which sources that do not send a manifest are asked again, until `give_up_seconds` are over.

"all" suits a step that is just being published. "busy" suits an older one: a source that answers 404 is not asked
again. "none" asks each source once."""

T = TypeVar("T")
_log = telemetry.logger("shardcast")


def shard_seconds(bounds: FetchBounds, size: int) -> float:
    """Return the longest that one shard of so many bytes may take; under a cap, with every stream at work."""
    capped = bounds.download_rate / (MAX_SOURCES * bounds.streams) if bounds.download_rate else MIN_RATE
    return bounds.stall_seconds + size / min(MIN_RATE, capped)


@dataclass
class SourceReport:
    """What one source did in a fetch."""

    url: str
    bytes: int = 0
    """Of shards that were what they should be."""
    shards: int = 0
    seconds: float = 0.0
    """Spent receiving them, summed over its connections."""
    failures: int = 0
    last_failure: str = ""
    dropped: str = ""
    """Why it was dropped for wrong bytes; "" when it was not."""

    @property
    def pace(self) -> float:
        """Bytes per second of one of its connections; 0 before it has delivered a shard."""
        return self.bytes / self.seconds if self.seconds else 0.0

    def expected_seconds(self, size: int) -> float:
        """Return how long a shard of this size takes, the mean of all at least; 0 before one was delivered."""
        return max(size / self.pace, self.seconds / self.shards) if self.pace else 0.0


class Source:
    """One relay or origin during one fetch."""

    def __init__(
        self,
        url: str,
        bounds: FetchBounds,
        threads: ThreadPoolExecutor,
        rate_limit: TokenBucket,
        *,
        public: bool = False,
    ) -> None:
        self.url = url
        self.bounds = bounds
        self.public = public
        self.report = SourceReport(url)
        self.last_status: int | None = None
        """HTTP status of the last answer, None when there was none."""
        self.rate_limit = rate_limit
        self._threads = threads
        self._connections: set[Connection] = set()
        self._in_a_row = 0
        """Failures since it last delivered."""
        self._next_try = 0.0

    def connect(self) -> Connection:
        """Return a new connection to it, which `close` ends with all others."""
        stall = self.bounds.stall_seconds
        connection = Connection(self.url, connect=CONNECT_SECONDS, stall=stall, public=self.public)
        self._connections.add(connection)
        return connection

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    async def in_thread(self, connection: Connection, seconds: float, what: str, work: Callable[[], T]) -> T:
        """Do blocking `work` with a connection, which is closed unless the work succeeds in time.

        Raises UnreachableError when it takes longer than `seconds`, and what `work` raises.
        """

        def run() -> T:
            with connection.in_use():
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
                connection.close()
                self._connections.discard(connection)

    async def index(self, page: int | None = None) -> Index:
        """Ask it for its index or a page of it; for all of it where it has no pages.

        Raises UnreachableError, MalformedError.
        """
        name = INDEX_NAME if page is None else page_name(page)
        try:
            return parse_index(await self._whole(f"{WEIGHTS_PATH}/{name}", MAX_INDEX_BYTES))
        except UnreachableError:
            if page is None or self.last_status != NOT_THERE:
                raise
            return await self.index()

    async def manifest(self, root: bytes) -> Manifest:
        """Ask it for the manifest of a version. Raises UnreachableError, CheckError when it sent something else."""
        data = await self._whole(f"{WEIGHTS_PATH}/0x{root.hex()}/{MANIFEST_NAME}", MAX_MANIFEST_BYTES)
        return await asyncio.to_thread(parse_manifest, data, root)

    async def _whole(self, target: str, limit: int) -> bytes:
        """Receive a small file as a whole."""
        connection = self.connect()

        def receive() -> bytes:
            answer = self.get(connection, target, (200,))
            if answer.length > limit:
                raise MalformedError(f"{self.url}{target} is longer than {limit} bytes")
            data = bytearray(answer.length)
            got = connection.read_into(memoryview(data)) if data else 0
            if got < len(data):
                raise UnreachableError(f"{self.url} breaks off {target} after {got} of {len(data)} bytes")
            return bytes(data)

        try:
            return await self.in_thread(connection, 2 * self.bounds.stall_seconds, target, receive)
        finally:
            connection.close()
            self._connections.discard(connection)

    def get(
        self, connection: Connection, target: str, wanted: Collection[int], headers: dict[str, str] | None = None
    ) -> Answer:
        """Send a GET request, and note the answer's status. Blocks.

        Raises UnreachableError, also for a status that is not `wanted`, MalformedError.
        """
        self.last_status = None
        answer = connection.get(target, headers)
        self.last_status = answer.status
        if answer.status not in wanted:
            raise UnreachableError(f"{self.url} answers {answer.status} {answer.reason}".rstrip())
        return answer

    def delivered(self, size: int, seconds: float) -> None:
        """Note a shard that was what it should be."""
        self.report.bytes += size
        self.report.shards += 1
        self.report.seconds += seconds
        self._in_a_row = 0

    def failed(self, error: UnreachableError) -> None:
        """Note a failure: the source is asked again after a pause, longer each time."""
        self.report.failures += 1
        self.report.last_failure = str(error)
        self._in_a_row += 1
        longest = NOT_YET_SECONDS if self.last_status in NOT_YET else min(5.0, self.bounds.give_up_seconds / 4)
        pause = min(longest, 0.1 * 2 ** min(self._in_a_row, 16))
        self._next_try = time.monotonic() + pause * random.uniform(0.75, 1.25)
        _log.debug("source failed", source=self.url, why=str(error), pause=pause)

    def drop(self, error: CheckError) -> None:
        """Note wrong bytes: the source is not asked again in this fetch."""
        if not self.report.dropped:
            self.report.dropped = str(error)
            _log.warning("source dropped", source=self.url, why=str(error))

    @property
    def backoff(self) -> float:
        """Return the seconds until it may be asked again; 0 when now."""
        return max(0.0, self._next_try - time.monotonic())


class Stream:
    """One connection to a source: shard after shard, through one buffer."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.received = 0
        """Bytes of the shard that is under way; a thread counts them."""
        self._connection: Connection | None = None
        self._buffer = bytearray()

    async def fetch(self, manifest: Manifest, shard: Shard, keep: Callable[[Shard, memoryview], None]) -> float:
        """Receive a shard, check it, and only then pass it to `keep`, all in one thread; return the seconds taken.

        Raises UnreachableError, CheckError when what was sent is not the shard, and what `keep` raises.
        """
        source, started, self.received = self.source, time.monotonic(), 0
        if self._connection is None:
            self._connection, self._buffer = source.connect(), bytearray()
        connection, file = self._connection, manifest.files[shard.file]
        target = f"{WEIGHTS_PATH}/{manifest.id}/{file.name}"
        if len(self._buffer) < shard.size:
            self._buffer = bytearray(shard.size)
        view = memoryview(self._buffer)[: shard.size]

        def work() -> None:
            self._receive(connection, target, shard, file.size, view)
            keep(shard, view)

        seconds = shard_seconds(source.bounds, shard.size)
        try:
            await source.in_thread(connection, seconds, f"shard {shard.index}", work)
        except BaseException:
            self._connection = None  # closed; a thread that does not know yet may still write into the buffer
            raise
        return time.monotonic() - started

    def _receive(self, connection: Connection, target: str, shard: Shard, file_size: int, view: memoryview) -> None:
        """Fill `view` with the shard, hashing what has come while the rest comes. Blocks."""
        source = self.source
        asked = f"bytes={shard.offset}-{shard.end - 1}"
        wanted = (200, 206) if shard.size == file_size else (206,)
        answer = source.get(connection, target, wanted, {"Range": asked})
        expected = f"{asked.replace('=', ' ')}/{file_size}"
        if answer.status == 206 and answer.range != expected:
            raise MalformedError(f"asked {source.url} for {expected}, got {answer.range[:60]!r}")
        if answer.length != shard.size:
            raise MalformedError(f"{source.url} sends {answer.length} bytes as shard {shard.index} of {shard.size}")
        got, hasher = 0, blake3()
        while got < shard.size:
            piece = view[got : got + PIECE_BYTES]
            count = connection.read_into(piece)
            if count == 0:
                raise UnreachableError(f"{source.url} breaks off shard {shard.index} after {got} of {shard.size} bytes")
            hasher.update(piece[:count])
            self.received = got = got + count
            if wait := source.rate_limit.spend(count):
                time.sleep(wait)
        connection.done()
        if hasher.digest() != shard.digest:
            raise MismatchError(f"shard {shard.index} from {source.url} hashes to 0x{hasher.hexdigest()}")


def check_urls(urls: Sequence[str]) -> list[str]:
    """Return the base URLs as they are used, each once. Raises ConfigError for none, or one that is no base URL."""
    bases = list(dict.fromkeys(url.rstrip("/") for url in urls))
    if not bases:
        raise ConfigError("there is no relay or origin to fetch from", hint="set shardcast.relays, or upstreams")
    for base in bases:
        if url_problem(base):
            raise ConfigError(f"{base!r} is not the base URL of a relay", hint="e.g. http://relay.example:8700")
    return bases


class Pool(AsyncClosing):
    """The sources of one fetch, and the threads that receive from them. Use as an async context manager.

    public: ask only addresses of the public network. Raises ConfigError as `check_urls`.
    """

    def __init__(self, urls: Sequence[str], bounds: FetchBounds, *, public: bool = False) -> None:
        bases = check_urls(urls)
        self.bounds = bounds
        chosen = bases[:MAX_SOURCES]
        workers = len(chosen) * (bounds.streams + 1)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="shardcast")
        rate_limit = TokenBucket(bounds.download_rate)
        self.sources = [Source(base, bounds, self._threads, rate_limit, public=public) for base in chosen]

    async def close(self) -> None:
        for source in self.sources:
            source.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def live(self) -> list[Source]:
        """Return the sources that have not been dropped."""
        return [source for source in self.sources if not source.report.dropped]

    @property
    def reports(self) -> tuple[SourceReport, ...]:
        return tuple(source.report for source in self.sources)

    async def indexes(self, seconds: float | None = None, page: int | None = None) -> dict[str, Index]:
        """Return the index, or a page of it, of each source by URL, of those that answer in time."""
        asked = {asyncio.ensure_future(source.index(page)): source.url for source in self.sources}
        try:
            answered, _ = await asyncio.wait(asked, timeout=seconds)
        finally:  # also when this is cancelled: else asyncio logs exceptions that were never retrieved
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        for task in answered:
            if (error := task.exception()) is not None and not isinstance(error, MusterError):
                raise error
        return {asked[task]: task.result() for task in answered if task.exception() is None}

    async def manifest(self, root: bytes, retry: Retry = "all") -> Manifest:
        """Return the manifest with this root from the source that sends it first. Raises as `nothing_left`."""
        asking = [asyncio.create_task(self._ask(source, root, retry)) for source in self.live]
        with suppress(TimeoutError):
            try:
                async with asyncio.timeout(self.bounds.give_up_seconds):
                    for answer in asyncio.as_completed(asking):
                        if (manifest := await answer) is not None:
                            return manifest
            finally:
                for task in asking:
                    task.cancel()
                await asyncio.gather(*asking, return_exceptions=True)
        raise self.nothing_left(f"the manifest of 0x{root.hex()}")

    def nothing_left(self, what: str) -> MismatchError | UnreachableError:
        """Return why `what` could not be fetched: MismatchError when all sources sent wrong bytes."""
        reports = self.reports
        if not self.live:
            wrong = "; ".join(f"{report.url}: {report.dropped}" for report in reports)
            return MismatchError(
                f"every source of {what} sent something else: {wrong}",
                hint="nothing was kept; set other shardcast.relays",
            )
        why = "; ".join(f"{report.url}: {report.dropped or report.last_failure or 'no answer'}" for report in reports)
        shown = f"curl {self.live[0].url}{WEIGHTS_PATH}/{INDEX_NAME}"
        answered = all(source.last_status == NOT_THERE for source in self.live)
        elsewhere = f"set shardcast.relays to one that has it; {shown} shows what is there"
        return UnreachableError(f"no source has {what}: {why}", hint=elsewhere if answered else f"is one up? {shown}")

    async def _ask(self, source: Source, root: bytes, retry: Retry) -> Manifest | None:
        while True:
            try:
                return await source.manifest(root)
            except UnreachableError as error:
                source.failed(error)
            except CheckError as error:
                source.drop(error)
            gone = retry == "busy" and source.last_status == NOT_THERE
            if retry == "none" or gone or source.report.dropped:
                return None
            await asyncio.sleep(source.backoff)
