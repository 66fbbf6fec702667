"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from machine import Machine, funded_run, furnished

from muster.chain.anvil import Anvil


@pytest.fixture(scope="module")
def own_anvil() -> Iterator[Anvil]:
    """One whose clock and state are a module's own."""
    with Anvil.start() as running:
        yield running


@pytest.fixture(scope="module")
def machine(own_anvil: Anvil, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return furnished(own_anvil, tmp_path_factory.mktemp("machine"))


@pytest.fixture(scope="module")
def run(machine: Machine) -> int:
    return funded_run(machine)
