"""Times of blocks: asked for once each, and never taken from an answer that says none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from muster.chain.reads import ChainReader
from muster.errors import MalformedError, MusterError, UnreachableError
from muster.settings.schema import ChainSettings


class Endpoint:
    """An endpoint with fixed answers, by block."""

    def __init__(self, blocks: dict[int, Any]) -> None:
        self.blocks = blocks
        self.asked: list[Any] = []

    async def batch(self, requests: list[Any]) -> list[Any]:
        self.asked += requests
        return [self.blocks[int(number, 16)] for _, (number, _) in requests]


def reader(blocks: dict[int, Any]) -> tuple[ChainReader, Endpoint]:
    endpoint = Endpoint(blocks)
    web3: Any = SimpleNamespace(provider=endpoint)
    book: Any = SimpleNamespace(chain_id=31337)
    return ChainReader(web3, book, ChainSettings()), endpoint


async def test_each_block_is_asked_for_once() -> None:
    chain, endpoint = reader({5: {"timestamp": "0x64"}, 9: {"timestamp": "0x6e"}})
    assert await chain.block_times([9, 5, 9]) == {5: 100, 9: 110}
    assert endpoint.asked == [("eth_getBlockByNumber", ["0x5", False]), ("eth_getBlockByNumber", ["0x9", False])]
    assert await chain.block_times([]) == {}


@pytest.mark.parametrize(
    ("answer", "error", "match"),
    [
        (None, UnreachableError, "does not know block 5"),
        ({}, MalformedError, "block 5 has no time"),
        ([], MalformedError, "block 5 has no time"),
        ({"timestamp": None}, MalformedError, "block 5 has no time"),
        ({"timestamp": "soon"}, MalformedError, "block 5 has no time"),
    ],
)
async def test_a_block_without_a_time_is_malformed(answer: Any, error: type[MusterError], match: str) -> None:
    chain, _ = reader({5: answer})
    with pytest.raises(error, match=match):
        await chain.block_times([5])
