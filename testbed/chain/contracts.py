"""The contracts on a local chain, and keys with money for gas."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from muster.chain.deploy import deploy
from muster.chain.keys import Signer
from muster.chain.types import AddressBook
from muster.settings.schema import ChainSettings
from testbed.chain.anvil import Anvil

ETHER = 10**18


@dataclass(frozen=True)
class Deployment:
    """The contracts on an Anvil. `settings` lead a `Chain.connect` there."""

    anvil: Anvil
    settings: ChainSettings
    book: AddressBook


def deploy_on(anvil: Anvil, folder: Path, **options: object) -> Deployment:
    """Deploy all contracts on an Anvil, not from within an event loop; `options` are those of ChainSettings."""
    settings = ChainSettings.model_validate(
        {"rpc_url": anvil.url, "addresses": folder / "addresses.json", "poll_seconds": 0.05, **options}
    )
    (deployer,) = funded_on(anvil, 1)
    return Deployment(anvil, settings, asyncio.run(deploy(settings, deployer)))


def funded_on(anvil: Anvil, count: int) -> list[Signer]:
    """Fresh keys with 100 ETH each."""
    signers = [Signer.random() for _ in range(count)]
    for signer in signers:
        anvil.request("anvil_setBalance", signer.address, hex(100 * ETHER))
    return signers
