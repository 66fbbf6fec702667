"""web3's methods over an endpoint of ours. Imported by `muster.chain.connection` where one of them is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from web3 import AsyncWeb3
from web3.eth import AsyncEth
from web3.middleware import ExtraDataToPOAMiddleware
from web3.providers.async_base import AsyncJSONBaseProvider
from web3.types import RPCEndpoint, RPCResponse

from muster.chain.provider import BoundedProvider


class _Web3Provider(AsyncJSONBaseProvider):
    """Passes web3's requests to an endpoint. Raises RpcError or UnreachableError."""

    global_ccip_read_enabled = False
    """A revert must not make this process fetch URLs (EIP-3668)."""

    def __init__(self, endpoint: BoundedProvider) -> None:
        super().__init__()
        self._endpoint = endpoint

    async def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        return _response(await self._endpoint.request(method, *params))

    async def make_batch_request(self, requests: Sequence[tuple[RPCEndpoint, Any]]) -> list[RPCResponse]:
        return [_response(result) for result in await self._endpoint.batch(requests)]


def methods_over(endpoint: BoundedProvider) -> AsyncWeb3:
    """Return web3 over an endpoint, with the methods of `eth`."""
    # No default middleware: it would ask for gas prices and names behind our back. POA: blocks with longer extra data.
    return AsyncWeb3(_Web3Provider(endpoint), middleware=[ExtraDataToPOAMiddleware], modules={"eth": AsyncEth})


def _response(result: Any) -> RPCResponse:
    return cast(RPCResponse, {"jsonrpc": "2.0", "id": 1, "result": result})
