"""Plan a local swarm: its processes and their settings. Pure: a request in, settings and process specs out.

Every node has its own folder, settings file, key files and log, as on a separate machine. They share nothing but the
addresses of chain and services.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from muster.chain.anvil import KEPT_STATES
from muster.constants import CHAIN_ANVIL, HOUR_SECONDS, TOKEN
from muster.protocol.terms import WorkClass
from muster.protocol.terms_file import LOCAL_DEFAULTS
from muster.runtime.module_command import module_command
from muster.settings.schema import ChainSettings
from muster.swarm.launch import CHILD_ENVIRONMENT, LocalRun, participants
from muster.swarm.scenarios import DIGITS, Scenario
from muster.swarm.supervisor import ProcessSpec
from muster.verification.profiles import profile_hash

ESCROW: Final = 9_000 * TOKEN
"""The owner's deposit in the run; a faucet gives 10,000 tokens."""
WAGES: Final = 900 * TOKEN
"""What the owner sets aside for looks."""

BUDGETS: Final = DIGITS.budgets
GROUPS_PER_BATCH: Final = DIGITS.groups_per_batch
PROFILE: Final = DIGITS.profile

LOCAL_TERMS: Final[Mapping[str, Any]] = {
    **LOCAL_DEFAULTS,
    "profile": profile_hash(PROFILE),
    "classes": (WorkClass(10_000, BUDGETS),),
}
"""The owner's choices of a local run: small groups, seconds for case deadlines, a stake that hurts to lose."""

CLAIM_HOURS: Final = 0.001
"""Between two claims of a demo's validators: its hours last seconds."""

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
    explorer: int


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

    @cached_property
    def local(self) -> LocalSwarm:
        ports, lazy = self.ports, self.scenario.lazy
        return LocalSwarm(
            folder=self.folder,
            chain=ChainSettings(
                rpc_url=f"http://127.0.0.1:{ports.chain}",
                chain_id=CHAIN_ANVIL,
                addresses=self.folder / "addresses.json",
                poll_seconds=0.25,
            ),
            orchestrator_url=f"http://127.0.0.1:{ports.orchestrator}",
            explorer_url=f"http://127.0.0.1:{ports.explorer}",
            nodes=participants(self.validators - lazy, self.workers, self.cheaters, lazy=lazy),
            ports=asdict(ports),
            validator={**self.scenario.validator, **({} if self.lasting else {"auto_claim_hours": CLAIM_HOURS})},
            saved=self.folder / "chain" / "state.json",
            history=KEPT_STATES if self.lasting else None,  # a demo's report asks about a block that is seconds old
            wait_seconds=MODEL_SECONDS + START_SECONDS,
        )

    @property
    def groups_per_commitment(self) -> int:
        if self.lasting:
            return min(LASTING_GROUPS, self.scenario.groups_per_batch)
        return self.scenario.groups_per_commitment

    @property
    def files_per_batch(self) -> int:
        return self.scenario.groups_per_batch // self.groups_per_commitment


class LocalSwarm(LocalRun):
    """What a swarm's folder holds besides."""

    @property
    def run_folder(self) -> Path:
        """Return the folder of what a newcomer needs: task set, tokenizer, model configuration."""
        return self.folder / "run"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def tasks(self) -> Path:
        return self.folder / "tasks"

    @property
    def shards(self) -> Path:
        return self.folder / "origin"

    def model_of(self, step: int) -> Path:
        """Return where the trainer keeps the model of one of its newest steps."""
        return self.state("trainer") / "steps" / f"{step:06d}" / "model"


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
    return request.local.settings(name, run) | _settings_of_service(request, name)


def _settings_of_service(request: SwarmRequest, name: str) -> dict[str, object]:
    """Return what a process that is no node sets besides."""
    local, ports, state = request.local, request.ports, request.local.state(name)
    match name:
        case "trainer":
            # The report compares every checkpoint's files with its root on chain: a demo's stay whole.
            kept = {"shardcast.kept_hours": LASTING_KEPT_HOURS} if request.lasting else {"shardcast.whole_every": 1}
            return {
                "trainer.state_dir": state,
                "trainer.model": local.model,
                "trainer.max_steps": request.steps,
                "trainer.batch_groups": request.scenario.groups_per_batch,
                "trainer.max_files": request.files_per_batch,
                **{f"trainer.{name}": value for name, value in request.scenario.trainer.items()},
                "shardcast.dir": local.shards,
                **kept,
            }
        case "orchestrator":
            return {
                "orchestrator.port": ports.orchestrator,
                "orchestrator.title": request.scenario.title,
                "orchestrator.about": request.scenario.about,
                "orchestrator.explorer_url": local.explorer_url,
                "orchestrator.state_dir": state,
                "orchestrator.database_url": f"sqlite:///{state}/orchestrator.db",
                "orchestrator.storage_url": f"file:{local.folder / 'storage'}",
                "orchestrator.run_folder": local.run_folder,
                "orchestrator.batch_groups": request.scenario.groups_per_batch,
                "orchestrator.demand_batches": LASTING_DEMAND if request.lasting else request.scenario.demand_batches,
                "shardcast.relays": [f"http://127.0.0.1:{port}" for port in (ports.relay, ports.origin)],
            }
        case "explorer":
            return {"explorer.port": ports.explorer, "explorer.state_dir": state}
        case "origin":
            return {"shardcast.role": "origin", "shardcast.port": ports.origin, "shardcast.dir": local.shards}
        case "relay":
            return {
                "shardcast.role": "relay",
                "shardcast.port": ports.relay,
                "shardcast.dir": state,
                "shardcast.upstreams": [f"http://127.0.0.1:{ports.origin}"],
                "shardcast.check_chain": True,
            }
        case _:
            return {}


def model_process(request: SwarmRequest) -> ProcessSpec:
    """Return the process that fetches the model, or makes it and warms it up: separate, because torch is large."""
    local, scenario = request.local, request.scenario
    command = module_command("muster", "model")
    if scenario.fetched_model:
        command += ("fetch", scenario.fetched_model, str(local.model))
    else:
        command += ("init", str(local.model), "--tasks", str(local.tasks), "--seed", str(request.seed))
        command += ("--budgets", ",".join(map(str, scenario.budgets)))
    return ProcessSpec(
        name="make-model",
        command=command,
        log=local.output("make-model"),
        environment=CHILD_ENVIRONMENT,
        ready_seconds=MODEL_SECONDS,
    )
