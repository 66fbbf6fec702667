"""How the processes of a run are started on one machine, and the settings of the nodes among them. Pure.

They live in the folder of a demo (`muster.swarm.plan`) or of a run's owner (`muster.swarm.trial`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from muster.chain.anvil import KEPT_STATES, SAVE_SECONDS, anvil_command
from muster.constants import CHAIN_ANVIL
from muster.runtime.files import cache_folder
from muster.runtime.module_command import module_command
from muster.settings.schema import ChainSettings
from muster.swarm.summary import Participant
from muster.swarm.supervisor import ProcessSpec

BLOCK_SECONDS: Final = 1
NODE_POLL_SECONDS: Final = 0.5

CHILD_ENVIRONMENT: Final = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHINDUCTOR_CACHE_DIR": str(cache_folder("torch")),
    "PYTHONUNBUFFERED": "1",
}
"""A dozen processes share few cores: a thread each is faster than a pool each. Torch's cache, a folder that it makes
wherever a model is imported, is not in the temporary folder."""


@dataclass(frozen=True)
class Role:
    """How the processes of one role run."""

    module: str
    """Runs under `python -m`."""
    nice: int = 0
    """Everybody waits for the trainer; validators come before workers, or cases would queue behind new work."""
    final: tuple[int, ...] = ()
    """0: nothing is left to do (steps done, retired, run closed); 3 of a worker: its key was convicted."""


ROLES: Final = {
    "orchestrator": Role("orchestrator"),
    "origin": Role("muster.shardcast"),
    "relay": Role("muster.shardcast"),
    "explorer": Role("explorer"),
    "trainer": Role("trainer", final=(0,)),
    "validator": Role("validator", nice=3, final=(0,)),
    "worker": Role("worker", nice=5, final=(0, 3)),
    "cheater": Role("adversary", nice=5, final=(0, 3)),
    "lazy": Role("adversary.lazy", nice=3, final=(0,)),
}


def role_of(name: str) -> str:
    """Return the role of a process, by its name: worker-2 is a worker."""
    return name.rpartition("-")[0] or name


def participants(validators: int, workers: int, cheaters: int = 0, *, lazy: bool = False) -> list[Participant]:
    """List the nodes of a run, validators first: it takes no work before four of them exist.

    lazy: whether one more validator accepts everything without a look.
    """
    found = [Participant(f"validator-{i + 1}", "validator") for i in range(validators)]
    found += [Participant("lazy", "validator", honest=False)] * lazy
    found += [Participant(f"worker-{i + 1}", "worker") for i in range(workers)]
    names = ["cheater"] if cheaters == 1 else [f"cheater-{i + 1}" for i in range(cheaters)]
    return found + [Participant(name, "worker", honest=False) for name in names]


def operator_of(node: str) -> str:
    """Return the name of the key of a node's operator."""
    return f"operator-of-{node}"


@dataclass(frozen=True, kw_only=True)
class LocalRun:
    """A run on this machine: what its processes share, and where their files are."""

    folder: Path
    chain: ChainSettings
    orchestrator_url: str
    explorer_url: str
    """Where people see the run."""
    nodes: Sequence[Participant]
    ports: Mapping[str, int]
    """Where services listen on 127.0.0.1, by name; without `chain` the chain runs elsewhere."""
    validator: Mapping[str, object] = field(default_factory=dict)
    """Settings of every validator, by their names."""
    saved: Path
    """State that the chain resumes from, if the file exists."""
    history: int | None = KEPT_STATES
    """Blocks that the chain can undo; None: all of a short run."""
    wait_seconds: int = 0
    """How long the settings of trainer and nodes may take to come."""

    def home(self, name: str) -> Path:
        return self.folder / name

    def config(self, name: str) -> Path:
        return self.home(name) / "muster.toml"

    def state(self, name: str) -> Path:
        return self.home(name) / "state"

    def log(self, name: str) -> Path:
        """Return the path of a process's log, in JSON lines."""
        return self.home(name) / "log.jsonl"

    def output(self, name: str) -> Path:
        """Return the path of a process's stdout and stderr."""
        return self.home(name) / "output.log"

    def key(self, name: str) -> Path:
        """Return the path of a raw key, which only Anvil accepts."""
        return self.folder / "keys" / name

    def key_settings(self, name: str) -> dict[str, Path]:
        return {"raw_key_file": self.key(name)}

    @property
    def validators(self) -> list[str]:
        return [node.name for node in self.nodes if node.role == "validator"]

    def process(self, name: str) -> ProcessSpec:
        """Return how one of our processes is started; one that has a port is ready once it answers there."""
        role, port = ROLES[role_of(name)], self.ports.get(name, 0)
        wait = ("--wait", str(self.wait_seconds)) if self.wait_seconds and not port else ()
        return ProcessSpec(
            name=name,
            command=module_command(role.module, "--config", self.config(name), *wait),
            log=self.output(name),
            environment=CHILD_ENVIRONMENT,
            ready_url=f"http://127.0.0.1:{port}/readyz" if port else "",
            ready_port=port,
            nice=role.nice,
            final_statuses=role.final,
            essential=role_of(name) not in ("cheater", "lazy", "explorer"),
        )

    def chain_process(self) -> ProcessSpec:
        """Return how Anvil is started: it makes a block every second, and mines nothing otherwise."""
        port = self.ports["chain"]
        states = self.saved.parent / "chain"
        command = anvil_command(port, block_time=BLOCK_SECONDS, states=states, history=self.history, saved=self.saved)
        return ProcessSpec(
            name="chain",
            command=tuple(command),
            log=self.output("chain"),
            ready_port=port,
            stop_seconds=SAVE_SECONDS,
            restart_from=self.saved,
        )

    def settings(self, name: str, run: int) -> dict[str, object]:
        """Return the settings of a node, and what those of every process have, by dotted key."""
        keys = {} if name == "explorer" else self.key_settings(name)  # it signs nothing
        shared = {
            "run": run,
            "name": name,
            "log.file": self.log(name),
            "chain.rpc_url": self.chain.rpc_url,
            "chain.chain_id": CHAIN_ANVIL,
            "chain.addresses": self.chain.addresses,
            "chain.poll_seconds": NODE_POLL_SECONDS,
            **{f"keys.{key}": path for key, path in keys.items()},
            "orchestrator.url": self.orchestrator_url,
        }
        state = self.state(name)
        match role_of(name):
            case "validator" | "lazy":
                chosen = {f"validator.{key}": value for key, value in self.validator.items()}
                return {**shared, "validator.state_dir": state, **chosen}
            case "worker" | "cheater":  # it passes on the weights that it holds
                return {**shared, "worker.state_dir": state, "shardcast.port": 0}
            case _:
                return shared
