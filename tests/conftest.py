"""Fixtures that every test may use: a real Anvil, the contracts deployed on it, keys with money for gas.

`anvil` and `deployment` live as long as the test session and are shared: create a run of your own, and expect that the
chain's clock runs ahead of the wall clock, because tests move it. A test that needs other mining or an empty chain
starts its own with `start_anvil`.

`new_database_url` and `database_url` run a test on SQLite and on PostgreSQL, one module's tests after the other. On
PostgreSQL only the modules of ON_POSTGRESQL (testbed/servers/postgres.py) belong to `make test`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from muster.chain.keys import Signer
from testbed.chain.anvil import Anvil
from testbed.chain.contracts import Deployment, deploy_on, funded_on
from testbed.paths import ROOT
from testbed.servers.postgres import ON_POSTGRESQL, PostgresServer
from testbed.servers.s3 import Endpoint, moto, rclone
from testbed.suite import examples, forks, shared_work, steady_loop
from testbed.suite.durations import Durations
from testbed.suite.schedule import arrange, processes, scheduler
from testbed.suite.temporary import TemporaryFolder
from testbed.waiting import BOUND

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling
    from xdist.workermanage import WorkerController

    from testbed.adversaries.lab import AdversaryLab
    from testbed.runs.recorded_swarm import Recording

settings.load_profile(examples.FEW)
# Machines have homes of their own. The component that scores is compiled once for all: it takes a quarter of a minute.
os.environ.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))
forks.install()
steady_loop.install()


TEMPORARY = pytest.StashKey[TemporaryFolder]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give the whole run one temporary folder, and count its CPU seconds."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.stash[TEMPORARY] = TemporaryFolder(config)
    config.pluginmanager.register(Durations(config))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if TEMPORARY in session.config.stash:
        session.config.stash[TEMPORARY].finish(session)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    arrange(items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodeready(node: WorkerController) -> None:
    """Remove what the run's processes share once all of them have ended."""
    node.config.add_cleanup(lambda: shared_work.remove(node.workerinput["testrunuid"]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Give the processes that ran the tests time to end: what pytest-xdist ends leaves its folders behind."""
    config.pluginmanager.getplugin("dsession").nodemanager.EXIT_TIMEOUT = BOUND


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return processes()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return scheduler(config, log)


@pytest.fixture(scope="session")
def anvil() -> Iterator[Anvil]:
    """An Anvil that mines every transaction at once."""
    with Anvil() as running:
        yield running


@pytest.fixture
def start_anvil() -> Iterator[Callable[..., Anvil]]:
    """Starts Anvils of a test's own: `start_anvil(block_time=1)`, `start_anvil(mining=False)`. Ended with the test."""
    started: list[Anvil] = []

    def start(**options: object) -> Anvil:
        started.append(Anvil(**options).start())  # type: ignore[arg-type]
        return started[-1]

    yield start
    for running in started:
        running.stop()


@pytest.fixture(scope="session")
def built_contracts() -> None:
    """The contracts are compiled; takes no time when they are up to date."""
    subprocess.run([sys.executable, ROOT / "scripts" / "build_contracts.py"], check=True, timeout=BOUND)


@pytest.fixture(scope="session")
def deployment(anvil: Anvil, built_contracts: None, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """All contracts on `anvil`."""
    return deploy_on(anvil, tmp_path_factory.mktemp("chain"))


@pytest.fixture
def funded(anvil: Anvil) -> Callable[[int], list[Signer]]:
    """`funded(n)`: n fresh keys with 100 ETH each on `anvil`."""
    return lambda count: funded_on(anvil, count)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The PostgreSQL server that all tests share. Each test gets separate databases."""
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def database_kind(request: pytest.FixtureRequest) -> str:
    """The kind of the orchestrator's database. What asks for it, also through another fixture, runs with either."""
    return request.param


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database_kind" in metafunc.fixturenames:
        module = Path(metafunc.module.__file__).relative_to(ROOT).as_posix()
        marks = [] if module in ON_POSTGRESQL else [pytest.mark.slow]
        kinds = ["sqlite", pytest.param("postgresql", marks=marks)]
        metafunc.parametrize("database_kind", kinds, indirect=True, scope="module")


@pytest.fixture(scope="module")
def new_database_url(
    request: pytest.FixtureRequest, database_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], str]]:
    """`new_database_url()`: the URL of a new, empty database."""
    if database_kind == "sqlite":
        folder = tmp_path_factory.mktemp("databases")
        names = count()
        yield lambda: f"sqlite:///{folder}/{next(names)}/orchestrator.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    made: list[str] = []

    def make() -> str:
        made.append(server.create_database())
        return made[-1]

    yield make
    for url in made:
        server.drop_database(url)


@pytest.fixture
def database_url(new_database_url: Callable[[], str]) -> str:
    """An empty database of a test's own."""
    return new_database_url()


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """An S3 server that is right; `new_bucket()` of it is a test's own."""
    with moto(tmp_path_factory.mktemp("moto")) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def rclone_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """An S3 server that overwrites what it was asked to create, with an empty bucket."""
    with rclone(tmp_path_factory.mktemp("rclone")) as endpoint:
        yield endpoint


@pytest.fixture
def use_s3(monkeypatch: pytest.MonkeyPatch) -> Callable[[Endpoint], str]:
    """`use_s3(endpoint)` points this process's S3 settings at the endpoint and returns the storage URL."""

    def use(endpoint: Endpoint) -> str:
        for name in os.environ:
            if name.startswith("AWS_"):
                monkeypatch.delenv(name)
        for name, value in endpoint.environment.items():
            monkeypatch.setenv(name, value)
        return endpoint.storage_url

    return use


@pytest.fixture(scope="session")
def recording(built_contracts: None, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """What one real swarm left, which a run of pytest has once: `playing` shows it to a test."""
    from testbed.runs.recorded_swarm import Recording, record  # which imports torch

    return Recording.read(shared_work.share(record, tmp_path_factory.mktemp("recording") / "swarm"))


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdversaryLab]:
    """The demo's trained model and a running engine. Who uses the engine loads the weights it wants first."""
    from muster.models import init
    from testbed.adversaries.lab import open_lab

    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(init, "warm_up", shared_work.share_warm_up(init.warm_up))
            shop = stack.enter_context(open_lab(tmp_path_factory.mktemp("lab")))
        yield shop
