"""A run on a real Anvil with real contracts: owner, trainer, storage key, validators and workers, ready to act.

Made by `RunFixture.build`; tests then open chains with the keys they need. Also the orchestrator as a real process.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from sqlalchemy import Executable, Table, select

from muster.chain.anvil import LocalChain
from muster.chain.client import Chain, event_of
from muster.chain.connection import connected
from muster.chain.keys import Signer, write_secret
from muster.chain.types import AddressBook, TxReceipt
from muster.clients.orchestrator import OrchestratorClient
from muster.constants import HOUR_SECONDS, TOKEN
from muster.contracts import registry, run_terms, runs, token
from muster.contracts.registry import Role
from muster.contracts.run_terms import Keys, RunCreated
from muster.ledger.database import Database
from muster.protocol.draws import chain_preimages, link_of
from muster.protocol.eip712 import Domain, sign_message
from muster.protocol.hashes import hash_bytes, keccak
from muster.protocol.keys import ZERO_ADDRESS
from muster.protocol.messages import Verdict
from muster.settings.schema import ChainSettings
from testbed.chain.anvil import Anvil, free_port
from testbed.chain.contracts import deploy_on
from testbed.http import get, get_json
from testbed.processes import Service, prefixed
from testbed.samples.messages import verdict_of
from testbed.samples.terms import terms_of
from testbed.servers.s3 import Endpoint

LINKS = 4096
"""Hours for which validators have links: tests move the clock by months."""
VALIDATORS = ("v1", "v2", "v3", "v4")


def some_hash(name: str) -> str:
    return "0x" + hashlib.sha256(name.encode()).hexdigest()


async def approve_and_fund(chain: Chain, run: int, amount: int) -> None:
    """Add to a run's escrow, with the allowance it needs."""
    if await chain.call(token.allowance(chain.signer.address, chain.addresses.runs)) < amount:
        await chain.send(token.approve(chain.addresses.runs, amount))
    await chain.send(runs.fund(run, await chain.run_hash(run), amount))


@dataclass
class RunFixture:
    """A run and its parties, by name: owner, trainer, storage, v1 to v4, workers, and "operator of" each node."""

    folder: Path
    settings: ChainSettings
    book: AddressBook
    seed: str
    """Keys follow from it: houses on one chain have different ones."""
    run: int = 0
    s3: Endpoint | None = None
    """Where its orchestrators keep files, each under its own folder's name; None: in their folders."""

    @classmethod
    async def build(
        cls, folder: Path, settings: ChainSettings, *, seed: str, workers: tuple[str, ...], **terms: Any
    ) -> Self:
        """Create and fund a run on a deployment, and register validators v1 to v4 and the workers named."""
        run_fixture = cls(folder, settings, AddressBook.load(settings.addresses), seed)
        nodes = dict.fromkeys(VALIDATORS, Role.VALIDATOR) | dict.fromkeys(workers, Role.WORKER)
        people = ["owner", "trainer", "stranger", *nodes, *(f"operator of {name}" for name in nodes)]
        async with run_fixture.local_chain() as dev:
            await dev.fund([run_fixture.key(name).address for name in people])
            async with run_fixture.chain("owner") as chain:
                await chain.send(token.faucet())
                keys = Keys(*(run_fixture.key(name).address for name in ("trainer", "storage")), ZERO_ADDRESS)
                created = await chain.send(run_terms.create_run(terms_of(**terms).to_chain(), keys))
                run_fixture.run = event_of(created, RunCreated).run
                await approve_and_fund(chain, run_fixture.run, 5_000 * TOKEN)
            for name, role in nodes.items():
                await run_fixture.join(name, role)
            await dev.advance(10)
        return run_fixture

    @classmethod
    async def build_on(cls, anvil: Anvil, folder: Path, **options: Any) -> Self:
        """Deploy the contracts on an Anvil of this run's own, and build it."""
        deployment = await asyncio.to_thread(deploy_on, anvil, folder)
        return await cls.build(folder, deployment.settings, **options)

    def key(self, name: str) -> Signer:
        """Return a person's key."""
        return Signer.from_key(self.secret(name))

    def secret(self, name: str) -> str:
        return hashlib.sha256(f"{self.seed}/{name}".encode()).hexdigest()

    @property
    def settings_file(self) -> dict[str, object]:
        """Return the settings that all nodes share: run and chain, by their dotted keys."""
        names = ("rpc_url", "addresses", "poll_seconds")
        return {
            "run": self.run,
            "shardcast.share": False,
            **{f"chain.{name}": getattr(self.settings, name) for name in names},
        }

    @property
    def about(self) -> str:
        """Return what an orchestrator's database says it belongs to."""
        return f"run {self.run} of {self.book.runs} on chain {self.book.chain_id}"

    @property
    def domain(self) -> Domain:
        return Domain(self.book.chain_id, self.book.registry)

    def mine_every(self, seconds: int, anvil: Anvil) -> None:
        """Let the chain mine by the clock from now on; its followers then look five times a block."""
        anvil.request("evm_setIntervalMining", seconds)
        self.settings = self.settings.model_copy(update={"poll_seconds": seconds / 5})

    @asynccontextmanager
    async def local_chain(self) -> AsyncIterator[LocalChain]:
        async with connected(self.settings) as web3:
            yield await LocalChain.open(web3)

    @asynccontextmanager
    async def chain(self, name: str) -> AsyncIterator[Chain]:
        """Yield the chain as this person acts on it."""
        journals = self.folder / "journals" / name.replace(" ", "-")
        async with await Chain.connect(self.settings, self.key(name), journal_folder=journals) as chain:
            yield chain

    async def join(self, name: str, role: Role) -> None:
        """Register the node of this name, with its own operator."""
        async with self.chain(f"operator of {name}") as chain:
            await chain.send(token.faucet())
            await chain.deposit_with_permit(400 * TOKEN)
            tip = self.links(name)[1] if role == Role.VALIDATOR else bytes(32)
            await chain.join(self.key(name), self.run, role, draw_tip=tip)

    def links(self, name: str) -> tuple[list[bytes], bytes]:
        """Return a validator's hash chain, front to back, and its tip."""
        links = chain_preimages(hashlib.sha256(self.secret(name).encode()).digest(), LINKS)
        return links, keccak(links[0])

    async def publish(self, step: int) -> None:
        """Publish a checkpoint."""
        async with self.local_chain() as dev:
            await dev.advance(2)
        async with self.chain("trainer") as chain:
            await chain.send(runs.publish_checkpoint(self.run, step, bytes([step] * 32), bytes(32)))

    async def commit(self, worker: str, index: int, root: str, step: int = 0) -> None:
        """Commit work, and mine the block that draws who is called to it."""
        async with self.chain(worker) as chain:
            anchor = (await chain.checkpoint(self.run, step)).anchor
            await chain.send(runs.commit_work(self.run, step, anchor, index, hash_bytes(root)))
        async with self.local_chain() as dev:
            await dev.mine()

    async def seal(self, chain: Chain, validator: str, hour: int, vouched: bytes = bytes(32)) -> TxReceipt:
        """Seal an hour. `chain`: as the validator acts on it."""
        joined = (await chain.call(registry.node(chain.signer.address))).registered_at // HOUR_SECONDS
        link = link_of(self.links(validator)[0], joined, hour)
        return await chain.send(runs.seal(self.run, hour, vouched, link))

    def verdict(self, validator: str, worker: str, index: int, root: str, file_hash: str, **changes: Any) -> Verdict:
        """Return a signed verdict; accepting unless `changes` say otherwise."""
        work = {"run": self.run, "node": self.key(worker).address, "index": index, "root": root, "file_hash": file_hash}
        made = verdict_of(**{**work, "validator": self.key(validator).address, "inspected": 2, **changes})
        return self.signed(validator, made)

    async def called(self, url: str, worker: str, index: int) -> list[str]:
        """Return the validators in the order in which the orchestrator at `url` calls them to some work."""
        names: dict[str, str] = {self.key(name).address: name for name in VALIDATORS}
        async with self.client(url, None) as client:
            return [names[one] for one in (await client.call(self.run, self.key(worker).address, index)).order]

    def signed(self, validator: str, verdict: Verdict) -> Verdict:
        return sign_message(self.key(validator), self.domain, verdict)

    def client(self, url: str, name: str | None, **options: object) -> OrchestratorClient:
        """Return the orchestrator as this person talks to it."""
        given: dict = {"chain_id": self.book.chain_id, "registry": self.book.registry, "timeout": 60} | options
        return OrchestratorClient(url, self.key(name) if name else None, **given)


class RunService(Service):
    """What answers about a run at a port of this machine, from a database of its own."""

    port: int
    about: str
    """What its database says it belongs to."""

    @property
    def database_url(self) -> str:
        raise NotImplementedError

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def __exit__(self, *_: object) -> None:
        if self.is_running:
            status, said = self.stop()
            assert status == 0, said

    def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body of a plain GET; (0, b"") when no server answers."""
        return get(self.url + path)

    def json(self, path: str) -> Any:
        """Return a JSON answer; {} when no server answers, or the request is refused."""
        return get_json(self.url + path)

    async def rows(self, table: Table, *columns: str) -> list[tuple[Any, ...]]:
        """Return these columns of a table of its database, by key."""
        database = await Database.open(self.database_url, self.about)
        try:
            query = select(*table.c[columns]).order_by(*table.primary_key)
            return [tuple(row) for row in await database.read(lambda connection: connection.execute(query).all())]
        finally:
            await database.close()

    async def rewrite(self, statement: Executable) -> None:
        """Change its database while it does not run."""
        database = await Database.open(self.database_url, self.about)
        try:
            await database.write(lambda connection: connection.execute(statement))
        finally:
            await database.close()


class Orchestrator(RunService):
    """A real orchestrator process over a run_fixture."""

    def __init__(
        self,
        run_fixture: RunFixture,
        folder: Path,
        *,
        port: int = 0,
        environment: Mapping[str, str] = MappingProxyType({}),
        **settings: object,
    ) -> None:
        """Write its settings. settings: beside what it needs; those without a section are of `orchestrator`."""
        s3, self.about = run_fixture.s3, run_fixture.about
        key = folder / "storage.key"
        if not key.exists():
            write_secret(key, run_fixture.secret("storage"))
        self.port = port or free_port()
        needed = {
            "chain.timeout_seconds": 30,
            "keys.raw_key_file": key,
            "shardcast.relays": ["http://127.0.0.1:9"],
            "url": self.url,
            "port": self.port,
            "database_url": f"sqlite:///{folder}/orchestrator.db",
            "storage_url": f"s3://{s3.bucket}/{folder.name}" if s3 else f"file:{folder / 'storage'}",
            "state_dir": folder / "state",
            "batch_groups": 8,
            "demand_batches": 2,
        }
        super().__init__(
            "orchestrator",
            folder,
            run_fixture.settings_file | prefixed("orchestrator", needed | settings),
            environment={**(s3.environment if s3 else {}), **environment},
        )

    @property
    def database_url(self) -> str:
        return str(self.settings["orchestrator.database_url"])


class Explorer(RunService):
    """A real explorer process of what an orchestrator at a URL serves."""

    def __init__(self, run_fixture: RunFixture, folder: Path, orchestrator: str, **settings: object) -> None:
        """Write its settings. settings: beside what it needs; those without a section are of `explorer`."""
        self.run, self.port, self.about = run_fixture.run, free_port(), f"explorer of {run_fixture.about}"
        needed = {"chain.timeout_seconds": 30, "port": self.port, "state_dir": folder / "state"}
        shared = run_fixture.settings_file | {"orchestrator.url": orchestrator}
        super().__init__("explorer", folder, shared | prefixed("explorer", needed | settings))

    @property
    def database(self) -> Path:
        """Return the file of its database."""
        return self.folder / "state" / "explorer.db"

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.database}"

    def summary(self) -> dict[str, Any]:
        """Return the run in one document; {} when no server answers."""
        return self.json(f"/v1/runs/{self.run}/summary")
