"""Fixtures that every test may use: a real Anvil, the contracts deployed on it, keys with money for gas.

`anvil` and `deployment` live as long as the test session and are shared: create a run of your own, and expect that the
chain's clock runs ahead of the wall clock, because tests move it. A test that needs other mining or an empty chain
starts its own with `start_anvil`.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from muster.chain.anvil import Anvil
from muster.chain.deploy import deploy
from muster.chain.keys import Signer
from muster.chain.types import AddressBook
from muster.settings import ChainSettings

if TYPE_CHECKING:
    from tests.adversaries.workshop import Workshop

settings.register_profile("muster", deadline=None)  # how fast the machine is today is nothing that a test asserts
settings.load_profile("muster")

ROOT = Path(__file__).resolve().parent.parent
ETHER = 10**18


@dataclass(frozen=True)
class Deployment:
    """The contracts on an Anvil. `settings` lead a `Chain.connect` there."""

    anvil: Anvil
    settings: ChainSettings
    book: AddressBook


@pytest.fixture(scope="session")
def anvil() -> Iterator[Anvil]:
    """An Anvil that mines every transaction at once."""
    with Anvil.start() as running:
        yield running


@pytest.fixture
def start_anvil() -> Iterator[Callable[..., Anvil]]:
    """Starts Anvils of a test's own: `start_anvil(block_time=1)`, `start_anvil(mining=False)`. Ended with the test."""
    started: list[Anvil] = []

    def start(**options: object) -> Anvil:
        started.append(Anvil.start(**options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for running in started:
        running.stop()


@pytest.fixture(scope="session")
def built_contracts() -> None:
    """The contracts are compiled; takes no time when they are up to date."""
    subprocess.run([sys.executable, ROOT / "scripts" / "build_contracts.py"], check=True, timeout=300)


@pytest.fixture(scope="session")
def deployment(anvil: Anvil, built_contracts: None, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """All contracts on `anvil`."""
    return deploy_on(anvil, tmp_path_factory.mktemp("chain"))


@pytest.fixture
def funded(anvil: Anvil) -> Callable[[int], list[Signer]]:
    """`funded(n)`: n fresh keys with 100 ETH each on `anvil`."""
    return lambda count: funded_on(anvil, count)


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


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    """The demo's trained model and a running engine. Who uses the engine loads the weights it wants first."""
    from tests.adversaries.workshop import open_workshop

    with open_workshop(tmp_path_factory.mktemp("workshop")) as shop:
        yield shop
