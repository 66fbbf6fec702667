"""Endpoint errors: not an RPC endpoint, silent, another chain, overloaded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from eth_utils.address import to_checksum_address

from muster.chain import provider as provider_module
from muster.chain.client import Chain
from muster.chain.connection import connected
from muster.chain.provider import BoundedProvider, RpcError
from muster.errors import MalformedError, UnreachableError, WrongChainError
from muster.settings.schema import ChainSettings
from testbed.chain.anvil import Anvil
from testbed.chain.balancer import balanced, first
from testbed.http import answer, scripted


async def test_the_wrong_chain_is_refused(anvil: Anvil) -> None:
    with pytest.raises(WrongChainError, match="serves chain 31337, and the settings name chain 84532"):
        await Chain.connect(ChainSettings(rpc_url=anvil.url, chain_id=84_532))


async def test_an_endpoint_that_fails_when_asked_for_its_chain_is_out_of_reach(anvil: Anvil) -> None:
    async with balanced(anvil) as balancer:
        balancer.fails = first(1, "eth_chainId")
        with pytest.raises(UnreachableError, match="does not say which it is: internal error"):
            async with connected(ChainSettings(rpc_url=balancer.url)):
                pass


async def test_silence_is_an_error_after_a_bound(start_anvil: Callable[..., Anvil]) -> None:
    anvil = start_anvil()
    anvil.stop()
    clock = asyncio.get_running_loop().time
    start = clock()
    with pytest.raises(UnreachableError, match="does not answer"):
        await Chain.connect(ChainSettings(rpc_url=anvil.url))
    assert clock() - start < 10


TOO_MANY = {"error": {"code": -32005, "message": "Too Many Requests"}}


def reply(status: str, body: bytes = b"") -> bytes:
    return answer(f"{status} x", body=body)


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
    async with scripted(reply("200", body)) as server, BoundedProvider(server.url, timeout=60) as provider:
        with pytest.raises(MalformedError, match=match):
            await provider.request("eth_chainId")


async def test_an_overloaded_endpoint_is_asked_again() -> None:
    busy = b'{"jsonrpc": "2.0", "id": 1, "error": {"code": -32016, "message": "over rate limit"}}'
    good = b'{"jsonrpc": "2.0", "id": 1, "result": "0x7a69"}'
    answers = (reply("429"), reply("500", b"<html>"), reply("200", busy), reply("200", good))
    async with scripted(*answers) as server, BoundedProvider(server.url, timeout=60) as provider:
        assert await provider.request("eth_chainId") == "0x7a69"
    async with scripted(reply("503")) as server, BoundedProvider(server.url, timeout=60) as provider:
        with pytest.raises(UnreachableError, match="HTTP status 503"):
            await provider.request("eth_chainId")


async def test_wait_that_endpoint_asks_for_is_observed() -> None:
    busy, good = (json.dumps({"id": 1, **content}).encode() for content in (TOO_MANY, {"result": "0x1"}))
    clock = asyncio.get_running_loop().time
    async with (
        scripted(answer("200 x", "Retry-After: 1", body=busy), reply("200", good)) as server,
        BoundedProvider(server.url, timeout=60) as provider,
    ):
        start = clock()
        assert await provider.request("eth_chainId") == "0x1"
        assert clock() - start >= 1


async def test_revert_about_rate_limit_is_not_retried() -> None:
    reverted = {"error": {"code": 3, "message": "execution reverted: over rate limit", "data": "0x08c379a0"}}
    async with (
        scripted(reply("200", json.dumps({"id": 1, **reverted}).encode())) as server,
        BoundedProvider(server.url, timeout=60) as provider,
    ):
        with pytest.raises(RpcError) as caught:
            await provider.request("eth_call")
        assert (caught.value.kind, caught.value.data, len(server.bodies)) == ("reverted", b"\x08\xc3\x79\xa0", 1)


async def test_long_batches_travel_in_pieces(anvil: Anvil) -> None:
    async with BoundedProvider(anvil.url, timeout=60) as provider:
        assert await provider.batch([]) == []
        numbers = await provider.batch([("eth_getBalance", [f"0x{i:040x}", "latest"]) for i in range(0x1000, 0x1019)])
        assert numbers == ["0x0"] * 25
        with pytest.raises(RpcError, match="eth_nonsense"):
            await provider.batch([("eth_chainId", []), ("eth_nonsense", [])])


async def test_an_answer_is_read_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_module, "MAX_ANSWER_BYTES", 1000)
    async with scripted(reply("200", b" " * 1001)) as server, BoundedProvider(server.url, timeout=60) as provider:
        with pytest.raises(MalformedError, match="sends more than 1000 bytes"):
            await provider.request("eth_chainId")


async def test_batches_and_single_requests_of_several_tasks_do_not_mix(anvil: Anvil) -> None:
    addresses = [to_checksum_address(f"0x{i:040x}") for i in range(0x2000, 0x2008)]
    for i, address in enumerate(addresses):
        anvil.request("anvil_setBalance", address, hex(i))
    async with connected(ChainSettings(rpc_url=anvil.url)) as web3:
        eth = web3.eth

        async def batch() -> list[int]:
            return await web3.in_one_trip(*(eth.get_balance(address) for address in addresses))

        answers = await asyncio.gather(*(work for address in addresses for work in (batch(), eth.get_balance(address))))
    assert answers[::2] == [list(range(8))] * 8
    assert answers[1::2] == list(range(8))


async def test_block_with_long_proof_of_authority_extra_data_is_read(anvil: Anvil) -> None:
    block = anvil.request("eth_getBlockByNumber", "latest", False) | {"extraData": "0x" + "ab" * 97}
    answers = [b'{"jsonrpc": "2.0", "id": 1, "result": "0x7a69"}', json.dumps({"id": 1, "result": block}).encode()]
    async with (
        scripted(*(reply("200", body) for body in answers)) as server,
        connected(ChainSettings(rpc_url=server.url)) as web3,
    ):
        assert (await web3.eth.get_block("latest"))["number"] == int(block["number"], 16)  # type: ignore[typeddict-item]
