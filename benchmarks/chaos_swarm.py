"""The swarm of a chaos run: real processes behind lines that can fail, the faults, and the truth at the end.

Anvil, contracts, orchestrator, origin, relay, explorer, and members without a model (`chaos_member`). Every member
reaches chain and orchestrator through a separate endpoint (`testbed.chain.balancer`) and a separate line
(`testbed.faulty_line`). A process that ends by itself is started again, as a supervisor would, and recorded as a crash
unless it says that something was out of reach.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.chaos_checker import CRASHED
from benchmarks.chaos_history import Event, History, read_history
from benchmarks.chaos_member import links_of
from benchmarks.chaos_plan import CHAIN, OF_SERVERS, ORCHESTRATOR
from muster.chain.anvil import LocalChain, anvil_command
from muster.chain.client import Chain
from muster.chain.keys import write_secret
from muster.chain.provider import BoundedProvider
from muster.constants import HOUR_SECONDS, TOKEN
from muster.contracts import registry, token
from muster.contracts.registry import Role
from muster.errors import MusterError
from muster.protocol.hashes import keccak
from testbed.chain.anvil import Anvil, free_port
from testbed.chain.balancer import Balancer, never
from testbed.faulty_line import FaultyLine
from testbed.http import connecting
from testbed.paths import ROOT
from testbed.processes import Process, Service
from testbed.runs.run_fixture import VALIDATORS, Explorer, Orchestrator, RunFixture
from testbed.servers.postgres import PostgresServer
from testbed.servers.s3 import Endpoint
from testbed.waiting import BOUND, until
from testbed.weights.servers import Server

WORKERS: Final = ("w1", "w2")
JUDGES: Final = 2
"""Validators that work; two more are registered, so that the run may begin."""
TRAINER: Final = "trainer"
ORIGIN, RELAY, STORE, EXPLORER = "origin", "relay", "store", "explorer"
BLOCK_SECONDS: Final = 1
KEPT_STATES: Final = 64
"""Blocks whose states Anvil keeps."""
ESCROW: Final = 5_000 * TOKEN
TERMS: Final[Mapping[str, Any]] = {"pay": TOKEN // 1_000, "seal_quorum": 2}
"""Small pay: a worker's stake covers all that it commits in an hour of chaos."""
CLAIM_HOURS: Final = 1
DISK: Final = "64m"
MAKE_SECONDS: Final = 0.5
CHAIN_SECONDS: Final = 10
"""A member's chain.timeout_seconds: after a reorg it waits so long for a transaction whose predecessors are gone."""
KEPT_HOURS: Final = 0.1
"""For which the trainer keeps older steps: in an hour of soak the folder is as full as it gets."""
LOOK_SECONDS: Final = 0.2
RESTART_SECONDS: Final = 1.0
EXPECTED: Final = frozenset({0, 5})
"""Exit statuses that a supervisor answers with a restart: something was out of reach."""
SAID: Final = 600
"""Letters of a process's last words."""


class ChaosRun(RunFixture):
    """A run whose validators' links follow from their keys."""

    def links(self, name: str) -> tuple[list[bytes], bytes]:
        links = links_of(self.secret(name))
        return links, keccak(links[0])


class OneAttempt(BoundedProvider):
    """Passes on what one attempt brings: who asks tries again by itself."""

    async def exchange(self, body: object, attempts: int = 1) -> Any:
        return await super().exchange(body, 1)


class ChaosEndpoint(Balancer):
    """The chain as one process sees it. While the chain is down, connections end without an answer."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(MusterError, ConnectionError, asyncio.IncompleteReadError):
                await super().serve(reader, writer)
        finally:
            writer.close()

    def mend(self) -> None:
        self.lags = self.fails = self.lies = self.loses = never


@dataclass(frozen=True)
class Place:
    """Where the orchestrator of a run keeps what it has, as the machine and the seed have it, and for how long."""

    folder: Path
    """Of the run."""
    disk: Path | None = None
    """A small file system for database and files."""
    postgres: PostgresServer | None = None
    s3: Endpoint | None = None
    retention: str = "forever"
    """Chaos moves the clock beyond the deadlines too, and then asks for everything that was acknowledged."""

    def kinds(self) -> list[str]:
        """Return those of OF_SERVERS that can be inflicted."""
        has = {"disk_full": self.disk, "store_out": self.s3, "database_out": self.postgres, "lying_relay": True}
        return [kind for kind in OF_SERVERS if has[kind]]


@dataclass
class Swarm:
    """A running swarm. Make it with `running`."""

    place: Place
    anvil: Anvil
    run: ChaosRun
    make_seconds: float
    members: dict[str, Service] = field(default_factory=dict)
    orchestrator: Orchestrator = field(init=False)
    explorer: Explorer = field(init=False)
    servers: dict[str, Process] = field(default_factory=dict)
    """Orchestrator, origin, relay and explorer."""
    lines: dict[str, FaultyLine] = field(default_factory=dict)
    """To the orchestrator by member, to the relay and to the store."""
    endpoints: dict[str, ChaosEndpoint] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    """Processes that are down on purpose."""
    hours: int = 0
    """By which the chain's clock has been moved on."""
    wallets: dict[str, int] = field(default_factory=dict)
    """Of workers' operators at the start, by worker."""
    history: History = field(init=False)
    provider: OneAttempt = field(init=False)
    """What all endpoints ask."""

    @property
    def processes(self) -> dict[str, Process]:
        return {**self.servers, **self.members}

    @property
    def nodes(self) -> dict[str, str]:
        """Return the workers' addresses by name."""
        return {name: self.run.key(name).address for name in self.members if name.startswith("w")}

    async def connect(self, name: str, stack: AsyncExitStack, port: int | None = None) -> None:
        """Make a process's endpoint of the chain and, where a port is given, its line to the orchestrator."""
        endpoint = self.endpoints[name] = ChaosEndpoint(self.provider)
        endpoint.url = await stack.enter_async_context(connecting(endpoint.serve))
        if port is not None:
            line = self.lines[name] = FaultyLine(port)
            await stack.enter_async_context(line.carrying())

    @asynccontextmanager
    async def clock(self) -> AsyncIterator[LocalChain]:
        async with self.run.local_chain() as local:
            yield local

    # The chain

    @property
    def state(self) -> Path:
        """Return the file that the chain resumes from."""
        return self.place.folder / "chain.json"

    async def resume_chain(self) -> None:
        """Start the chain from its state. Its clock is where it would be, and it mines by it."""
        command = anvil_command(self.anvil.port, saved=self.state, history=KEPT_STATES)
        self.anvil.command = [*command, "--no-mining"]
        await asyncio.to_thread(self.anvil.start)
        async with self.clock() as local:
            await local.request("evm_increaseTime", hex(self.hours * HOUR_SECONDS))
            await local.request("evm_setIntervalMining", BLOCK_SECONDS)
        self.down.discard(CHAIN)

    async def pass_hours(self, hours: int) -> None:
        """Move the chain's clock on; the next block is there."""
        async with self.clock() as local:
            await local.request("evm_increaseTime", hex(hours * HOUR_SECONDS))
        self.hours += hours

    # Processes

    async def supervise(self) -> None:
        """Start again what ended by itself, and record why."""
        while True:
            for name, process in self.processes.items():
                if name in self.down or process.is_running:
                    continue
                status = process.process.returncode
                if status not in EXPECTED:
                    self.history.note(CRASHED, process=name, status=status, said=process.said[-SAID:])
                else:
                    self.history.note("restarted", process=name, status=status)
                await asyncio.sleep(RESTART_SECONDS)
                if name not in self.down:
                    await asyncio.to_thread(process.spawn)
            await asyncio.sleep(LOOK_SECONDS)

    async def stop_members(self) -> None:
        """Let the members end in their time."""
        self.down.update(self.members)
        for member in self.members.values():
            await asyncio.to_thread(member.stop)

    # Members that come and go

    async def add_worker(self, name: str, stack: AsyncExitStack) -> None:
        """Let a new worker join, and start it."""
        async with self.clock() as local:
            await local.fund([self.run.key(one).address for one in (name, f"operator of {name}")])
        await self.run.join(name, Role.WORKER)
        await self.connect(name, stack)
        self.members[name] = _member(self, name).spawn()

    async def retire(self, name: str) -> None:
        """Let a worker's operator retire it. Its process ends by itself."""
        async with self.run.chain(f"operator of {name}") as chain:
            await chain.send(registry.retire(self.run.key(name).address))
        self.down.add(name)

    # What it did

    async def held_by_operators(self, chain: Chain) -> dict[str, int]:
        owners = {name: self.run.key(f"operator of {name}").address for name in self.nodes}
        return {name: await chain.call(token.balance_of(owner)) for name, owner in owners.items()}

    def recorded(self) -> list[Event]:
        """Return the history of all members, and of the faults."""
        return read_history(self.place.folder.glob("*/history.jsonl"))


# --- Starting and ending it


@asynccontextmanager
async def running(place: Place, seed: int, make_seconds: float = MAKE_SECONDS) -> AsyncIterator[Swarm]:
    """Yield a swarm whose members work. make_seconds: between two files of a worker."""
    async with AsyncExitStack() as stack:
        # 1. The chain and the run. From here on it mines by the clock, and resumes from its state.
        anvil = Anvil(history=KEPT_STATES)
        await asyncio.to_thread(anvil.start)
        stack.push_async_callback(asyncio.to_thread, anvil.__exit__)
        run = await ChaosRun.build_on(anvil, place.folder, seed=f"chaos {seed}", workers=WORKERS, **TERMS)
        await run.publish(0)
        anvil.request("evm_setIntervalMining", BLOCK_SECONDS)
        run.settings = run.settings.model_copy(update={"poll_seconds": 0.3})
        swarm = Swarm(place, anvil, run, make_seconds)
        swarm.history = History(place.folder / "faults" / "history.jsonl", "faults")
        # 2. The servers, and the lines to them.
        swarm.provider = await stack.enter_async_context(OneAttempt(anvil.url, timeout=20))
        members, port = [*WORKERS, *VALIDATORS[:JUDGES], TRAINER], free_port()
        for name in members:
            await swarm.connect(name, stack, port)
        await _add_servers(swarm, stack, port)
        # 3. The members.
        for name in members:
            swarm.members[name] = _member(swarm, name)
        stack.push_async_callback(swarm_end, swarm)
        for process in swarm.servers.values():
            await asyncio.to_thread(process.start)
        for process in swarm.members.values():
            process.spawn()
        async with run.chain("stranger") as chain:
            swarm.wallets = await swarm.held_by_operators(chain)
        await until(lambda: all(member.logged("ready") for member in swarm.members.values()), "the members are ready")
        yield swarm


async def _add_servers(swarm: Swarm, stack: AsyncExitStack, port: int) -> None:
    """Make orchestrator, origin, relay and explorer, not started yet."""
    place, run = swarm.place, swarm.run
    await swarm.connect(ORCHESTRATOR, stack)
    settings: dict[str, Any] = {
        "retention": place.retention,
        "chain.rpc_url": swarm.endpoints[ORCHESTRATOR].url,
        "hosts": [line.url.removeprefix("http://") for line in swarm.lines.values()],
    }
    if place.disk is not None:
        settings |= {
            "database_url": f"sqlite:///{place.disk}/orchestrator.db",
            "storage_url": f"file:{place.disk / 'storage'}",
            "state_dir": place.disk / "state",
        }
    if place.postgres is not None:
        settings["database_url"] = place.postgres.create_database()
    if place.s3 is not None:
        line = swarm.lines[STORE] = FaultyLine(int(place.s3.url.rpartition(":")[2]))
        await stack.enter_async_context(line.carrying())
        run.s3 = replace(place.s3.new_bucket(), url=line.url)
    (folder := place.folder / ORCHESTRATOR).mkdir()
    swarm.orchestrator = Orchestrator(run, folder, port=port, **settings)
    origin = Server(place.folder / ORIGIN, port=free_port(), run=run.run, role="origin", dir=place.folder / "published")
    (place.folder / "published").mkdir()
    relay = Server(
        place.folder / RELAY,
        port=free_port(),
        run=run.run,
        role="relay",
        dir=place.folder / "relayed",
        upstreams=[origin.url],
    )
    swarm.explorer = Explorer(run, place.folder / EXPLORER, swarm.orchestrator.url)
    swarm.servers = {ORCHESTRATOR: swarm.orchestrator, ORIGIN: origin, RELAY: relay, EXPLORER: swarm.explorer}
    line = swarm.lines[RELAY] = FaultyLine(relay.port)
    await stack.enter_async_context(line.carrying())


def _member(swarm: Swarm, name: str) -> Service:
    """Return a member's process, not started yet."""
    folder = swarm.place.folder / name
    folder.mkdir()
    write_secret(folder / "key", swarm.run.secret(name))
    origin = swarm.servers[ORIGIN]
    assert isinstance(origin, Server)
    settings = {
        **swarm.run.settings_file,
        "name": name,
        "chain.rpc_url": swarm.endpoints[name].url,
        "chain.timeout_seconds": CHAIN_SECONDS,
        "keys.raw_key_file": folder / "key",
        "orchestrator.url": swarm.lines[name].url if name in swarm.lines else swarm.orchestrator.url,
        "shardcast.relays": [swarm.lines[RELAY].url, origin.url],
        "shardcast.dir": swarm.place.folder / "published",
        "shardcast.kept_hours": KEPT_HOURS,
        "worker.auto_claim_hours": CLAIM_HOURS,
        "worker.state_dir": folder / "state",
        "validator.state_dir": folder / "state",
        "trainer.state_dir": folder / "state",
        "trainer.poll_seconds": 1,
    }
    environment = {"PYTHONPATH": str(ROOT), "MAKE_SECONDS": str(swarm.make_seconds)}
    return Service("benchmarks.chaos_member", folder, settings, environment=environment)


async def swarm_end(swarm: Swarm) -> None:
    """End what runs, also what is stopped."""
    swarm.down.update(swarm.processes)
    for process in [*swarm.members.values(), *reversed(swarm.servers.values())]:
        if process.is_running:
            process.process.send_signal(signal.SIGCONT)
            await asyncio.to_thread(process.kill)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Yield a file system of DISK in a new folder; only root can make one."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", folder], check=True, timeout=BOUND)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True, timeout=BOUND)


def can_mount(folder: Path) -> bool:
    """Return whether this user can make a file system here."""
    try:
        with small_disk(folder):
            return True
    except (OSError, subprocess.SubprocessError):
        return False
    finally:
        folder.rmdir()
