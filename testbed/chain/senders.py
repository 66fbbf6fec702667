"""A sender on a real Anvil, and what its tests look at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from muster.chain.connection import connected
from muster.chain.keys import Signer
from muster.chain.sender import TxSender
from muster.chain.types import Mined, TxRequest
from muster.settings.schema import ChainSettings
from testbed.chain.anvil import Anvil
from testbed.chain.balancer import Balancer

GWEI = 10**9
Start = Callable[..., Anvil]


def payment(to: Signer, wei: int = 1) -> TxRequest:
    return TxRequest(to.address, b"", f"pay {wei}", wei)


def settings_of(anvil: Anvil | Balancer, **options: Any) -> ChainSettings:
    return ChainSettings.model_validate({"rpc_url": anvil.url, "poll_seconds": 0.05, **options})


@asynccontextmanager
async def opened(anvil: Anvil | Balancer, signer: Signer, folder: Path, **options: Any) -> AsyncIterator[TxSender]:
    """Yield a sender on an Anvil."""
    settings = settings_of(anvil, **options)
    async with connected(settings) as web3:
        sender = await TxSender.open(web3, signer, folder, settings)
        try:
            yield sender
        finally:
            sender.close()


def pooled(anvil: Anvil, count: int) -> Callable[[], bool]:
    return lambda: int(anvil.request("txpool_status")["pending"], 16) == count


@asynccontextmanager
async def background(work: Coroutine[Any, Any, Mined]) -> AsyncIterator[asyncio.Task[Mined]]:
    """Yield a send that is under way while the test does something to the chain."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def balance(anvil: Anvil, signer: Signer) -> int:
    return int(anvil.request("eth_getBalance", signer.address, "latest"), 16)
