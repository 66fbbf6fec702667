"""One real swarm, recorded once in a run of pytest, and played again wherever a test only looks at what came of it.

The chain, orchestrator, origin of weights, engines and replays are real: a worker's commitments are accepted, and a
cheater is accused, tried and convicted. The recording keeps what outlives the orchestrator's database: the chain's
state during and after the trial, and its storage, with what members sent, when it came and who was called. `playing`
loads the chain and starts an orchestrator with an empty database, which restores it from a copy of the storage.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

from pydantic import BaseModel

from muster.chain.types import AddressBook
from muster.clients.orchestrator import OrchestratorClient
from muster.constants import HOUR_SECONDS
from muster.contracts import registry, runs
from muster.contracts.court import CaseOpened
from muster.contracts.registry import Status
from muster.contracts.runs import WorkCommitted
from muster.protocol.messages import StepReport
from muster.settings.schema import ChainSettings
from muster.tasksets.taskset import TaskSet
from testbed.chain.anvil import Anvil
from testbed.chain.contracts import deploy_on
from testbed.processes import Service, ended
from testbed.runs.run_fixture import VALIDATORS, Orchestrator
from testbed.runs.world import ModelRun, World, furnish_plainly, opened
from testbed.waiting import until
from testbed.weights.servers import Server

HONEST: Final = "w1"
CHEATER: Final = "w2"
*JUDGES, JUROR = VALIDATORS
SEED: Final = "recorded"
COMMITMENTS: Final = 2
"""Of the honest worker, at least."""
BEFORE, AFTER = "before.state", "after.state"
"""The chain while the cheater is tried, and once it is convicted."""
LOG, STORAGE, RUN_FOLDER, PUBLISHED, ADDRESSES = "log.json", "storage", "run", "published", "addresses.json"


class Log(BaseModel):
    """Which run it is, and what its trainer reported."""

    run: int
    reports: list[StepReport]


@dataclass(frozen=True)
class Recording:
    """The folder of a recorded swarm."""

    folder: Path
    log: Log

    @classmethod
    def read(cls, folder: Path) -> Self:
        return cls(folder, Log.model_validate_json((folder / LOG).read_text()))


# --- Recording


def record(folder: Path) -> None:
    """Let a swarm work until its cheater is convicted, and keep the recording in a new folder."""
    folder.mkdir(parents=True)
    with TemporaryDirectory(prefix="swarm-") as short, Anvil() as anvil:  # engines have sockets in it
        place = Path(short)
        options = {"workers": (HONEST, CHEATER), "seed": SEED, "demand_batches": 1, "furnish": _furnish_readably}
        with opened(deploy_on(anvil, place), place, **options) as world:
            asyncio.run(_work_until_convicted(world, anvil, folder))
        for name in (RUN_FOLDER, PUBLISHED):
            shutil.copytree(place / name, folder / name)
        shutil.copytree(place / "orchestrator" / STORAGE, folder / STORAGE)
        shutil.copy(place / ADDRESSES, folder)


def _furnish_readably(folder: Path) -> TaskSet:
    """Write model and tasks, with the tokenizer by which the page shows rows."""
    task_set = furnish_plainly(folder)
    shutil.copytree(folder / "model", folder / RUN_FOLDER / "tokenizer", ignore=shutil.ignore_patterns("*.safetensors"))
    return task_set


async def _work_until_convicted(world: World, anvil: Anvil, folder: Path) -> None:
    validators = [world.node("validator", name) for name in JUDGES]
    juror = world.node("validator", JUROR, "validator.voted", **{"validator.stagger_seconds": 60})
    honest, cheater = world.node("worker", HONEST), world.node("adversary", CHEATER)
    with ended(honest, cheater, juror, *validators):
        # 1. Honest work is accepted, and a step is made of it.
        for process in (honest, juror, *validators):
            process.start()
        await until(lambda: _is_accepted(world, honest), "the honest work is accepted")
        await asyncio.to_thread(honest.stop)
        report = await _trained_on_it(world)
        # 2. A cheater is accused of what it committed to first. It is held, so that it commits to no more.
        cheater.start()
        await until(lambda: _happened(world, WorkCommitted, CHEATER), "the cheater commits")
        cheater.process.send_signal(signal.SIGSTOP)
        await until(lambda: _happened(world, CaseOpened, CHEATER), "the cheater is accused")
        await asyncio.to_thread(_save, anvil, folder / BEFORE)
        # 3. It is convicted, although a juror dies between committing its vote and revealing it.
        await until(lambda: _is_jailed(world, juror), "the cheater is convicted")
        assert (juror.folder / "failpoints" / "validator.voted").exists(), "it died between vote and reveal"
        cheater.process.send_signal(signal.SIGCONT)
        status, said = await asyncio.to_thread(cheater.end)
        assert (status, "it was convicted, and takes no more work" in said) == (3, True), said
        # 4. A quorum seals the hour.
        hour = await _end_the_hour(world)
        await until(lambda: _is_sealed(world, hour), "a quorum seals the hour")
    log = Log(run=world.run_fixture.run, reports=[report])
    (folder / LOG).write_text(log.model_dump_json())
    await asyncio.to_thread(_save, anvil, folder / AFTER)


def _save(anvil: Anvil, path: Path) -> None:
    path.write_text(anvil.request("anvil_dumpState"))


async def _is_accepted(world: World, honest: Service) -> bool:
    assert honest.is_running, honest.said
    async with world.run_fixture.client(world.orchestrator.url, None) as client:
        report = await client.node(world.run_fixture.key(HONEST).address)
    return report.accepted >= COMMITMENTS


async def _trained_on_it(world: World) -> StepReport:
    """Publish the next step, as the trainer does, and report that it was made of the first accepted file."""
    run = world.run_fixture.run
    await world.run_fixture.publish_model(1)
    async with world.run_fixture.client(world.orchestrator.url, "trainer") as client:
        given, _ = await client.verdicts(run, node=world.run_fixture.key(HONEST).address)
        file_hash = next(verdict.file_hash for verdict, _ in given if verdict.accepted)
        report = StepReport(run=run, step=1, metrics={"reward": 0.5}, batch=[file_hash])
        await client.post_step(report)
    return report


async def _happened(world: World, kind: type, name: str) -> bool:
    node = world.run_fixture.key(name).address
    return any(event.node == node for event in await world.events(kind))


async def _is_jailed(world: World, juror: Service) -> bool:
    """Return whether the cheater is jailed. The juror is started again when it has died, as a supervisor would."""
    if not juror.is_running:
        assert juror.process.returncode == -signal.SIGKILL, juror.said
        juror.start()
    async with world.run_fixture.chain("stranger") as chain:
        return (await chain.call(registry.node(world.run_fixture.key(CHEATER).address))).status == Status.JAILED


async def _end_the_hour(world: World) -> int:
    """Move the clock to the end of the hour in which the honest worker committed last. Return that hour."""
    async with world.run_fixture.chain("stranger") as chain:
        hour = (await chain.call(runs.work(world.run_fixture.key(HONEST).address))).last_hour
    async with world.run_fixture.local_chain() as dev:
        if await dev.now() < (hour + 1) * HOUR_SECONDS:
            await dev.advance_to((hour + 1) * HOUR_SECONDS)
    return hour


async def _is_sealed(world: World, hour: int) -> bool:
    async with world.run_fixture.chain("stranger") as chain:
        return await chain.call(runs.sealed_through(world.run_fixture.run)) >= hour


# --- Playing


@dataclass
class Played(World):
    """The recorded swarm behind an orchestrator of a test's own. Its chain goes on, and every key is at hand."""

    recording: Recording
    anvil: Anvil

    def convict(self) -> None:
        """Let the trial end as it did, and blocks come by the clock from then on."""
        self.anvil.request("anvil_loadState", (self.recording.folder / AFTER).read_text())
        self.run_fixture.mine_every(1, self.anvil)

    def client(self, name: str | None) -> OrchestratorClient:
        return self.run_fixture.client(self.orchestrator.url, name)


@contextmanager
def playing(recording: Recording, folder: Path, **settings: object) -> Iterator[Played]:
    """Yield the swarm as it was while its cheater was tried. settings: of the orchestrator."""
    folder.mkdir(parents=True, exist_ok=True)
    addresses, run = recording.folder / ADDRESSES, recording.log.run
    with Anvil() as anvil:
        anvil.request("anvil_loadState", (recording.folder / BEFORE).read_text())
        chain = ChainSettings(rpc_url=anvil.url, addresses=addresses, poll_seconds=0.05)
        run_fixture = ModelRun(folder, chain, AddressBook.load(addresses), SEED, run)
        with Server(folder / "origin", run=run, role="origin", dir=recording.folder / PUBLISHED) as origin:
            offered = {"run_folder": recording.folder / RUN_FOLDER, "shardcast.relays": [origin.url]}
            shutil.copytree(recording.folder / STORAGE, folder / "orchestrator" / STORAGE)
            with Orchestrator(run_fixture, folder / "orchestrator", **offered | settings) as orchestrator:
                yield Played(run_fixture, orchestrator, origin, recording, anvil)
