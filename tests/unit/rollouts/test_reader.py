"""The bounded reader against hostile files: it distinguishes each failure and reads the next file."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from muster.errors import MalformedError, UnreachableError
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import FileLimits, write_rollouts
from muster.rollouts.reader import RolloutReader
from muster.rollouts.sandbox import ParseRefusal, ParseStatus, read_until_closed, status_at_exit
from muster.rollouts.schema import SCHEMA
from testbed.samples.rollouts import make_row, parquet, table_of
from testbed.waiting import BOUND

LIMITS = FileLimits(rows=256, decoded_bytes=1 << 20)
HONEST = [make_row(p) for p in range(256)]


@pytest.fixture
async def reader() -> AsyncIterator[RolloutReader]:
    async with RolloutReader() as reader:
        yield reader


async def assert_reads_on(reader: RolloutReader) -> None:
    rows = await reader.read(write_rollouts(HONEST), LIMITS)
    assert rollout_tree(rows).root == rollout_tree(HONEST).root


@cache
def list_bomb() -> bytes:
    """One row whose prompt and completion are 33 million equal tokens each, in less than 4 KB."""
    size = 1 << 25
    field = SCHEMA.field("prompt_tokens")
    tokens = pa.ListArray.from_arrays(pa.array([0, size], pa.int32()), pa.array(np.zeros(size, np.int32)), field.type)
    table = table_of([make_row()])
    for name in ("prompt_tokens", "completion_tokens"):
        table = table.set_column(SCHEMA.names.index(name), SCHEMA.field(name), tokens)
    data = parquet(table, use_dictionary=True)
    assert len(data) < 4096
    return data


def dictionary_bomb() -> bytes:
    """One proof of nearly a megabyte that 1024 rows refer to: a gigabyte that declares no more than the limit."""
    rows = [make_row()]
    table = pa.concat_tables([table_of([replace(row, proof=bytes(900_000)) for row in rows])] * 1024)
    return parquet(table, use_dictionary=True, dictionary_pagesize_limit=1 << 22, row_group_size=1024)


async def test_honest_files_are_read_and_cheaply(reader: RolloutReader) -> None:
    await assert_reads_on(reader)
    before = os.times()
    for _ in range(10):
        await assert_reads_on(reader)
    after = os.times()
    assert (after.user + after.system) - (before.user + before.system) < 10 * 0.2


async def test_the_format_is_checked(reader: RolloutReader) -> None:
    with pytest.raises(MalformedError, match="not a rollout file"):
        await reader.read(write_rollouts(HONEST)[:-5], LIMITS)
    with pytest.raises(MalformedError, match="256 rows"):
        await reader.read(write_rollouts(HONEST), FileLimits(rows=255, decoded_bytes=1 << 20))
    with pytest.raises(MalformedError, match=r"'oh\\x1bno'"):
        await reader.read(parquet(table_of([replace(make_row(), finish_reason="oh\x1bno")])), LIMITS)
    await assert_reads_on(reader)


async def test_a_list_bomb_is_refused(reader: RolloutReader) -> None:
    with pytest.raises(MalformedError, match="33554432 values in a column"):
        await reader.read(list_bomb(), LIMITS)


async def test_memory_is_limited(reader: RolloutReader) -> None:
    with pytest.raises(MalformedError, match=r"memory|bad_alloc|malloc|realloc"):
        await reader.read(dictionary_bomb(), FileLimits(rows=1024, decoded_bytes=1 << 20))
    await assert_reads_on(reader)


async def test_no_file_is_blamed_where_machine_lacks_memory_for_honest_one(reader: RolloutReader) -> None:
    """As under strict overcommit: by a limit set on the running process, below what the fork would set itself."""
    await assert_reads_on(reader)
    assert reader.server is not None
    pages = int(Path(f"/proc/{reader.server.pid}/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (32 << 20)
    resource.prlimit(reader.server.pid, resource.RLIMIT_AS, (most, most))
    with pytest.raises(UnreachableError):
        await reader.read(dictionary_bomb(), FileLimits(rows=1024, decoded_bytes=1 << 20))
    await assert_reads_on(reader)


async def test_cpu_time_is_limited_and_the_file_is_blamed() -> None:
    async with RolloutReader(cpu_seconds=1) as reader:
        with pytest.raises(MalformedError, match="more than 1 s of CPU time"):
            await reader.read(list_bomb(), FileLimits(rows=1, decoded_bytes=1 << 31))
        await assert_reads_on(reader)


async def test_late_answer_is_not_malformed() -> None:
    async with RolloutReader(wall_seconds=0.0) as reader:
        with pytest.raises(UnreachableError):
            await reader.read(write_rollouts(HONEST), LIMITS)


async def test_a_killed_server_is_replaced(reader: RolloutReader) -> None:
    await assert_reads_on(reader)
    assert reader.server is not None
    first = reader.server.pid
    os.kill(first, signal.SIGKILL)
    await assert_reads_on(reader)
    assert reader.server.pid != first


async def test_a_cancelled_read_leaves_no_answer_for_the_next(reader: RolloutReader) -> None:
    await assert_reads_on(reader)
    task = asyncio.create_task(reader.read(list_bomb(), FileLimits(rows=1, decoded_bytes=1 << 30)))
    await asyncio.sleep(0)  # let it send
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await assert_reads_on(reader)


def test_parser_killed_from_outside_is_not_malformed() -> None:
    assert status_at_exit(signal.SIGKILL, b"", 1)[0] == ParseStatus.FAILED
    assert status_at_exit(signal.SIGSEGV, b"", 1) == (ParseStatus.MALFORMED, b"the parser died of SIGSEGV")
    assert status_at_exit(signal.SIGXCPU, b"", 1)[0] == ParseStatus.MALFORMED


def test_output_is_bounded() -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, bytes(1000))
    refusal = read_until_closed(read_end, 999, time.monotonic() + BOUND)
    os.close(write_end)
    assert refusal == ParseRefusal(ParseStatus.MALFORMED, "the file decodes to more than 999 bytes")
    os.close(read_end)
