"""The endpoint: one that is none, is silent, serves another chain or has too much to do is told apart from a chain."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from muster.chain.anvil import Anvil
from muster.chain.rpc import Rpc, RpcError, connect
from muster.errors import MalformedError, UnreachableError, WrongChainError
from muster.settings import ChainSettings


async def test_the_wrong_chain_is_refused(anvil: Anvil) -> None:
    with pytest.raises(WrongChainError, match="serves chain 31337, and the settings name chain 84532"):
        await connect(ChainSettings(rpc_url=anvil.url, chain_id=84_532))


async def test_silence_is_an_error_after_a_bound(start_anvil: Callable[..., Anvil]) -> None:
    anvil = start_anvil()
    anvil.stop()
    start = time.monotonic()
    with pytest.raises(UnreachableError, match="does not answer"):
        await connect(ChainSettings(rpc_url=anvil.url))
    assert time.monotonic() - start < 10


@asynccontextmanager
async def scripted(*answers: bytes) -> AsyncIterator[str]:
    """An endpoint that gives these HTTP answers in turn, the last one again and again: what a public one may do."""
    left = list(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        status, _, body = (left.pop(0) if len(left) > 1 else left[0]).partition(b"|")
        head = b"HTTP/1.1 %s x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body))
        writer.write(head + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (b"<html>", "is this a chain's endpoint"),
        (b"[]", "is not JSON-RPC"),
        (b'{"id": 1}', "is not JSON-RPC"),
        (b'"text"', "is not JSON-RPC"),
    ],
)
async def test_an_endpoint_that_is_none_is_recognised(body: bytes, match: str) -> None:
    async with scripted(b"200|" + body) as url, Rpc(url, timeout=5) as rpc:
        with pytest.raises(MalformedError, match=match):
            await rpc.request("eth_chainId")


async def test_an_overloaded_endpoint_is_asked_again() -> None:
    busy = b'200|{"jsonrpc": "2.0", "id": 1, "error": {"code": -32016, "message": "over rate limit"}}'
    good = b'200|{"jsonrpc": "2.0", "id": 1, "result": "0x7a69"}'
    async with scripted(b"429|", b"500|<html>", busy, good) as url, Rpc(url, timeout=10) as rpc:
        assert await rpc.request("eth_chainId") == "0x7a69"
    async with scripted(b"503|") as url, Rpc(url, timeout=10) as rpc:
        with pytest.raises(UnreachableError, match="HTTP status 503"):
            await rpc.request("eth_chainId")


async def test_long_batches_travel_in_pieces(anvil: Anvil) -> None:
    async with Rpc(anvil.url, timeout=5) as rpc:
        assert await rpc.batch([]) == []
        numbers = await rpc.batch([("eth_getBalance", [f"0x{i:040x}", "latest"]) for i in range(0x1000, 0x1019)])
        assert numbers == ["0x0"] * 25
        with pytest.raises(RpcError, match="eth_nonsense"):
            await rpc.batch([("eth_chainId", []), ("eth_nonsense", [])])
