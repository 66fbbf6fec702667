"""An owner's own run on this machine, before strangers join it: the owner's four processes, validators and workers.

Unlike a demo's, its folder is kept: the chain writes its state down, keys and journals stay, and the next start goes on
with all of them. What the owner does on chain is the caller's (`muster.console.run_init.owner`); what nodes do is here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.chain.client import Chain
from muster.chain.keys import Signer, ensure_keystore
from muster.contracts import token
from muster.errors import ConfigError
from muster.runtime.files import write_atomically
from muster.runtime.units import Tokens
from muster.settings.toml import to_toml
from muster.swarm.launch import LocalRun, operator_of
from muster.swarm.opening import ensure_admitted, give_gas
from muster.swarm.running import RunningSwarm, supervised
from muster.swarm.supervisor import check_ports
from muster.swarm.watch import SwarmView

VALIDATORS: Final = 4
"""As many as a run needs before it takes work."""

KEY_ITERATIONS: Final = 1 << 10
"""Of a node's keystore: keys that are worth nothing, and a dozen of them are opened at every start."""


@dataclass(frozen=True, kw_only=True)
class TrialRun(LocalRun):
    """A trial in the folder of its run: the owner's four processes have settings files of their own."""

    services: Mapping[str, Path]
    """Settings files of orchestrator, origin, explorer and trainer, by their roles."""

    def home(self, name: str) -> Path:
        return self.folder / "nodes" / name

    def config(self, name: str) -> Path:
        return self.services.get(name) or super().config(name)

    def output(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def key_settings(self, name: str) -> dict[str, Path]:
        keys = self.folder / "keys"
        return {"keystore": keys / f"{name}.json", "password_file": keys / f"{name}.password"}


def make_node_keys(local: LocalRun) -> dict[str, Signer]:
    """Return the keys of all nodes and of their operators, by name; make those that are not there."""
    names = [name for node in local.nodes for name in (node.name, operator_of(node.name))]
    return {name: ensure_keystore(*local.key_settings(name).values(), iterations=KEY_ITERATIONS) for name in names}


async def prepare_operators(swarm: RunningSwarm, admitter: Signer | None) -> None:
    """Give gas to all keys, and put the validators' operators on the list that `admitter` keeps, if there is one.

    Raises ConfigError for a stake that no operator can draw in a day.
    """
    await give_gas(swarm.local.chain, [key.address for key in swarm.keys.values()])
    async with await Chain.connect(swarm.local.chain, admitter) as chain:
        terms = await chain.terms(swarm.run)
        drawn, stake = await chain.call(token.faucet_amount()), max(terms.worker_stake, terms.validator_stake)
        if stake > drawn:
            raise ConfigError(
                f"a stake of {Tokens(stake)} is more than the faucet gives in a day, {Tokens(drawn)}",
                hint="a smaller stake, with less pay or fewer commitments an hour",
            )
        if admitter is not None:
            judges = [swarm.keys[operator_of(name)].address for name in swarm.local.validators]
            await ensure_admitted(chain, swarm.run, judges)


async def run_trial(
    local: TrialRun,
    view: SwarmView,
    open_run: Callable[[], Awaitable[int]],
    admitter: Signer | None,
    started: Callable[[int], None],
) -> None:
    """Keep an owner's run going until the task is cancelled; everything stays on disk for the next time.

    open_run: sends the owner's transactions once the chain answers, and returns the run's number. admitter: who lists
    the validators' operators, where the terms name somebody. started: called with that number when every process runs.
    """
    check_ports(list(local.ports.values()))
    async with supervised(local.folder, view) as supervisor:
        swarm = RunningSwarm(local, supervisor, view)
        await supervisor.guard(_run_until_cancelled(swarm, open_run, admitter, started))


async def _run_until_cancelled(
    swarm: RunningSwarm, open_run: Callable[[], Awaitable[int]], admitter: Signer | None, started: Callable[[int], None]
) -> None:
    # 1. Chain and run.
    local, resumes = swarm.local, False
    if "chain" in local.ports:
        swarm.view.stage("starting the chain")
        resumes = local.saved.exists()
        await swarm.supervisor.start(local.chain_process())
    swarm.view.stage("opening the run on chain")
    swarm.run = await open_run()

    # 2. Nodes.
    swarm.view.stage("registering validators and workers")
    swarm.keys = await asyncio.to_thread(make_node_keys, local)
    await prepare_operators(swarm, admitter)
    await asyncio.to_thread(swarm.make_draw_tips)
    await swarm.register()
    names = [node.name for node in local.nodes]
    for name in names:
        write_atomically(local.config(name), to_toml(local.settings(name, swarm.run)))

    # 3. Processes.
    await swarm.start_services()
    swarm.view.stage("starting trainer, validators and workers")
    await swarm.start("trainer", *names)
    if not resumes:
        await swarm.name_nodes()
    await swarm.start_explorer()
    started(swarm.run)
    swarm.view.stage(f"running; the run's page is {local.explorer_url}/; Ctrl-C ends it")
    async with await Chain.connect(local.chain) as chain:
        if resumes:
            await swarm.skip_story(chain)
        await swarm.watch(chain, lambda _: False, float("inf"))
