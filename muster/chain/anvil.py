"""A local Anvil: its binary, its command line, and `LocalChain`, its control.

Used by the swarm, and for development against a chain without a network. `testbed.chain.anvil` starts one.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import platform
import shutil
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx2

from muster.constants import CHAIN_ANVIL, TOKEN
from muster.errors import ConfigError, UnreachableError
from muster.runtime.files import write_atomically
from muster.runtime.tls import http_client

if TYPE_CHECKING:
    from muster.chain.connection import Web3

KEPT_STATES: Final = 32
"""Blocks that a lasting local chain can undo. Each state holds the hashes of all blocks, 280 bytes a block: a day of
blocks of a second takes 0.8 GB."""

SAVE_SECONDS: Final = 60.0
"""Longest time that saving a chain's state takes: it has 2 kB for every block."""

NEVER_SECONDS: Final = 10**9
"""Anvil itself saves at its end only: it overwrites the file in place, and a kill would leave a part of it."""

_ARCHITECTURES: Final = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def find_anvil() -> Path:
    """Return the path of the Anvil executable: the npm package's of this checkout or folder, else the one on PATH.

    npm's `.bin/anvil` is a Node script around it that would be one more process to start and end.
    """
    system = platform.system().lower()
    architecture = _ARCHITECTURES.get(platform.machine().lower(), platform.machine().lower())
    inside = Path("node_modules/@foundry-rs") / f"anvil-{system}-{architecture}" / "bin" / "anvil"
    for folder in (Path(__file__).resolve().parents[2], Path.cwd(), *Path.cwd().parents):
        if os.access(folder / inside, os.X_OK):
            return folder / inside
    on_path = shutil.which("anvil")
    if on_path is None:
        raise ConfigError("anvil is not installed", hint="make setup")
    return Path(on_path)


def anvil_command(
    port: int,
    *,
    block_time: float | None = None,
    chain_id: int = CHAIN_ANVIL,
    states: Path | None = None,
    history: int | None = None,
    saved: Path | None = None,
) -> list[str]:
    """Return the command line of an Anvil on a port.

    Without `block_time` every transaction is mined at once. Another `chain_id` rehearses another chain. `states`:
    folder for the states of older blocks, which Anvil otherwise leaves in the home folder when it is killed.
    `history`: number of older blocks whose states are kept, in memory; None keeps thousands, on disk. `saved`: file
    that the chain resumes from, if it exists, and is saved to at its end.
    """
    command = [str(find_anvil()), "--host", "127.0.0.1", "--port", str(port), "--chain-id", str(chain_id), "--quiet"]
    if states is not None:
        command += ["--cache-path", str(states)]
    if history is not None:
        command += ["--prune-history", str(history)]
    if saved is not None:
        command += ["--state", str(saved), "--state-interval", str(NEVER_SECONDS)]
    return command if block_time is None else [*command, "--block-time", f"{block_time:g}"]


class LocalChain:
    """Control of a local chain: its clock, its ether, its state, its newest blocks. Make it with `open`."""

    def __init__(self, web3: Web3) -> None:
        self.web3 = web3
        self.request = web3.provider.request

    @classmethod
    async def open(cls, web3: Web3) -> LocalChain:
        """Return the local chain behind a connection. Raises ConfigError on any chain that is not Anvil's."""
        chain_id = await web3.eth.chain_id
        if chain_id != CHAIN_ANVIL:
            raise ConfigError(f"chain {chain_id} is no local chain", hint=f"this works on chain {CHAIN_ANVIL} only")
        return cls(web3)

    async def now(self) -> int:
        """Return the timestamp of the latest block."""
        return int((await self.request("eth_getBlockByNumber", "latest", False))["timestamp"], 16)

    async def mine(self, blocks: int = 1) -> None:
        await self.request("anvil_mine", hex(blocks))

    async def advance(self, seconds: int) -> int:
        """Move the clock forward, mine a block there and return its timestamp."""
        await self.request("evm_increaseTime", hex(seconds))
        await self.mine()
        return await self.now()

    async def advance_to(self, timestamp: int) -> int:
        """Mine a block at `timestamp`, which must lie after the latest block; later blocks follow from there."""
        await self.request("evm_setNextBlockTimestamp", hex(timestamp))
        await self.mine()
        return await self.now()

    async def fund(self, addresses: Iterable[str], wei: int = 100 * TOKEN) -> None:
        """Give each of them `wei` for gas."""
        await self.web3.provider.batch([("anvil_setBalance", [address, hex(wei)]) for address in addresses])

    async def save(self, path: Path) -> None:
        """Write the chain's state to the file that `anvil_command` resumes from. Raises UnreachableError.

        Anvil writes blocks before accounts: of a block that is mined in between there would be the effects alone.
        """
        body = {"jsonrpc": "2.0", "id": 1, "method": "anvil_dumpState", "params": []}
        try:
            # A state may be larger than what the provider takes from an endpoint.
            url = self.web3.provider.url
            async with self._paused(), http_client(url, SAVE_SECONDS) as client:
                await self.mine()  # after the block that is being mined
                answer = await client.post(url, json=body)
        except httpx2.TransportError as error:
            raise UnreachableError(f"the chain's state cannot be saved: {error}") from error

        def write() -> None:
            write_atomically(path, gzip.decompress(bytes.fromhex(answer.json()["result"][2:])).decode())

        await asyncio.to_thread(write)

    async def reorg(self, depth: int, *, drop: bool) -> None:
        """Replace the newest blocks by as many others, with the same transactions or, with `drop`, without any.

        Raises ChainError where the chain no longer has the state before them.
        """
        async with self._paused():
            head = int(await self.request("eth_blockNumber"), 16)
            names = [hex(number) for number in range(head, max(head - depth, 0), -1)]
            blocks = await self.web3.provider.batch([("eth_getBlockByNumber", [name, False]) for name in names])
            hashes = {one: depth - 1 - at for at, block in enumerate(blocks) for one in block["transactions"]}
            raws = await self.web3.provider.batch([("eth_getRawTransactionByHash", [one]) for one in hashes])
            pairs = [] if drop else [[raw, at] for raw, at in zip(raws, hashes.values(), strict=True)]
            await self.request("anvil_reorg", depth, pairs)

    @asynccontextmanager
    async def _paused(self) -> AsyncIterator[None]:
        """Stop the clock that mines blocks, where one does."""
        seconds = await self.request("anvil_getIntervalMining")
        if seconds is None:
            yield
            return
        await self.request("evm_setIntervalMining", 0)
        try:
            yield
        finally:
            await self.request("evm_setIntervalMining", seconds)
