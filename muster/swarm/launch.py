"""How the processes of a run are started on one machine, and the settings of the nodes among them. Pure.

Whose folder they live in is the caller's to say: a demo's (`muster.swarm.plan`), or an owner's (`muster.swarm.trial`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from muster.chain.anvil import anvil_command
from muster.constants import CHAIN_ANVIL
from muster.runtime.files import cache_folder
from muster.runtime.module_command import module_command
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

SAVING_SECONDS: Final = 60.0
"""Longest time that a chain which keeps its state takes to write it when it ends: 2 kB for every block."""


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
    "trainer": Role("trainer", final=(0,)),
    "validator": Role("validator", nice=3, final=(0,)),
    "worker": Role("worker", nice=5, final=(0, 3)),
    "cheater": Role("adversary", nice=5, final=(0, 3)),
}


def role_of(name: str) -> str:
    """Return the role of a process, by its name: worker-2 is a worker."""
    return name.rpartition("-")[0] or name


def process_spec(name: str, config: Path, log: Path, port: int = 0, *, wait_seconds: int = 0) -> ProcessSpec:
    """Return how one of our processes is started, by its name. port: where it serves `/readyz`; 0: it is no service.

    wait_seconds: how long its settings file may take to come.
    """
    role = ROLES[role_of(name)]
    wait = ("--wait", str(wait_seconds)) if wait_seconds else ()
    return ProcessSpec(
        name=name,
        command=module_command(role.module, "--config", config, *wait),
        log=log,
        environment=CHILD_ENVIRONMENT,
        ready_url=f"http://127.0.0.1:{port}/readyz" if port else "",
        ready_port=port,
        nice=role.nice,
        final_statuses=role.final,
        essential=role_of(name) != "cheater",
    )


def chain_spec(
    port: int, log: Path, states: Path, *, latest_only: bool = False, saved: Path | None = None
) -> ProcessSpec:
    """Return how Anvil is started: it makes a block every second, and mines nothing otherwise.

    states, latest_only, saved: as `muster.chain.anvil.anvil_command` has them.
    """
    command = anvil_command(port, block_time=BLOCK_SECONDS, states=states, latest_only=latest_only, saved=saved)
    spec = ProcessSpec(name="chain", command=tuple(command), log=log, ready_port=port, restarts=0)
    return spec if saved is None else replace(spec, stop_seconds=SAVING_SECONDS)


def shared_settings(
    name: str,
    run: int,
    *,
    log: Path,
    rpc_url: str,
    addresses: Path,
    keys: Mapping[str, object],
    orchestrator_url: str,
) -> dict[str, object]:
    """Return what every process on a local chain sets, by dotted key. keys: the key's own settings."""
    return {
        "run": run,
        "name": name,
        "log.file": log,
        "chain.rpc_url": rpc_url,
        "chain.chain_id": CHAIN_ANVIL,
        "chain.addresses": addresses,
        "chain.poll_seconds": NODE_POLL_SECONDS,
        **{f"keys.{key}": value for key, value in keys.items()},
        "orchestrator.url": orchestrator_url,
    }


def validator_settings(state: Path, chosen: Mapping[str, object] = MappingProxyType({})) -> dict[str, object]:
    """Return what a validator sets besides; chosen: by the names of the validator's section."""
    return {"validator.state_dir": state, **{f"validator.{name}": value for name, value in chosen.items()}}


def worker_settings(state: Path) -> dict[str, object]:
    """Return what a worker sets besides: it passes on the weights that it holds."""
    return {
        "worker.state_dir": state,
        "worker.poll_seconds": NODE_POLL_SECONDS,
        "shardcast.share": True,
        "shardcast.port": 0,
    }
