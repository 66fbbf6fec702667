"""A connection to a chain: bare requests of its endpoint, and web3's methods over it.

Reads need no web3, whose import takes half a second: `muster.chain.web3_methods` brings it where it is used.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from muster.chain.gas import COMMITMENT_GAS
from muster.chain.provider import BoundedProvider, RpcError, data, quantity, results
from muster.errors import UnreachableError, WrongChainError
from muster.settings.schema import ChainSettings
from muster.settings.sources import mask

if TYPE_CHECKING:
    from web3 import AsyncWeb3
    from web3.eth import AsyncEth


_DATA_FEE: Final = {"to": "0x420000000000000000000000000000000000000F", "data": f"0xf1c7a58b{500:064x}"}
"""`getL1FeeUpperBound` of an OP chain's GasPriceOracle: wei for 500 bytes on layer 1. A commitment has fewer."""


class Web3:
    """A connection: `provider` for bare requests, `eth` for web3's methods. web3 is imported when they are used."""

    def __init__(self, provider: BoundedProvider) -> None:
        self.provider = provider

    @cached_property
    def _methods(self) -> AsyncWeb3:
        from muster.chain.web3_methods import methods_over

        return methods_over(self.provider)

    @property
    def eth(self) -> AsyncEth:
        return self._methods.eth

    async def data(self, *requests: tuple[str, Sequence[Any]]) -> list[bytes]:
        """Return the bytes that answer several requests, made in one round trip. Raises MalformedError."""
        return [data(answer) for answer in await self.provider.batch(requests)]

    async def gas_price(self) -> int:
        """Return the wei for a unit of a commitment's gas: on an OP chain with its part of what the data takes.

        Raises RpcError and MalformedError.
        """
        price, fee = await self.provider.answers([("eth_gasPrice", []), ("eth_call", [_DATA_FEE, "latest"])])
        fee = b"" if isinstance(fee, RpcError) else data(fee)  # at that address other chains may have any code
        return quantity(*results([price])) + int.from_bytes(fee[:32], "big") // COMMITMENT_GAS

    async def in_one_trip(self, *requests: Awaitable[Any]) -> list[Any]:
        """Return the results of several requests of `eth`, made in one round trip, or in none for no request."""
        if not requests:
            return []
        async with self._methods.batch_requests() as batch:
            for request in requests:
                batch.add(request)
            return await batch.async_execute()


@asynccontextmanager
async def connected(settings: ChainSettings) -> AsyncIterator[Web3]:
    """Connect to the endpoint of the settings for the length of a block.

    Raises WrongChainError when it serves another chain, UnreachableError when it does not say which.
    """
    async with BoundedProvider(settings.rpc_url, timeout=settings.timeout_seconds) as provider:
        web3 = Web3(provider)
        try:
            served = quantity(await provider.request("eth_chainId"))
        except RpcError as error:
            message = f"the chain at {mask(settings.rpc_url)} does not say which it is: {error.reason}"
            raise UnreachableError(message, hint="try again, or check chain.rpc_url") from error
        if served != settings.chain_id:
            raise WrongChainError(
                f"{mask(settings.rpc_url)} serves chain {served}, and the settings name chain {settings.chain_id}",
                hint=f"set chain.rpc_url to an endpoint of chain {settings.chain_id}, or chain.chain_id to {served}",
            )
        yield web3
