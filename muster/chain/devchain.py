"""What only a local chain can do: move the clock, give money, rewrite its last blocks. For Anvil (31337) alone."""

from __future__ import annotations

from collections.abc import Iterable

from muster.chain.rpc import Rpc
from muster.constants import CHAIN_ANVIL, TOKEN
from muster.errors import ConfigError


class DevChain:
    """An Anvil seen from its owner. Make it with `of`."""

    def __init__(self, rpc: Rpc) -> None:
        self.rpc = rpc

    @classmethod
    async def of(cls, rpc: Rpc) -> DevChain:
        """Raises ConfigError on any chain that is not Anvil's."""
        chain_id = int(await rpc.request("eth_chainId"), 16)
        if chain_id != CHAIN_ANVIL:
            raise ConfigError(f"chain {chain_id} is no local chain", hint=f"this works on chain {CHAIN_ANVIL} only")
        return cls(rpc)

    async def now(self) -> int:
        """Timestamp of the latest block."""
        return int((await self.rpc.request("eth_getBlockByNumber", "latest", False))["timestamp"], 16)

    async def mine(self, blocks: int = 1) -> None:
        await self.rpc.request("anvil_mine", hex(blocks))

    async def advance(self, seconds: int) -> int:
        """Move the clock forward and mine a block there; returns its timestamp."""
        await self.rpc.request("evm_increaseTime", hex(seconds))
        await self.mine()
        return await self.now()

    async def advance_to(self, timestamp: int) -> int:
        """Mine a block at `timestamp`, which must lie after the latest block; later blocks follow from there."""
        await self.rpc.request("evm_setNextBlockTimestamp", hex(timestamp))
        await self.mine()
        return await self.now()

    async def fund(self, addresses: Iterable[str], wei: int = 100 * TOKEN) -> None:
        """Give each of them `wei` for gas."""
        await self.rpc.batch([("anvil_setBalance", [address, hex(wei)]) for address in addresses])

    async def reorg(self, depth: int) -> None:
        """Replace the last `depth` blocks by as many empty ones: their transactions are gone."""
        await self.rpc.request("anvil_reorg", depth, [])
