"""A local Anvil: its binary, its command line, and `LocalChain`, which moves its clock and gives ether.

Used by the swarm, and for development against a chain without a network. `testbed.chain.anvil` starts one.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from muster.constants import CHAIN_ANVIL, TOKEN
from muster.errors import ConfigError

if TYPE_CHECKING:
    from muster.chain.provider import Web3

SAVE_SECONDS: Final = 300
"""Between two times that a chain which keeps its state writes it; it does so at its end as well."""

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
    latest_only: bool = False,
    saved: Path | None = None,
) -> list[str]:
    """Return the command line of an Anvil on a port.

    Without `block_time` every transaction is mined at once. Another `chain_id` rehearses another chain. `states`:
    folder for the states of older blocks, which Anvil otherwise leaves in the home folder when it is killed.
    `latest_only`: keep the newest block's state alone. Every state holds the hashes of all blocks, so keeping a number
    of states takes more memory with every block. `saved`: file that the chain resumes from, if it exists, and is saved
    to.
    """
    command = [str(find_anvil()), "--host", "127.0.0.1", "--port", str(port), "--chain-id", str(chain_id), "--quiet"]
    if states is not None:
        command += ["--cache-path", str(states)]
    if latest_only:
        command.append("--prune-history")
    if saved is not None:
        command += ["--state", str(saved), "--state-interval", str(SAVE_SECONDS)]
    return command if block_time is None else [*command, "--block-time", f"{block_time:g}"]


class LocalChain:
    """Control of a local chain: move the clock, give ether. Make it with `open`."""

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
        """Mine empty blocks."""
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
