"""Set the stage for a swarm: what must be on chain and on disk before its processes start.

Keys for everybody, gas from Anvil, tokens from the faucet, contracts, a task set and a model, a funded run, and every
node registered with its own stake by its own operator.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from muster.authoring.tasks.generated import make_task_set
from muster.chain.client import NO_TIP, Chain
from muster.chain.draw_secret import create_draw_secret, draw_tip
from muster.chain.keys import Signer, load_raw_key, write_secret
from muster.clients.orchestrator import OrchestratorClient
from muster.constants import CHAIN_ANVIL
from muster.contracts import token
from muster.contracts.registry import Role
from muster.errors import UsageError
from muster.models.files import FIXED_FILES, context_of, model_hash, tokenizer_hash
from muster.protocol.terms import Terms, check_context
from muster.runtime.files import write_atomically
from muster.settings.schema import ChainSettings
from muster.settings.toml import to_toml
from muster.swarm.opening import (
    ensure_deployed,
    ensure_escrow,
    ensure_joined,
    ensure_run,
    ensure_stock,
    ensure_tokens,
    give_gas,
)
from muster.swarm.plan import ESCROW, SwarmRequest, local_terms, nodes, settings_of
from muster.swarm.summary import Participant
from muster.tasksets.taskset import TaskSet

MARKER = ".muster-swarm"
"""A file in every folder that a swarm made, so that nothing else is ever deleted."""

KEPT = ("log.jsonl", "output.log", "muster.toml")
"""Of each process, once an interrupted swarm has ended."""

SERVICES = ("orchestrator", "origin", "relay")


def fresh_folder(folder: Path) -> None:
    """Make an empty folder for a swarm, clearing one of an earlier swarm. Raises UsageError for any other folder."""
    if folder.exists():
        if any(folder.iterdir()) and not (folder / MARKER).exists():
            raise UsageError(f"{folder} holds something that no swarm made", hint="choose another with --folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, mode=0o700)
    (folder / MARKER).touch()


def keep_logs(folder: Path) -> None:
    """Delete everything in a swarm's folder but logs and settings: weights, rollouts, journals."""
    if not (folder / MARKER).exists():
        return
    kept = [MARKER, *(path.relative_to(folder).as_posix() for name in KEPT for path in folder.glob(f"*/{name}"))]
    for path in sorted(folder.rglob("*"), reverse=True):  # a folder's content before the folder
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.relative_to(folder).as_posix() not in kept:
            path.unlink()


def make_keys(request: SwarmRequest) -> dict[str, Signer]:
    """Make a key for every role, in 0600 files: nodes, their operators, owner, trainer, orchestrator."""
    names = ["owner", "trainer", *SERVICES]
    for node in nodes(request):
        names += [node.name, operator_of(node.name)]
    keys: dict[str, Signer] = {}
    for name in names:
        path = request.layout.key(name)
        write_secret(path, secrets.token_hex(32))
        keys[name] = load_raw_key(path, CHAIN_ANVIL)
    return keys


def operator_of(node: str) -> str:
    """Return the name of the key of a node's operator."""
    return f"operator-of-{node}"


def make_tasks(request: SwarmRequest) -> TaskSet:
    """Make the run's tasks from the seed, or copy the owner's."""
    scenario = request.scenario
    if scenario.own_tasks is not None:
        TaskSet.open(scenario.own_tasks)
        shutil.copytree(scenario.own_tasks, request.layout.tasks)
        return TaskSet.open(request.layout.tasks)
    return make_task_set(
        request.seed,
        folder=request.layout.tasks,
        families=scenario.families,
        levels=scenario.levels,
        train=scenario.train,
        held_out=scenario.held_out,
    )


def fill_run_folder(run_folder: Path, tasks: Path, model: Path) -> None:
    """Copy what a newcomer gets from the orchestrator: the task set, the tokenizer and the model's configuration.

    tasks: may be the folder's own already.
    """
    run_folder.mkdir(parents=True, exist_ok=True)
    if tasks != run_folder / "tasks":
        shutil.copytree(tasks, run_folder / "tasks")
    for name in FIXED_FILES:
        if (model / name).is_file():
            shutil.copy2(model / name, run_folder / name)


def write_settings(request: SwarmRequest, run: int, names: Sequence[str]) -> None:
    """Write a settings file for each of these processes."""
    for name in names:
        write_atomically(request.layout.config(name), to_toml(settings_of(request, name, run)))


def chain_settings(request: SwarmRequest) -> ChainSettings:
    """Return the settings with which the supervisor itself talks to the chain."""
    return ChainSettings(
        rpc_url=request.rpc_url, chain_id=CHAIN_ANVIL, addresses=request.layout.addresses, poll_seconds=0.25
    )


async def deploy_contracts(request: SwarmRequest, keys: Mapping[str, Signer]) -> None:
    """Give gas to everybody, and deploy the four contracts."""
    settings = chain_settings(request)
    await give_gas(settings, [key.address for key in keys.values()])
    await ensure_deployed(settings, keys["owner"])


async def draw_tokens(request: SwarmRequest, keys: Mapping[str, Signer]) -> None:
    """Draw tokens from the faucet: operators deposit theirs in the Registry, the owner approves Runs for the escrow."""

    async def operator(name: str) -> None:
        async with await Chain.connect(chain_settings(request), keys[name]) as chain:
            await ensure_stock(chain)

    async def owner() -> None:
        async with await Chain.connect(chain_settings(request), keys["owner"]) as chain:
            await asyncio.gather(ensure_tokens(chain, ESCROW), chain.send(token.approve(chain.addresses.runs, ESCROW)))

    await asyncio.gather(owner(), *(operator(operator_of(node.name)) for node in nodes(request)))


def make_draw_tips(request: SwarmRequest) -> dict[str, bytes]:
    """Make the draw secret of every validator, in its folder; return what each registers of it, by name."""
    judges = [node.name for node in nodes(request) if node.role == "validator"]
    return {name: draw_tip(create_draw_secret(request.layout.state(name))) for name in judges}


async def open_run(
    request: SwarmRequest, keys: Mapping[str, Signer], tips: Mapping[str, bytes], task_set: TaskSet
) -> tuple[int, Sequence[Participant]]:
    """Create and fund the run and register every node; return the run's number and the participants."""
    agreed = Terms(
        **local_terms(request),
        trainer=keys["trainer"].address,
        storage_key=keys["orchestrator"].address,
        task_count=task_set.size,
        task_root=task_set.root,
        model_hash=model_hash(request.layout.model),
        tokenizer_hash=tokenizer_hash(request.layout.model),
    )
    check_context(agreed, context_of(request.layout.model))
    settings = chain_settings(request)
    async with await Chain.connect(settings, keys["owner"]) as chain:
        run = await ensure_run(chain, agreed)
        joins = asyncio.gather(
            *(join(settings, keys[operator_of(node.name)], keys[node.name], node, run, tips) for node in nodes(request))
        )
        _, participants = await asyncio.gather(ensure_escrow(chain, run, ESCROW), joins)
    return run, participants


async def join(
    settings: ChainSettings, cold: Signer, hot: Signer, node: Participant, run: int, tips: Mapping[str, bytes]
) -> Participant:
    """Register one node by its operator, with the node's consent. tips: of the validators' draw secrets, by name."""
    role = Role.VALIDATOR if node.role == "validator" else Role.WORKER
    async with await Chain.connect(settings, cold) as chain:
        await ensure_joined(chain, hot, run, role, draw_tip=tips.get(node.name, NO_TIP))
    return replace(node, node=hot.address, operator=cold.address)


async def name_nodes(
    settings: ChainSettings, url: str, run: int, keys: Mapping[str, Signer], nodes: Sequence[Participant]
) -> None:
    """Call each node on the run's page what the swarm calls it, signed by its operator. `url`: the orchestrator's."""
    async with await Chain.connect(settings) as chain:

        async def name(who: Participant) -> None:
            operator = keys[operator_of(who.name)]
            async with OrchestratorClient.on_chain(url, chain, operator) as client:
                await client.announce_name(run, who.node, who.name)

        await asyncio.gather(*map(name, nodes))
