"""Blocks: each asked for once, and never taken from an answer that is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from muster.chain.reads import ChainReader
from muster.chain.types import Block
from muster.errors import ChainError, MalformedError, MusterError, UnreachableError
from muster.settings.schema import ChainSettings

HASH = "0x" + "ab" * 32


class Endpoint:
    """An endpoint with fixed answers, by block."""

    def __init__(self, blocks: dict[int | str, Any]) -> None:
        self.blocks = blocks
        self.asked: list[Any] = []

    async def batch(self, requests: list[Any]) -> list[Any]:
        self.asked += requests
        return [self.blocks[int(name, 16) if name.startswith("0x") else name] for _, (name, _) in requests]


def reader(blocks: dict[int | str, Any]) -> tuple[ChainReader, Endpoint]:
    endpoint = Endpoint(blocks)
    web3: Any = SimpleNamespace(provider=endpoint)
    book: Any = SimpleNamespace(chain_id=31337)
    return ChainReader(web3, book, ChainSettings()), endpoint


def block(number: Any, timestamp: Any, digest: Any = HASH) -> dict[str, Any]:
    return {"number": number, "timestamp": timestamp, "hash": digest}


async def test_each_block_is_asked_for_once() -> None:
    chain, endpoint = reader({5: block("0x5", "0x64"), 9: block("0x9", "0x6e")})
    assert await chain.block_times([9, 5, 9]) == {5: 100, 9: 110}
    assert endpoint.asked == [("eth_getBlockByNumber", ["0x5", False]), ("eth_getBlockByNumber", ["0x9", False])]
    assert await chain.block_times([]) == {}


@pytest.mark.parametrize(
    ("answer", "error", "match"),
    [
        (None, UnreachableError, "does not know block 5"),
        ({}, MalformedError, "the answer is no block"),
        ([], MalformedError, "the answer is no block"),
        (block("0x5", None), MalformedError, "the answer is no block"),
        (block("0x5", "soon"), MalformedError, "the answer is no block"),
        (block("0x5", "0x64", 7), MalformedError, "instead of bytes in hex"),
        (block("0x5", "0x64", "0xab0"), MalformedError, "instead of bytes in hex"),
    ],
)
async def test_an_answer_that_is_no_block_is_malformed(answer: Any, error: type[MusterError], match: str) -> None:
    chain, _ = reader({5: answer})
    with pytest.raises(error, match=match):
        await chain.block_times([5])


async def test_the_latest_block_is_read_beside_others_in_one_trip() -> None:
    chain, endpoint = reader({5: block("0x5", "0x64"), 9: None})
    endpoint.blocks["latest"] = block("0x8", "0x6d")
    found = await chain.blocks([5, 9, "latest"])
    assert found == [Block(5, 100, b"\xab" * 32), None, Block(8, 109, b"\xab" * 32)]


async def test_a_chain_without_blocks_is_an_error() -> None:
    chain, endpoint = reader({})
    endpoint.blocks["latest"] = None
    with pytest.raises(ChainError, match="no block latest yet"):
        await chain.head()
