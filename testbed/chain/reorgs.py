"""Take a local chain's last blocks away."""

from __future__ import annotations

from muster.chain.anvil import LocalChain


async def reorg(dev: LocalChain, depth: int) -> None:
    """Replace the last `depth` blocks by as many empty ones: their transactions are gone."""
    await dev.request("anvil_reorg", depth, [])
