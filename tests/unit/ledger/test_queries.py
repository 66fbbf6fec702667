"""Polled answers: made once for each version of the database, and shared by concurrent callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from muster.errors import StorageError
from muster.ledger.database import Database
from muster.ledger.queries import Queries
from muster.ledger.run_facts import ChainState
from testbed.samples.commitments import rules

NODE = "0x" + "11" * 20


class Counted(Database):
    """A database that counts its reads, and fails while `failing` is set."""

    reads = 0
    failing = False

    async def read(self, work: Callable[[Connection], Any]) -> Any:
        self.reads += 1
        if self.failing:
            raise StorageError("database: gone")
        return await super().read(work)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Counted]:
    opened = await Counted.open(f"sqlite:///{tmp_path}/orchestrator.db", "a test")
    assert isinstance(opened, Counted)
    yield opened
    await opened.close()


@pytest.fixture
def queries(database: Counted) -> Queries:
    return Queries(database, 1, rules().terms, groups_wanted=16)


async def test_concurrent_callers_share_one_read_per_version(database: Counted, queries: Queries) -> None:
    queries.chain = ChainState(now=3_600)
    first = await asyncio.gather(*(queries.demand() for _ in range(100)))
    assert (database.reads, len({answer.model_dump_json() for answer in first})) == (1, 1)
    await database.write(lambda _: None)
    await asyncio.gather(*(queries.demand() for _ in range(100)))
    assert database.reads == 2
    queries.chain = ChainState(now=7_200)
    await asyncio.gather(*(queries.demand() for _ in range(100)))
    assert database.reads == 3, "only the hour is new"


async def test_worker_limits_are_read_once_for_all_nodes(database: Counted, queries: Queries) -> None:
    await asyncio.gather(*(queries.node_report(NODE) for _ in range(100)))
    assert database.reads == 101


async def test_failure_reaches_every_caller_and_is_not_kept(database: Counted, queries: Queries) -> None:
    database.failing = True
    failures = await asyncio.gather(*(queries.demand() for _ in range(10)), return_exceptions=True)
    assert [str(error) for error in failures] == ["database: gone"] * 10
    assert database.reads == 1
    database.failing = False
    assert (await queries.demand()).run == 1


async def test_cancelled_caller_does_not_cancel_shared_answer(database: Counted, queries: Queries) -> None:
    asking = [asyncio.create_task(queries.demand()) for _ in range(2)]
    await asyncio.sleep(0)
    asking[0].cancel()
    assert (await asking[1]).run == 1
    assert database.reads == 1
