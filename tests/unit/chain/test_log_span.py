"""How many blocks a log query covers: as many as the endpoint takes, found again where that changes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import pytest

from muster.chain.reads import LOG_SPAN, LogSpan
from muster.contracts.registry import Deposited
from muster.errors import UnreachableError
from testbed.chain.log_server import LogServer


def queries(span: LogSpan, blocks: int, limit: Callable[[int], int]) -> int:
    """Return the queries that reading so many blocks takes of an endpoint with a limit that depends on the block."""
    count = first = 0
    while first < blocks:
        asked = min(span.blocks, blocks - first)
        count += 1
        assert count < 2 * blocks
        if asked > limit(first):
            span.refuse(asked)
        else:
            span.answer(asked)
            first += asked
    return count


@pytest.mark.parametrize(("limit", "waste"), [(LOG_SPAN, 0), (2_000, 20), (9, 200), (3, 250), (1, 350)])
def test_span_finds_limit(limit: int, waste: int) -> None:
    blocks = 20_000
    assert -(-blocks // limit) <= queries(LogSpan(), blocks, lambda _: limit) <= -(-blocks // limit) + waste


def test_span_grows_again_after_dense_blocks() -> None:
    span = LogSpan()
    assert queries(span, 1_000_000, lambda first: 7 if 50_000 <= first < 51_000 else LOG_SPAN) < 400
    assert span.blocks == LOG_SPAN


def test_short_queries_show_nothing() -> None:
    span = LogSpan()
    for _ in range(100):
        span.answer(1)
    assert span.blocks == LOG_SPAN


async def test_server_that_lags_keeps_the_span() -> None:
    head = 99_990
    server = LogServer(lambda: head)
    async with server.reader() as reader:
        for _ in range(3):
            with pytest.raises(UnreachableError, match="the endpoint is behind: it does not know block 100000"):
                await reader.events([Deposited], 1, 100_000)
        assert (reader.log_span.blocks, server.requests) == (LOG_SPAN, 3)
        head = 100_000
        assert await reader.events([Deposited], 1, 100_000) == ()
        assert server.requests == 3 + 11


@pytest.mark.parametrize("knows", ["the block", "no block"])
async def test_logs_by_a_server_that_lags_keep_the_span(knows: str) -> None:
    """Of two servers that take turns one answers for the block, and the other for its logs."""
    heads = cycle([100, 90] if knows == "the block" else [90, 90])
    async with LogServer(lambda: next(heads)).reader() as reader:
        with pytest.raises(UnreachableError, match="the endpoint is behind"):
            await reader.events([Deposited], 1, 100)
        assert reader.log_span.blocks == LOG_SPAN


async def test_limit_of_a_server_that_has_the_block_narrows_the_span() -> None:
    server = LogServer(lambda: 10_000, limit=1_000)
    async with server.reader() as reader:
        assert await reader.events([Deposited], 1, 10_000) == ()
    assert server.requests < 30
