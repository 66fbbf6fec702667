"""Set the stage for a swarm: what must be on chain and on disk before its processes start.

Keys for everybody, gas from Anvil, tokens from the faucet, contracts, a task set and a model, a funded run, and every
node registered with its own stake by its own operator.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from muster.authoring.tasks.generated import make_task_set
from muster.chain.client import Chain
from muster.chain.keys import Signer, load_raw_key, write_secret
from muster.constants import CHAIN_ANVIL
from muster.errors import UsageError
from muster.models.files import FIXED_FILES, context_of, model_hash, tokenizer_hash
from muster.protocol.keys import ZERO_ADDRESS, Keys
from muster.protocol.terms import Terms, check_context
from muster.protocol.terms_file import NewRun
from muster.runtime.files import write_atomically
from muster.settings.toml import to_toml
from muster.swarm.launch import operator_of
from muster.swarm.opening import ensure_escrow, ensure_run, ensure_tokens, ensure_wages
from muster.swarm.plan import ESCROW, WAGES, SwarmRequest, local_terms, settings_of
from muster.swarm.running import RunningSwarm
from muster.tasksets.taskset import TaskSet

MARKER = ".muster-swarm"
"""A file in every folder that a swarm made, so that nothing else is ever deleted."""

KEPT = ("log.jsonl", "output.log", "muster.toml")
"""Of each process, once an interrupted swarm has ended."""

SERVED = ("orchestrator", "origin", "relay")
"""Services that have a key."""
SERVICES = (*SERVED, "explorer")


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
    names = ["owner", "trainer", *SERVED]
    for node in request.local.nodes:
        names += [node.name, operator_of(node.name)]
    keys: dict[str, Signer] = {}
    for name in names:
        path = request.local.key(name)
        write_secret(path, secrets.token_hex(32))
        keys[name] = load_raw_key(path, CHAIN_ANVIL)
    return keys


def make_tasks(request: SwarmRequest) -> TaskSet:
    """Make the run's tasks from the seed, or copy the owner's."""
    scenario = request.scenario
    if scenario.own_tasks is not None:
        TaskSet.open(scenario.own_tasks)
        shutil.copytree(scenario.own_tasks, request.local.tasks)
        return TaskSet.open(request.local.tasks)
    return make_task_set(
        request.seed,
        folder=request.local.tasks,
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
    for name in names:
        write_atomically(request.local.config(name), to_toml(settings_of(request, name, run)))


async def open_run(swarm: RunningSwarm, request: SwarmRequest, task_set: TaskSet) -> None:
    """Create and fund the run, and register every node."""
    keys, model, chosen = swarm.keys, request.local.model, local_terms(request)
    agreed = Terms(
        **chosen,
        task_count=task_set.size,
        task_root=task_set.root,
        tools_root=task_set.document.tools_root,
        model_hash=model_hash(model),
        tokenizer_hash=tokenizer_hash(model),
    )
    check_context(agreed, context_of(model))
    async with await Chain.connect(request.local.chain, keys["owner"]) as chain:
        first = Keys(keys["trainer"].address, keys["orchestrator"].address, ZERO_ADDRESS)
        new = NewRun(agreed, first)
        await ensure_tokens(chain, ESCROW + WAGES)
        swarm.run = await ensure_run(chain, new)
        await asyncio.gather(
            ensure_escrow(chain, swarm.run, new, ESCROW), ensure_wages(chain, swarm.run, WAGES), swarm.register()
        )
