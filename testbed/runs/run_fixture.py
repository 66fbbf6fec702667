"""A run on a real Anvil with real contracts: owner, trainer, storage key, validators and workers, ready to act.

Made by `RunFixture.build`; tests then open chains with the keys they need. Also the orchestrator as a real process.
"""

from __future__ import annotations

import hashlib
import os
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eth_utils.crypto import keccak

from muster.chain.anvil import LocalChain
from muster.chain.client import Chain, event_of
from muster.chain.deploy import deploy
from muster.chain.keys import Signer, write_secret
from muster.chain.provider import connected
from muster.chain.types import AddressBook
from muster.clients.orchestrator import OrchestratorClient
from muster.contracts import runs, token
from muster.contracts.registry import Role
from muster.contracts.runs import RunCreated
from muster.protocol.draws import chain_preimages
from muster.protocol.eip712 import UNSIGNED, Domain, sign_message
from muster.protocol.hashes import hash_bytes
from muster.protocol.messages import Verdict
from muster.protocol.terms import Terms, WorkClass
from muster.settings.schema import ChainSettings
from testbed.chain.anvil import Anvil, free_port
from testbed.processes import Stoppable
from testbed.servers.s3 import Endpoint, without_aws
from testbed.waiting import BOUND, wait_until

TOKEN = 10**18
LINKS = 64
VALIDATORS = ("v1", "v2", "v3", "v4")


def some_hash(name: str) -> str:
    return "0x" + hashlib.sha256(name.encode()).hexdigest()


def terms_of(trainer: str, storage_key: str, **changes: Any) -> Terms:
    values: dict = {
        "trainer": trainer,
        "storage_key": storage_key,
        "admitter": "0x" + "00" * 20,
        "pay": 2 * TOKEN,
        "worker_stake": 100 * TOKEN,
        "validator_stake": 200 * TOKEN,
        "case_fee": TOKEN,
        "jury_deposit": 8 * TOKEN,
        "slash_bps": 5_000,
        "bounty_bps": 2_000,
        "group_size": 2,
        "groups_per_commitment": 4,
        "commitments_per_hour": 255,
        "async_level": 2,
        "accepts_required": 2,
        "seal_quorum": 2,
        "min_step_interval": 1,
        "commit_phase": 3600,
        "reveal_phase": 3600,
        "jury_seniority": 1,
        "temperature_micro": 1_000_000,
        "max_prompt_tokens": 64,
        "max_completion_tokens": 32,
        "task_count": 100,
        "task_root": b"\x01" * 32,
        "model_hash": b"\x02" * 32,
        "tokenizer_hash": b"\x03" * 32,
        "profile": b"\x04" * 32,
        "classes": (WorkClass(10_000, (8, 16)),),
    }
    return Terms(**(values | changes))


async def deploy_on(anvil: Anvil, folder: Path) -> ChainSettings:
    """Deploy the contracts on an Anvil of a test's own; where they are."""
    settings = ChainSettings(rpc_url=anvil.url, addresses=folder / "addresses.json", poll_seconds=0.05)
    deployer = Signer.random()
    async with connected(settings) as web3:
        await (await LocalChain.open(web3)).fund([deployer.address])
    await deploy(settings, deployer)
    return settings


async def approve_and_fund(chain: Chain, run: int, amount: int) -> None:
    """Add to a run's escrow, with the allowance it needs."""
    if await chain.call(token.allowance(chain.signer.address, chain.addresses.runs)) < amount:
        await chain.send(token.approve(chain.addresses.runs, amount))
    await chain.send(runs.fund(run, amount))


@dataclass
class RunFixture:
    """A run and everybody in it, by name: owner, trainer, storage, v1 to v4, workers, and "operator of" each node."""

    folder: Path
    settings: ChainSettings
    book: AddressBook
    seed: str
    """Keys follow from it: houses on one chain have different ones."""
    run: int = 0
    used_links: dict[str, int] = field(default_factory=dict)
    s3: Endpoint | None = None
    """Where its orchestrators keep files, each under its own folder's name; None: in their folders."""

    @classmethod
    async def build(
        cls, folder: Path, settings: ChainSettings, *, seed: str, workers: tuple[str, ...], **terms: Any
    ) -> RunFixture:
        """Create and fund a run on a deployment, and register validators v1 to v4 and the workers named."""
        run_fixture = cls(folder, settings, AddressBook.load(settings.addresses), seed)
        nodes = dict.fromkeys(VALIDATORS, Role.VALIDATOR) | dict.fromkeys(workers, Role.WORKER)
        people = ["owner", "trainer", "stranger", *nodes, *(f"operator of {name}" for name in nodes)]
        async with run_fixture.local_chain() as dev:
            await dev.fund([run_fixture.key(name).address for name in people])
            async with run_fixture.chain("owner") as chain:
                await chain.send(token.faucet())
                made = terms_of(run_fixture.key("trainer").address, run_fixture.key("storage").address, **terms)
                run_fixture.run = event_of(await chain.send(runs.create_run(made.to_chain())), RunCreated).run
                await approve_and_fund(chain, run_fixture.run, 5_000 * TOKEN)
            for name, role in nodes.items():
                await run_fixture.join(name, role)
            await dev.advance(10)
        return run_fixture

    def key(self, name: str) -> Signer:
        """Return a person's key."""
        return Signer.from_key(self.secret(name))

    def secret(self, name: str) -> str:
        return hashlib.sha256(f"{self.seed}/{name}".encode()).hexdigest()

    @property
    def domain(self) -> Domain:
        return Domain(self.book.chain_id, self.book.registry)

    def mine_every_second(self, anvil: Anvil) -> None:
        """Let the chain mine by the clock from now on; whoever follows it then looks five times a block."""
        anvil.request("evm_setIntervalMining", 1)
        self.settings = self.settings.model_copy(update={"poll_seconds": 0.2})

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
        """Register the node of this name, with an operator of its own."""
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
        """Commit work."""
        async with self.chain(worker) as chain:
            anchor = (await chain.checkpoint(self.run, step)).anchor
            await chain.send(runs.commit_work(self.run, step, anchor, index, hash_bytes(root)))

    def verdict(self, validator: str, worker: str, index: int, root: str, file_hash: str, **changes: Any) -> Verdict:
        """Return a signed verdict with the validator's next link; accepting unless `changes` say otherwise."""
        used = self.used_links[validator] = self.used_links.get(validator, -1) + 1
        fields: dict = {
            "run": self.run,
            "step": 0,
            "node": self.key(worker).address,
            "index": index,
            "root": root,
            "file_hash": file_hash,
            "validator": self.key(validator).address,
            "accepted": True,
            "draw_index": used,
            "preimage": "0x" + self.links(validator)[0][used].hex(),
            "inspected": 2,
            "signature": UNSIGNED,
        }
        return self.signed(validator, Verdict(**(fields | changes)))

    def signed(self, validator: str, verdict: Verdict) -> Verdict:
        return sign_message(self.key(validator), self.domain, verdict)

    def client(self, url: str, name: str | None, **options: object) -> OrchestratorClient:
        """Return the orchestrator as this person talks to it."""
        given: dict = {"chain_id": self.book.chain_id, "registry": self.book.registry, "timeout": 60} | options
        return OrchestratorClient(url, self.key(name) if name else None, **given)


class Orchestrator(Stoppable):
    """A real orchestrator process over a run_fixture."""

    def __init__(
        self,
        run_fixture: RunFixture,
        folder: Path,
        *,
        database_url: str = "",
        extra: str = "",
        port: int = 0,
        environment: dict[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = (run_fixture.s3.environment if run_fixture.s3 else {}) | (environment or {})
        self.database_url = database_url or f"sqlite:///{folder}/orchestrator.db"
        storage_url = f"s3://{run_fixture.s3.bucket}/{folder.name}" if run_fixture.s3 else f"file:{folder / 'storage'}"
        secret = folder / "storage.key"
        if not secret.exists():
            write_secret(secret, run_fixture.secret("storage"))
        self.config = folder / "orchestrator.toml"
        self.config.write_text(
            f"""
run = {run_fixture.run}
[chain]
rpc_url = "{run_fixture.settings.rpc_url}"
addresses = "{run_fixture.settings.addresses}"
poll_seconds = {run_fixture.settings.poll_seconds}
timeout_seconds = 30
[keys]
raw_key_file = "{secret}"
[log]
file = "{folder / "log.jsonl"}"
[shardcast]
relays = ["http://127.0.0.1:9"]
[orchestrator]
url = "{self.url}"
port = {self.port}
database_url = "{self.database_url}"
storage_url = "{storage_url}"
state_dir = "{folder / "state"}"
batch_groups = 8
demand_batches = 2
{extra}
"""
        )

    def change(self, old: str, new: str) -> None:
        """Change its settings, for the next start."""
        text = self.config.read_text()
        assert old in text
        self.config.write_text(text.replace(old, new))

    def start(self) -> Orchestrator:
        """Start the process and wait until it is ready."""
        self.spawn()
        assert self.process is not None
        process = self.process
        wait_until(lambda: self.get("/readyz")[0] == 200 or process.poll() is not None, "the orchestrator is ready")
        assert process.poll() is None, f"the orchestrator did not come up: {self.stop()}"
        return self

    def spawn(self) -> Orchestrator:
        """Start the process, without waiting for anything."""
        command = [sys.executable, "-m", "orchestrator", "--config", str(self.config)]
        self.launch(command, self.folder / "said.log", without_aws(dict(os.environ)) | self.environment)
        return self

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a plain GET; (0, b"") when nobody answers."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(self.url + path, timeout=BOUND) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError:
            return 0, b""

    def first_event(self, path: str) -> bytes:
        """Return the first of the server-sent events of a path, whose answer has no end."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self.url + path, timeout=BOUND) as reply:
            return b"".join(iter(reply.readline, b"\n"))
