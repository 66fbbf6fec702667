"""An owner's own run on this machine, before strangers join it: the owner's three processes, validators and workers.

Unlike a demo's, its folder is kept: the chain writes its state down, keys and journals stay, and the next start goes on
with all of them. What the owner does on chain is the caller's (`muster.console.run_init.owner`); what nodes do is here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from muster.chain.client import Chain
from muster.chain.draw_secret import create_draw_secret, draw_tip
from muster.chain.keys import Signer, ensure_keystore
from muster.contracts import token
from muster.settings.schema import ChainSettings
from muster.settings.toml import to_toml
from muster.swarm.launch import (
    chain_spec,
    process_spec,
    role_of,
    shared_settings,
    validator_settings,
    worker_settings,
)
from muster.swarm.opening import ensure_admitted, give_gas, require_faucet
from muster.swarm.running import RunningSwarm
from muster.swarm.stage import join, name_nodes, operator_of
from muster.swarm.state import check_free
from muster.swarm.summary import Participant
from muster.swarm.supervisor import ProcessSpec, Supervisor, check_ports
from muster.swarm.watch import PlainView

VALIDATORS: Final = 4
"""As many as a run needs before it takes work."""

KEY_ITERATIONS: Final = 1 << 10
"""Of a node's keystore: keys that are worth nothing, and a dozen of them are opened at every start."""


@dataclass(frozen=True)
class TrialRequest:
    """What is started, and where it lives."""

    folder: Path
    chain: ChainSettings
    chain_port: int
    """Port of a local chain that the trial starts; 0: the chain runs elsewhere."""
    saved: Path
    """Saved state that a local chain resumes from."""
    services: Mapping[str, Path]
    """Settings files of orchestrator, origin and trainer, by their roles."""
    service_ports: Mapping[str, int]
    """Of orchestrator and origin."""
    orchestrator_url: str
    workers: int
    validator: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    """Settings of every validator, by their names."""

    @property
    def nodes(self) -> list[Participant]:
        """List the nodes, validators first."""
        found = [Participant(f"validator-{i + 1}", "validator") for i in range(VALIDATORS)]
        return found + [Participant(f"worker-{i + 1}", "worker") for i in range(self.workers)]

    def node(self, name: str) -> Path:
        """Return the folder of a node."""
        return self.folder / "nodes" / name

    def output(self, name: str) -> Path:
        """Return the path of a process's stdout and stderr."""
        return self.folder / "logs" / f"{name}.log"

    def key(self, name: str) -> dict[str, object]:
        """Return the key settings of a node or operator."""
        keys = self.folder / "keys"
        return {"keystore": keys / f"{name}.json", "password_file": keys / f"{name}.password"}


def service_spec(request: TrialRequest, name: str) -> ProcessSpec:
    """Return how one of the owner's processes is started."""
    return process_spec(name, request.services[name], request.output(name), request.service_ports.get(name, 0))


def node_spec(request: TrialRequest, name: str) -> ProcessSpec:
    return process_spec(name, request.node(name) / "muster.toml", request.output(name))


def node_settings(request: TrialRequest, name: str, run: int) -> dict[str, object]:
    """Return the settings of a node, by dotted key."""
    folder = request.node(name)
    shared = shared_settings(
        name,
        run,
        log=folder / "log.jsonl",
        rpc_url=request.chain.rpc_url,
        addresses=request.chain.addresses,
        keys=request.key(name),
        orchestrator_url=request.orchestrator_url,
    )
    state = folder / "state"
    own = validator_settings(state, request.validator) if role_of(name) == "validator" else worker_settings(state)
    return shared | own


@dataclass(kw_only=True)
class Trial(RunningSwarm):
    """A trial: it is opened, started and watched until the task is cancelled."""

    request: TrialRequest
    went_on: bool = False
    """Whether its chain resumed from an earlier start."""
    keys: Mapping[str, Signer] = field(default_factory=dict)
    """Of nodes and their operators, by name."""

    async def open(self, open_run: Callable[[], Awaitable[int]], owner: Signer, *, admits: bool) -> None:
        """Start the chain, open the run, and register its nodes; admits: the owner keeps the list of validators."""
        if self.request.chain_port:
            self.view.stage("starting the chain")
            self.went_on = self.request.saved.exists()
            states = self.request.saved.parent / "chain"
            log = self.request.output("chain")
            spec = chain_spec(self.request.chain_port, log, states, latest_only=True, saved=self.request.saved)
            await self.supervisor.start(spec)
        self.view.stage("opening the run on chain")
        self.run = await open_run()
        self.view.stage("registering validators and workers")
        self.keys = await asyncio.to_thread(make_node_keys, self.request)
        self.participants = await register(self.request, self.run, self.keys, owner if admits else None)
        for node in self.participants:
            path = self.request.node(node.name) / "muster.toml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(to_toml(node_settings(self.request, node.name, self.run)), encoding="utf-8")

    async def start(self) -> None:
        """Start every process in order of readiness."""
        names = [node.name for node in self.participants]
        await self.start_services(service_spec(self.request, "orchestrator"), service_spec(self.request, "origin"))
        await self.start_nodes(service_spec(self.request, "trainer"), *(node_spec(self.request, one) for one in names))
        if not self.went_on:
            url = self.request.orchestrator_url
            await name_nodes(self.request.chain, url, self.run, self.keys, self.participants)


def make_node_keys(request: TrialRequest) -> dict[str, Signer]:
    """Return the keys of all nodes and of their operators, by name; make those that are not there."""
    names = [name for node in request.nodes for name in (node.name, operator_of(node.name))]
    files = {name: request.key(name) for name in names}
    return {
        name: ensure_keystore(Path(str(one["keystore"])), Path(str(one["password_file"])), iterations=KEY_ITERATIONS)
        for name, one in files.items()
    }


async def register(
    request: TrialRequest, run: int, keys: Mapping[str, Signer], admitter: Signer | None
) -> list[Participant]:
    """Register every unregistered node, each by its own operator, with gas and tokens.

    admitter: who lists the validators' operators, where the terms name somebody. Raises ConfigError for a stake that no
    operator can draw in a day.
    """
    # 1. Gas for all, and validators on the list.
    await give_gas(request.chain, [key.address for key in keys.values()])
    async with await Chain.connect(request.chain, admitter) as chain:
        terms = await chain.terms(run)
        require_faucet(await chain.call(token.faucet_amount()), [terms.worker_stake, terms.validator_stake])
        if admitter is not None:
            judges = [keys[operator_of(node.name)].address for node in request.nodes if node.role == "validator"]
            await ensure_admitted(chain, run, judges)

    # 2. Draw secrets, and registrations.
    tips = await asyncio.to_thread(_draw_tips, request)
    joins = (
        join(request.chain, keys[operator_of(node.name)], keys[node.name], node, run, tips) for node in request.nodes
    )
    return list(await asyncio.gather(*joins))


def _draw_tips(request: TrialRequest) -> dict[str, bytes]:
    judges = [node.name for node in request.nodes if node.role == "validator"]
    return {name: draw_tip(create_draw_secret(request.node(name) / "state")) for name in judges}


async def run_trial(
    request: TrialRequest,
    view: PlainView,
    open_run: Callable[[], Awaitable[int]],
    owner: Signer,
    *,
    admits: bool,
    started: Callable[[int], None],
) -> None:
    """Keep an owner's run going until the task is cancelled; everything stays on disk for the next time.

    open_run: sends the owner's transactions once the chain answers, and returns the run's number. started: called with
    that number when every process runs.
    """
    check_ports([port for port in (request.chain_port, *request.service_ports.values()) if port])
    check_free(request.folder)
    with view:
        async with Supervisor(request.folder, view.process_event) as supervisor:
            trial = Trial(request.folder, request.orchestrator_url, supervisor, view, request=request)
            try:
                await supervisor.guard(_run_until_cancelled(trial, open_run, owner, admits, started))
            finally:
                view.stage("ending every process")


async def _run_until_cancelled(
    trial: Trial, open_run: Callable[[], Awaitable[int]], owner: Signer, admits: bool, started: Callable[[int], None]
) -> None:
    await trial.open(open_run, owner, admits=admits)
    await trial.start()
    started(trial.run)
    trial.view.stage(f"running; the run's page is {trial.orchestrator_url}/; Ctrl-C ends it")
    async with await Chain.connect(trial.request.chain) as chain:
        if trial.went_on:
            await trial.skip_story(chain)
        await trial.watch(chain, lambda _: False, float("inf"))
