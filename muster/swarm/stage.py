"""What must be on chain and on disk before a swarm's processes start.

Keys for everybody, gas from Anvil, tokens from the faucet, contracts, a task set and a model, a funded run, and every
node registered with its own stake by its own operator.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from muster.chain.client import Chain, event_of
from muster.chain.contracts import runs, token
from muster.chain.contracts.registry import Role
from muster.chain.contracts.runs import RunCreated
from muster.chain.deploy import deploy
from muster.chain.devchain import DevChain
from muster.chain.keys import Signer, load_raw_key, write_secret
from muster.chain.rpc import connect
from muster.constants import CHAIN_ANVIL
from muster.draw_secret import create_draw_secret, draw_tip
from muster.errors import UsageError
from muster.model_files import FIXED_FILES, model_hash, tokenizer_hash
from muster.settings import ChainSettings
from muster.swarm.plan import ESCROW, Layout, NodePlan, Request, nodes, settings_of, terms
from muster.swarm.summary import Participant
from muster.tasks import TaskSet, make_task_set, save_task_set
from muster.toml import to_toml

MARKER = ".muster-swarm"
"""A file in every folder that a swarm made, so that nothing else is ever deleted."""

SERVICES = ("orchestrator", "origin", "relay", "trainer")


def fresh_folder(folder: Path) -> None:
    """An empty folder for a swarm; one that an earlier swarm made is cleared. Raises UsageError for any other."""
    if folder.exists():
        if any(folder.iterdir()) and not (folder / MARKER).exists():
            raise UsageError(f"{folder} holds something that no swarm made", hint="choose another with --folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, mode=0o700)
    (folder / MARKER).touch()


def make_keys(request: Request) -> dict[str, Signer]:
    """A key for every role: nodes, their operators, owner, trainer, orchestrator. Written in 0600 files."""
    layout = Layout(request.folder)
    names = ["owner", *SERVICES]
    for node in nodes(request):
        names += [node.name, operator_of(node.name)]
    keys: dict[str, Signer] = {}
    for name in names:
        path = layout.key(name)
        write_secret(path, secrets.token_hex(32))
        keys[name] = load_raw_key(path, CHAIN_ANVIL)
    return keys


def operator_of(node: str) -> str:
    """Name of the operator's key of a node."""
    return f"operator-of-{node}"


def make_tasks(request: Request) -> TaskSet:
    """The run's tasks, from the seed."""
    task_set = make_task_set(request.seed)
    save_task_set(task_set, Layout(request.folder).tasks)
    return task_set


def fill_run_folder(layout: Layout) -> None:
    """What a newcomer gets from the orchestrator: the task set, the tokenizer and the model's configuration."""
    layout.run_folder.mkdir(parents=True)
    shutil.copy2(layout.tasks, layout.run_folder / "tasks.jsonl")
    for name in FIXED_FILES:
        if (layout.model / name).is_file():
            shutil.copy2(layout.model / name, layout.run_folder / name)


def write_settings(request: Request, run: int) -> None:
    """One settings file per process."""
    layout = Layout(request.folder)
    for name in (*SERVICES, *(node.name for node in nodes(request))):
        path = layout.config(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(to_toml(settings_of(request, name, run)), encoding="utf-8")


def chain_settings(request: Request) -> ChainSettings:
    """How the supervisor itself talks to the chain."""
    return ChainSettings(
        rpc_url=f"http://127.0.0.1:{request.ports.chain}",
        chain_id=CHAIN_ANVIL,
        addresses=Layout(request.folder).addresses,
        poll_seconds=0.25,
    )


async def deploy_contracts(request: Request, keys: Mapping[str, Signer]) -> None:
    """Gas for everybody, and the four contracts."""
    settings = chain_settings(request)
    rpc = await connect(settings)
    try:
        await (await DevChain.of(rpc)).fund(key.address for key in keys.values())
    finally:
        await rpc.close()
    await deploy(settings, keys["owner"])


async def draw_tokens(request: Request, keys: Mapping[str, Signer]) -> None:
    """Tokens from the faucet: operators put theirs into the Registry, the owner allows Runs to take the escrow."""

    async def operator(name: str) -> None:
        async with await Chain.connect(chain_settings(request), keys[name]) as chain:
            await chain.act(token.faucet())
            # Stake, case fees and jury deposits all come out of the free balance.
            await chain.deposit_with_permit(await chain.ask(token.balance_of(keys[name].address)))

    async def owner() -> None:
        async with await Chain.connect(chain_settings(request), keys["owner"]) as chain:
            await asyncio.gather(chain.act(token.faucet()), chain.act(token.approve(chain.addresses.runs, ESCROW)))

    await asyncio.gather(owner(), *(operator(operator_of(node.name)) for node in nodes(request)))


def make_draw_tips(request: Request) -> dict[str, bytes]:
    """The draw secret of every validator, in its folder; what each registers of it, by name."""
    layout = Layout(request.folder)
    judges = [node.name for node in nodes(request) if node.role == "validator"]
    return {name: draw_tip(create_draw_secret(layout.state(name))) for name in judges}


async def open_run(
    request: Request, keys: Mapping[str, Signer], tips: Mapping[str, bytes], task_set: TaskSet
) -> tuple[int, Sequence[Participant]]:
    """Create and fund the run and register every node; the run's number and who takes part."""
    layout = Layout(request.folder)
    agreed = terms(
        trainer=keys["trainer"].address,
        storage_key=keys["orchestrator"].address,
        task_count=task_set.size,
        task_root=task_set.root,
        model=model_hash(layout.model),
        tokenizer=tokenizer_hash(layout.model),
    )
    async with await Chain.connect(chain_settings(request), keys["owner"]) as chain:
        run = event_of(await chain.act(runs.create_run(agreed.to_chain())), RunCreated).run
        joins = asyncio.gather(*(join(request, keys, tips, node, run) for node in nodes(request)))
        _, participants = await asyncio.gather(chain.act(runs.fund(run, ESCROW)), joins)
    return run, participants


async def join(
    request: Request, keys: Mapping[str, Signer], tips: Mapping[str, bytes], node: NodePlan, run: int
) -> Participant:
    """One operator registers one node, with its consent."""
    hot, cold = keys[node.name], keys[operator_of(node.name)]
    role = Role.VALIDATOR if node.name in tips else Role.WORKER
    async with await Chain.connect(chain_settings(request), cold) as chain:
        await chain.join(hot, run, role, draw_tip=tips.get(node.name, bytes(32)))
    return Participant(node.name, node.role, hot.address, cold.address, node.honest)
