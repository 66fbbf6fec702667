"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed.chain.anvil import Anvil
from testbed.chain.contracts import deploy_on
from testbed.machine import Machine, funded_run, furnished
from testbed.servers.s3 import Endpoint

if TYPE_CHECKING:
    from testbed.runs.world import World


@pytest.fixture(scope="module")
def own_anvil() -> Iterator[Anvil]:
    """One whose clock and state are a module's own."""
    with Anvil() as running:
        yield running


@pytest.fixture(scope="module")
def s3(request: pytest.FixtureRequest, database_kind: str) -> Endpoint | None:
    """Where orchestrators keep files: None for a folder, beside SQLite; beside PostgreSQL a real S3 server, with a
    bucket of the module's own."""
    return request.getfixturevalue("moto_server").new_bucket() if database_kind == "postgresql" else None


@pytest.fixture(scope="module")
def machine(own_anvil: Anvil, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return furnished(own_anvil, tmp_path_factory.mktemp("machine"))


@pytest.fixture(scope="module")
def run(machine: Machine) -> int:
    return funded_run(machine)


@pytest.fixture
def world(start_anvil: Callable[..., Anvil], built_contracts: None, tmp_path: Path) -> Iterator[World]:
    from testbed.runs.world import opened  # which imports torch

    with opened(deploy_on(start_anvil(), tmp_path), tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def shared_world(own_anvil: Anvil, built_contracts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world in which the tests of a module follow each other."""
    from testbed.runs.world import opened  # which imports torch

    folder = tmp_path_factory.mktemp("world")
    with opened(deploy_on(own_anvil, folder), folder) as made:
        yield made
