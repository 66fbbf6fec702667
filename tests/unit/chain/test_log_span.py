"""How many blocks a log query covers: as many as the endpoint takes, found again where that changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from muster.chain.reads import LOG_SPAN, LogSpan


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
