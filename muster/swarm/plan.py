"""Which processes a local swarm has, with which settings. Pure: a request in, settings and process specs out.

Every node has its own folder, settings file, key files and log, as it would on a machine of its own. They share
nothing but the addresses of chain, orchestrator and relay.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.constants import CHAIN_ANVIL, TOKEN
from muster.profiles import profile_hash
from muster.swarm.supervisor import ProcessSpec
from muster.terms import Terms, WorkClass
from muster.terms_file import LOCAL_DEFAULTS

ESCROW: Final = 9_000 * TOKEN
"""What the owner puts into the run; a faucet gives 10,000 tokens."""

BLOCK_SECONDS: Final = 1
BUDGETS: Final = (8, 12, 16)
GROUPS_PER_BATCH: Final = 64
PROFILE: Final = "cpu-fp32-projection-v1"

CHILD_ENVIRONMENT: Final = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
}
"""A dozen processes share few cores: a thread each is faster than a pool each."""


@dataclass(frozen=True)
class Ports:
    """Where a swarm listens on 127.0.0.1."""

    chain: int
    orchestrator: int
    origin: int
    relay: int

    def all(self) -> tuple[int, ...]:
        return (self.chain, self.orchestrator, self.origin, self.relay)


@dataclass(frozen=True)
class Request:
    """What a person asks for."""

    folder: Path
    ports: Ports
    steps: int
    seed: int = 0
    workers: int = 2
    cheaters: int = 1
    validators: int = 4


@dataclass(frozen=True)
class NodePlan:
    """A worker or validator of the swarm."""

    name: str
    role: str
    honest: bool = True


@dataclass(frozen=True)
class Layout:
    """Where things lie in a swarm's folder."""

    folder: Path

    @property
    def addresses(self) -> Path:
        return self.folder / "addresses.json"

    @property
    def run_folder(self) -> Path:
        """What every newcomer to the run needs: task set, tokenizer, model configuration."""
        return self.folder / "run"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def tasks(self) -> Path:
        return self.folder / "tasks.jsonl"

    @property
    def shards(self) -> Path:
        return self.folder / "origin"

    def key(self, name: str) -> Path:
        """A raw key, which only Anvil accepts."""
        return self.folder / "keys" / name

    def config(self, name: str) -> Path:
        return self.folder / name / "muster.toml"

    def state(self, name: str) -> Path:
        return self.folder / name / "state"

    def log(self, name: str) -> Path:
        """JSON lines of a process."""
        return self.folder / name / "log.jsonl"

    def output(self, name: str) -> Path:
        """stdout and stderr of a process."""
        return self.folder / name / "output.log"


def nodes(request: Request) -> list[NodePlan]:
    """Validators first: a run takes no work before four of them exist."""
    found = [NodePlan(f"validator-{i + 1}", "validator") for i in range(request.validators)]
    found += [NodePlan(f"worker-{i + 1}", "worker") for i in range(request.workers)]
    many = request.cheaters > 1
    found += [NodePlan(f"cheater-{i + 1}" if many else "cheater", "worker", False) for i in range(request.cheaters)]
    return found


def terms(
    *, trainer: str, storage_key: str, task_count: int, task_root: bytes, model: bytes, tokenizer: bytes
) -> Terms:
    """The terms of a local run: small groups, seconds for case deadlines, a stake that hurts to lose."""
    return Terms(
        **LOCAL_DEFAULTS,
        trainer=trainer,
        storage_key=storage_key,
        task_count=task_count,
        task_root=task_root,
        model_hash=model,
        tokenizer_hash=tokenizer,
        profile=profile_hash(PROFILE),
        classes=(WorkClass(10_000, BUDGETS),),
    )


def settings_of(request: Request, name: str, run: int) -> dict[str, object]:
    """The settings file of one process, by dotted key."""
    layout = Layout(request.folder)
    ports = request.ports
    role = name.rpartition("-")[0] or name
    common: dict[str, object] = {
        "run": run,
        "name": name,
        "log.file": layout.log(name),
        "chain.rpc_url": f"http://127.0.0.1:{ports.chain}",
        "chain.chain_id": CHAIN_ANVIL,
        "chain.addresses": layout.addresses,
        "chain.poll_seconds": 0.5,
        "keys.raw_key_file": layout.key(name),
        "orchestrator.url": f"http://127.0.0.1:{ports.orchestrator}",
    }
    return common | _ROLES.get(role, _worker)(request, layout, name)


def _worker(request: Request, layout: Layout, name: str) -> dict[str, object]:
    return {
        "worker.state_dir": layout.state(name),
        "worker.poll_seconds": 0.5,
        "shardcast.share": True,
        "shardcast.port": 0,
    }


def _validator(request: Request, layout: Layout, name: str) -> dict[str, object]:
    return {"validator.state_dir": layout.state(name)}


def _trainer(request: Request, layout: Layout, name: str) -> dict[str, object]:
    return {
        "trainer.state_dir": layout.state(name),
        "trainer.model": layout.model,
        "trainer.max_steps": request.steps,
        "trainer.batch_groups": GROUPS_PER_BATCH,
        "trainer.max_files": GROUPS_PER_BATCH // LOCAL_DEFAULTS["groups_per_commitment"],
        "shardcast.dir": layout.shards,
        # The report compares every checkpoint's files with its root on chain.
        "shardcast.published_versions": min(request.steps + 2, 10_000),
        "shardcast.whole_versions": min(request.steps + 2, 10_000),
    }


def _orchestrator(request: Request, layout: Layout, name: str) -> dict[str, object]:
    return {
        "orchestrator.port": request.ports.orchestrator,
        "orchestrator.state_dir": layout.state(name),
        "orchestrator.database_url": f"sqlite:///{layout.state(name)}/orchestrator.db",
        "orchestrator.storage_url": f"file:{layout.folder / 'storage'}",
        "orchestrator.run_folder": layout.run_folder,
        "orchestrator.batch_groups": GROUPS_PER_BATCH,
        "shardcast.relays": relay_urls(request),
    }


def _origin(request: Request, layout: Layout, name: str) -> dict[str, object]:
    return {"shardcast.role": "origin", "shardcast.port": request.ports.origin, "shardcast.dir": layout.shards}


def _relay(request: Request, layout: Layout, name: str) -> dict[str, object]:
    return {
        "shardcast.role": "relay",
        "shardcast.port": request.ports.relay,
        "shardcast.dir": layout.state(name),
        "shardcast.upstreams": [f"http://127.0.0.1:{request.ports.origin}"],
        "shardcast.check_chain": True,
    }


_ROLES: Final = {
    "worker": _worker,
    "cheater": _worker,
    "validator": _validator,
    "trainer": _trainer,
    "orchestrator": _orchestrator,
    "origin": _origin,
    "relay": _relay,
}

MODULES: Final = {
    "orchestrator": "orchestrator",
    "origin": "muster.shardcast",
    "relay": "muster.shardcast",
    "trainer": "trainer",
    "validator": "validator",
    "worker": "worker",
    "cheater": "worker.demo_cheat",
}
"""What runs under `python -m`, by role."""


def relay_urls(request: Request) -> list[str]:
    """Where the owner serves weights: the relay first. Nodes learn of them from the orchestrator."""
    return [f"http://127.0.0.1:{request.ports.relay}", f"http://127.0.0.1:{request.ports.origin}"]


FINAL: Final = {"trainer": (0,), "worker": (3,), "cheater": (3,)}
"""A trainer ends when its steps are done; a worker whose key will never work again says so with 3."""

NICE: Final = {"trainer": 0, "orchestrator": 0, "origin": 0, "relay": 0, "worker": 5, "cheater": 5, "validator": 3}
"""The trainer is what everybody waits for; validators come before workers, or cases would queue behind new work."""


def process(request: Request, name: str) -> ProcessSpec:
    """One of our processes, by its name."""
    layout = Layout(request.folder)
    role = name.rpartition("-")[0] or name
    ports = {"orchestrator": request.ports.orchestrator, "origin": request.ports.origin, "relay": request.ports.relay}
    ready = f"http://127.0.0.1:{ports[role]}/readyz" if role in ports else ""
    return ProcessSpec(
        name=name,
        command=(sys.executable, "-P", "-m", MODULES[role], "--config", str(layout.config(name))),
        log=layout.output(name),
        environment=CHILD_ENVIRONMENT,
        ready_url=ready,
        ready_port=ports.get(role, 0),
        # A convicted cheater has nothing to put away, and the demo waits for its end.
        stop_seconds=3 if role == "cheater" else 20,
        nice=NICE[role],
        final_statuses=FINAL.get(role, ()),
        essential=role != "cheater",
    )


def chain_process(request: Request) -> ProcessSpec:
    """Anvil, which makes a block every second, and mines nothing by itself otherwise."""
    from muster.chain.anvil import anvil_command

    command = anvil_command(request.ports.chain, block_time=BLOCK_SECONDS)
    return ProcessSpec(
        name="chain",
        command=tuple(command),
        log=Layout(request.folder).output("chain"),
        ready_port=request.ports.chain,
        restarts=0,
    )
