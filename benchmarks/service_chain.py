"""How fast an orchestrator reads a chain from empty, and what a reorg costs it, on SQLite and on PostgreSQL.

The follower is the service's own, and so is all that decodes and writes. The endpoint is made up: it answers with raw
logs of WorkCommitted, four a block by 5,000 workers, which register first, and of a checkpoint in every four blocks.
Making the answers is part of the time. `catch_up` counts all events. `reorg` is the poll that finds ten blocks
replaced by others, with what was read of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from benchmarks.report import Figure, figure
from muster.chain.reads import ChainReader
from muster.chain.types import AddressBook
from muster.contracts.codec import Event
from muster.contracts.registry import Registered, Role
from muster.contracts.runs import CheckpointPublished, Phase, RunState, WorkCommitted
from muster.ledger.chain_follower import Follower
from muster.ledger.database import Database
from muster.ledger.queries import Queries
from muster.settings.schema import ChainSettings
from testbed.samples.terms import terms_of
from testbed.servers.postgres import PostgresServer

ENGINES: Final = ("sqlite", "postgresql")
Engine = Literal["sqlite", "postgresql"]
REORG_BLOCKS: Final = 10
TARGETS: Final = {"sqlite": 3_000, "postgresql": 2_000}
"""Events a second."""
REORG_SECONDS: Final = 2.0
WORKERS: Final = 5_000
PER_BLOCK: Final = 4
STEP_BLOCKS: Final = 4
BLOCK_SECONDS: Final = 2
RUN: Final = 1


class SyntheticEndpoint:
    """Answers batches of requests as a node would whose chain has so many commitments."""

    def __init__(self, book: AddressBook, commitments: int, validators: Sequence[str] = ()) -> None:
        self._book = book
        self.workers = [hashlib.sha256(b"worker %d" % number).hexdigest()[:40] for number in range(WORKERS)]
        judges = [(Role.VALIDATOR, address[2:].lower()) for address in validators]
        self._members = [*judges, *((Role.WORKER, node) for node in self.workers)]
        self._first = 1 + -(-len(self._members) // PER_BLOCK)
        """Block of the first commitment."""
        self.head = self._first + commitments // PER_BLOCK - 1
        self.events = len(self._members) + commitments + (self.head - self._first) // STEP_BLOCKS + 1
        self.fork = self.head
        """The last block that a reorg leaves."""

    async def batch(self, requests: Sequence[tuple[str, list[Any]]]) -> list[Any]:
        return [self._answer(method, params[0]) for method, params in requests]

    answers = batch

    async def request(self, method: str, *params: Any) -> Any:
        return self._answer(method, params[0])

    def _answer(self, method: str, asked: Any) -> Any:
        if method == "eth_getLogs":
            first, last = int(asked["fromBlock"], 16), int(asked["toBlock"], 16)
            return [log for block in range(first, last + 1) for log in self._logs(block)]
        if method == "eth_getBlockReceipts":
            number = int(asked, 16) % (1 << 64)
            return [{"blockHash": asked, "logs": self._logs(number)}]
        number = self.head if asked == "latest" else int(asked, 16)
        return {
            "number": hex(number),
            "timestamp": hex(number * BLOCK_SECONDS),
            "hash": self._hash(number),
            "parentHash": self._hash(number - 1),
            "transactions": [self._hash(number)],
        }

    def _hash(self, block: int) -> str:
        return f"0x{block + (1 << 64 if block > self.fork else 0):064x}"

    def _logs(self, block: int) -> list[dict[str, Any]]:
        start = (block - self._first) * PER_BLOCK
        if start < 0:
            some = self._members[(block - 1) * PER_BLOCK : block * PER_BLOCK]
            return [
                self._log(block, n, Registered, node, "0c" * 20, RUN, role, 0, 1, 7)
                for n, (role, node) in enumerate(some)
            ]
        step, hour = (block - self._first) // STEP_BLOCKS, block * BLOCK_SECONDS // 3600
        made = range(start, start + PER_BLOCK)
        logs = [
            self._log(
                block, n, WorkCommitted, RUN, self.workers[n % WORKERS], step, n // WORKERS, hour, self._root(block, n)
            )
            for n in made
        ]
        if (block - self._first) % STEP_BLOCKS == 0:
            logs.append(self._log(block, made.stop, CheckpointPublished, RUN, step, 1, 2, 3, 4))
        return logs

    def _root(self, block: int, number: int) -> int:
        return number + (1 << 200 if block > self.fork else 0)

    def _log(self, block: int, index: int, kind: type[Event], *values: int | str) -> dict[str, Any]:
        """Return a log; addresses are text without 0x, all else numbers, in the order of the ABI's words."""
        words = [f"{value:0>64}" if isinstance(value, str) else f"{value:064x}" for value in values]
        topics = ["0x" + kind.ABI.topic.hex(), *("0x" + word for word in words[: len(kind.ABI.indexed)])]
        return {
            "address": getattr(self._book, kind.ABI.contract),
            "topics": topics,
            "data": "0x" + "".join(words[len(kind.ABI.indexed) :]),
            "blockNumber": hex(block),
            "blockHash": self._hash(block),
            "transactionHash": f"0x{block:064x}",
            "logIndex": hex(index),
        }


class SyntheticChain(ChainReader):
    """Reads that endpoint. What contracts answer is fixed."""

    def __init__(self, commitments: int, validators: Sequence[str] = ()) -> None:
        """Begin with these addresses as validators."""
        book = AddressBook(31337, *("0x" + f"{number:040x}" for number in range(1, 8)), from_block=1)
        self.endpoint = SyntheticEndpoint(book, commitments, validators)
        web3: Any = type("Web3", (), {"provider": self.endpoint})()
        super().__init__(web3, book, ChainSettings())

    async def call_all(self, calls: Sequence[Any], block: int | None = None) -> list[Any]:
        answers = {"Runs.runState": RunState(10**24, 0, 1, 0, 3, 8, 255, Phase.OPEN), "RunTerms.tenures": []}
        return [answers.get(call.label, 0) for call in calls]


@dataclass
class Followed:
    """A database that was filled from empty."""

    endpoint: SyntheticEndpoint
    follower: Follower
    seconds: float
    """That it took."""

    @property
    def rate(self) -> float:
        """Return the events a second."""
        return self.endpoint.events / self.seconds


@asynccontextmanager
async def filled(
    url: str, commitments: int, *, validators: Sequence[str] = (), tells: bool = False
) -> AsyncIterator[Followed]:
    """Read the chain into an empty database. tells: with events for people, as an explorer does."""
    chain: Any = SyntheticChain(commitments, validators)
    database = await Database.open(url, "a benchmark")
    try:
        queries = Queries(database, RUN, terms_of(), groups_wanted=16)
        follower = Follower(chain, database, queries, chain.settings, tells=tells)
        begun = time.perf_counter()
        while not await follower.poll():
            pass
        yield Followed(chain.endpoint, follower, time.perf_counter() - begun)
    finally:
        await database.close()


async def _measure(url: str, commitments: int, blocks: int) -> tuple[float, float]:
    async with filled(url, commitments) as followed:
        followed.endpoint.fork = followed.endpoint.head - blocks
        begun = time.perf_counter()
        assert await followed.follower.poll() is True
        return followed.rate, time.perf_counter() - begun


def measure(engine: Engine, commitments: int, blocks: int = REORG_BLOCKS) -> tuple[float, float]:
    """Return the events a second of reading a chain from empty, and the seconds of a reorg of so many blocks then."""
    if engine == "sqlite":
        with tempfile.TemporaryDirectory(prefix="muster-chain-") as folder:
            return asyncio.run(_measure(f"sqlite:///{folder}/orchestrator.db", commitments, blocks))
    server = PostgresServer()
    try:
        return asyncio.run(_measure(server.create_database(), commitments, blocks))
    finally:
        server.close()


def figures(commitments: int) -> list[Figure]:
    """Measure on both engines."""
    found = []
    for engine in ENGINES:
        rate, seconds = measure(engine, commitments)
        found += [
            figure(f"catch_up_{engine}", rate, ratio=rate, target=TARGETS[engine], unit="events/s"),
            figure(f"reorg_{engine}", seconds, ratio=seconds, target=REORG_SECONDS, unit="s", at_most=True),
        ]
    return found
