"""Plan a local swarm: its processes and their settings. Pure: a request in, settings and process specs out.

Every node has its own folder, settings file, key files and log, as on a separate machine. They share nothing but the
addresses of chain, orchestrator and relay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from muster.constants import HOUR_SECONDS, TOKEN
from muster.protocol.terms import WorkClass
from muster.protocol.terms_file import LOCAL_DEFAULTS
from muster.runtime.module_command import module_command
from muster.swarm.launch import (
    CHILD_ENVIRONMENT,
    chain_spec,
    process_spec,
    role_of,
    shared_settings,
    validator_settings,
    worker_settings,
)
from muster.swarm.scenarios import DIGITS, Scenario
from muster.swarm.summary import Participant
from muster.swarm.supervisor import ProcessSpec
from muster.verification.profiles import profile_hash

ESCROW: Final = 9_000 * TOKEN
"""The owner's deposit in the run; a faucet gives 10,000 tokens."""

BUDGETS: Final = DIGITS.budgets
GROUPS_PER_BATCH: Final = DIGITS.groups_per_batch
PROFILE: Final = DIGITS.profile

LOCAL_TERMS: Final[Mapping[str, Any]] = {
    **LOCAL_DEFAULTS,
    "profile": profile_hash(PROFILE),
    "classes": (WorkClass(10_000, BUDGETS),),
}
"""The owner's choices of a local run: small groups, seconds for case deadlines, a stake that hurts to lose."""

MODEL_SECONDS: Final = 300
"""Longest time that making or fetching the model takes."""
START_SECONDS: Final = 300
"""Longest time from then on until all services run, for which trainer and nodes wait."""

LASTING_GROUPS: Final = 32
"""Groups per commitment of a swarm that lasts: a node makes 255 commitments an hour at most, so each is large."""
LASTING_PAY: Final = TOKEN // 100
"""Per commitment of a swarm that lasts: its escrow pays for months."""
LASTING_SHARE: Final = 0.8
"""Of the commitments that its workers may make in an hour, the share that its steps use up: one worker may rest."""
LASTING_DEMAND: Final = 1
"""Batches that may wait for its trainer: with two, a sixth of the work grew too old to be used."""
LASTING_KEPT_HOURS: Final = 6.0
"""For which it keeps old steps. Its validators judge within minutes, and a week of steps would fill a disk."""


@dataclass(frozen=True)
class Ports:
    """Where a swarm listens on 127.0.0.1."""

    chain: int
    orchestrator: int
    origin: int
    relay: int


@dataclass(frozen=True)
class SwarmRequest:
    """What a person asks for."""

    folder: Path
    ports: Ports
    steps: int
    seed: int = 0
    workers: int = 2
    cheaters: int = 1
    validators: int = 4
    scenario: Scenario = DIGITS
    lasting: bool = False
    """Runs for days (`swarm up`) instead of some minutes (`swarm demo`)."""

    @property
    def layout(self) -> Layout:
        return Layout(self.folder)

    @property
    def rpc_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.chain}"

    @property
    def orchestrator_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.orchestrator}"

    @property
    def groups_per_commitment(self) -> int:
        if self.lasting:
            return min(LASTING_GROUPS, self.scenario.groups_per_batch)
        return self.scenario.groups_per_commitment

    @property
    def files_per_batch(self) -> int:
        return self.scenario.groups_per_batch // self.groups_per_commitment


class Layout:
    """Paths in a swarm's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.addresses = folder / "addresses.json"
        self.run_folder = folder / "run"
        """What a newcomer needs: task set, tokenizer, model configuration."""
        self.model = folder / "model"
        self.tasks = folder / "tasks"
        self.shards = folder / "origin"

    def model_of(self, step: int) -> Path:
        """Return where the trainer keeps the model of one of its newest steps."""
        return self.state("trainer") / "steps" / f"{step:06d}" / "model"

    def key(self, name: str) -> Path:
        """Return the path of a raw key, which only Anvil accepts."""
        return self.folder / "keys" / name

    def config(self, name: str) -> Path:
        return self.folder / name / "muster.toml"

    def state(self, name: str) -> Path:
        return self.folder / name / "state"

    def log(self, name: str) -> Path:
        """Return the path of a process's log, in JSON lines."""
        return self.folder / name / "log.jsonl"

    def output(self, name: str) -> Path:
        """Return the path of a process's stdout and stderr."""
        return self.folder / name / "output.log"


def nodes(request: SwarmRequest) -> list[Participant]:
    """List the nodes, validators first: a run takes no work before four of them exist."""
    found = [Participant(f"validator-{i + 1}", "validator") for i in range(request.validators)]
    found += [Participant(f"worker-{i + 1}", "worker") for i in range(request.workers)]
    cheaters = ["cheater"] if request.cheaters == 1 else [f"cheater-{i + 1}" for i in range(request.cheaters)]
    return found + [Participant(name, "worker", honest=False) for name in cheaters]


def step_interval(workers: int, files: int, commitments_per_hour: int) -> int:
    """Return the least seconds between two steps of so many files at which workers never run out of commitments."""
    return math.ceil(HOUR_SECONDS * files / (commitments_per_hour * workers * LASTING_SHARE))


def local_terms(request: SwarmRequest) -> dict[str, Any]:
    """Return the owner's choices for this swarm's run, by field of `Terms`."""
    scenario = request.scenario
    chosen = {
        **LOCAL_TERMS,
        "profile": profile_hash(scenario.profile),
        "classes": (WorkClass(10_000, scenario.budgets),),
        "groups_per_commitment": request.groups_per_commitment,
        **scenario.terms,
    }
    if request.lasting:
        interval = step_interval(request.workers, request.files_per_batch, chosen["commitments_per_hour"])
        chosen |= {"pay": LASTING_PAY, "min_step_interval": interval}
    return chosen


def settings_of(request: SwarmRequest, name: str, run: int) -> dict[str, object]:
    """Return the settings of one process, by dotted key."""
    layout = request.layout
    shared = shared_settings(
        name,
        run,
        log=layout.log(name),
        rpc_url=request.rpc_url,
        addresses=layout.addresses,
        keys={"raw_key_file": layout.key(name)},
        orchestrator_url=request.orchestrator_url,
    )
    return shared | _settings_of_role(request, layout.state(name), role_of(name))


def _settings_of_role(request: SwarmRequest, state: Path, role: str) -> dict[str, object]:
    """Return what only this role sets; a cheater's settings are a worker's."""
    layout, ports = request.layout, request.ports
    match role:
        case "validator":
            return validator_settings(state, request.scenario.validator)
        case "trainer":
            # The report compares every checkpoint's files with its root on chain.
            kept = min(request.steps + 2, 10_000)
            every = {"shardcast.published_versions": kept, "shardcast.whole_versions": kept}
            return {
                "trainer.state_dir": state,
                "trainer.model": layout.model,
                "trainer.max_steps": request.steps,
                "trainer.batch_groups": request.scenario.groups_per_batch,
                "trainer.max_files": request.files_per_batch,
                **{f"trainer.{name}": value for name, value in request.scenario.trainer.items()},
                "shardcast.dir": layout.shards,
                **({"shardcast.kept_hours": LASTING_KEPT_HOURS} if request.lasting else every),
            }
        case "orchestrator":
            return {
                "orchestrator.port": ports.orchestrator,
                "orchestrator.title": request.scenario.title,
                "orchestrator.about": request.scenario.about,
                "orchestrator.state_dir": state,
                "orchestrator.database_url": f"sqlite:///{state}/orchestrator.db",
                "orchestrator.storage_url": f"file:{layout.folder / 'storage'}",
                "orchestrator.run_folder": layout.run_folder,
                "orchestrator.batch_groups": request.scenario.groups_per_batch,
                "orchestrator.demand_batches": LASTING_DEMAND if request.lasting else request.scenario.demand_batches,
                "shardcast.relays": relay_urls(request),
            }
        case "origin":
            return {"shardcast.role": "origin", "shardcast.port": ports.origin, "shardcast.dir": layout.shards}
        case "relay":
            return {
                "shardcast.role": "relay",
                "shardcast.port": ports.relay,
                "shardcast.dir": state,
                "shardcast.upstreams": [f"http://127.0.0.1:{ports.origin}"],
                "shardcast.check_chain": True,
            }
        case _:
            return worker_settings(state)


def relay_urls(request: SwarmRequest) -> list[str]:
    """Return the URLs at which the owner serves weights, the relay first. Nodes learn of them from the orchestrator."""
    return [f"http://127.0.0.1:{request.ports.relay}", f"http://127.0.0.1:{request.ports.origin}"]


def process(request: SwarmRequest, name: str) -> ProcessSpec:
    """Return how one of our processes is started, by its name."""
    layout = request.layout
    port = getattr(request.ports, name, 0)  # those with a port of their own are called by their role
    wait = 0 if port else MODEL_SECONDS + START_SECONDS
    return process_spec(name, layout.config(name), layout.output(name), port, wait_seconds=wait)


def model_process(request: SwarmRequest) -> ProcessSpec:
    """Return the process that fetches the model, or makes it and warms it up: separate, because torch is large."""
    layout, scenario = request.layout, request.scenario
    command = module_command("muster", "model")
    if scenario.fetched_model:
        command += ("fetch", scenario.fetched_model, str(layout.model))
    else:
        command += ("init", str(layout.model), "--tasks", str(layout.tasks), "--seed", str(request.seed))
        command += ("--budgets", ",".join(map(str, scenario.budgets)))
    return ProcessSpec(
        name="make-model",
        command=command,
        log=layout.output("make-model"),
        environment=CHILD_ENVIRONMENT,
        ready_seconds=MODEL_SECONDS,
    )


def chain_process(request: SwarmRequest) -> ProcessSpec:
    """Return how the swarm's chain is started."""
    layout = request.layout
    # A demo's report asks about a block that is some seconds old.
    return chain_spec(request.ports.chain, layout.output("chain"), layout.state("chain"), latest_only=request.lasting)
