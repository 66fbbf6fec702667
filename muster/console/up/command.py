"""muster up: find the node, prepare it, show what is at stake, ask, do what is left to do, start it and show it.

Each part that asks a person runs between two event loops: Ctrl-C at a question ends the command at once.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Never

import typer

from muster.console.command import command
from muster.console.money.wallet import OPERATOR, address_of
from muster.console.node.logs import LineFilter, follow_lines, shown
from muster.console.node.status import read_status
from muster.console.session import NEW_LINE, Session, as_table, wallet_path
from muster.console.up.facts import UNKNOWN
from muster.console.up.prepare import (
    LocalNode,
    OperatorWallet,
    ask_for_operator,
    check_node,
    make_node,
    read_steps,
    rehearse_node,
    steps_of_registered,
)
from muster.console.up.running import NodeProcess, end_left
from muster.console.up.setup import bring_ether, help_without_operator, keep_gas, take_steps
from muster.console.up.steps import NodeFacts, SetupSteps
from muster.console.up.target import NodeTarget, UpRequest, find_target
from muster.contracts.registry import Status
from muster.errors import FinishedError, MusterError, UsageError
from muster.runtime.journal import FolderLock, lock_holder
from muster.runtime.printable import printable
from muster.runtime.units import Tokens
from muster.swarm.supervisor import interruptible

app = typer.Typer()

LAST_LINES: Final = 10
"""Lines of a node's log that are shown before those that are added."""


@command(app, "up", spends=True)
def up(session: Session, request: UpRequest) -> None:
    """Make a node of this machine: join a run, work for it, and watch it. Run the same command to resume.

    Asks before anything is staked. Nothing has to be edited: keys, settings, state and log are in the node's folder.
    """
    check_session(session, request)
    # 1. Which node is meant, and whether it runs already.
    target = find_target(session, request)
    if session.options.dry_run:
        session.result({"dry_run": True, **look(session, target, request)}, "nothing was written or sent")
        return
    if target.is_made and (holder := lock_holder(target.place.folder)) is not None:
        session.note(f"{target.place.name} is run by process {holder}, another muster up: this only watches it")
        watch_only(session, target)
        return
    if not target.is_made and not session.options.yes and not sys.stdin.isatty():
        hint = "add --yes and --password-file FILE (mode 0600)"
        raise UsageError("joining needs a confirmation, and there is no terminal to ask on", hint=hint)

    # 2. What can fail before anything is made, or money moves; the terms, and whether they are agreed to.
    if not target.is_made:
        look(session, target, request)

    # 3. Prepare it, ask whatever is left to ask, and go on.
    wallet = ask_wallet(session, target, request)
    target.place.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with FolderLock(target.place.folder):
        node, facts, steps = prepare(session, target, request, wallet)
        result = asyncio.run(interruptible(go_on(node, request, facts, steps)))
    if result is not None:
        session.result(result)


def check_session(session: Session, request: UpRequest) -> None:
    """Raise UsageError for global options that do not go with the request."""
    if session.options.config is not None:
        hint = f"--folder {session.options.config.parent}"
        raise UsageError("muster up makes the settings file itself; name the node's folder instead", hint=hint)
    if session.options.json and request.start and not session.options.dry_run:
        raise UsageError("--json prints one document, and a node runs until Ctrl-C", hint="add --no-start")


def ask_wallet(session: Session, target: NodeTarget, request: UpRequest) -> OperatorWallet | None:
    """Return the operator's wallet with its password if the setup needs it, else None.

    A node that joined before starts without it if the command is unattended and has no password.
    """
    left = asyncio.run(steps_of_registered(session, target, request))
    attended = request.password_file is not None or sys.stdin.isatty()
    if left is not None and (left.nothing or not attended):
        return None
    path = wallet_path(request.operator or OPERATOR)
    if request.operator is None and not path.exists() and request.password_file is None:
        session.note(f"the operator, who owns stake and earnings, gets a wallet: {path}. Choose its password")
    return ask_for_operator(request.operator, request.password_file)


def prepare(
    session: Session, target: NodeTarget, request: UpRequest, wallet: OperatorWallet | None
) -> tuple[LocalNode, NodeFacts, SetupSteps]:
    """Make the node on disk, check the machine, show what is at stake and ask.

    Raises typer.Abort where the answer is no.
    """
    was_made = target.is_made
    node = asyncio.run(make_node(session, target, request, wallet))
    facts, steps, rows = asyncio.run(read_steps(node, request))
    if was_made and facts.status == Status.NONE:
        asyncio.run(check_node(node, request))
    if was_made and rows and node.operator is not None:
        session.preview(title_of(node, steps), rows)
    return node, facts, steps


def title_of(node: LocalNode, steps: SetupSteps) -> str:
    if steps.join:
        return f"Join run {node.session.settings.run} as a {node.role}"
    return f"Go on with {node.place.name}"


def look(session: Session, target: NodeTarget, request: UpRequest) -> dict[str, Any]:
    """Check this machine, show what a new node would be and stake, and ask; return that. Writes and sends nothing.

    Raises typer.Abort where the answer is no.
    """
    wallet = wallet_path(request.operator or OPERATOR)
    with tempfile.TemporaryDirectory(prefix="muster-up-") as folder:
        node = rehearse_node(session, target, Path(folder), wallet)
        facts, steps, rows = asyncio.run(read_steps(node, request))
        if facts.status == Status.NONE:
            asyncio.run(check_node(node, request))
        session.preview(title_of(node, steps), rows)
    return {**document_of(node, facts), "steps": asdict(steps)}


def document_of(node: LocalNode, facts: NodeFacts) -> dict[str, Any]:
    joining = facts.joining
    return {
        "name": node.place.name,
        "role": node.role,
        "run": joining.run,
        "node": None if joining.node == UNKNOWN else joining.node,
        "operator": None if joining.operator == UNKNOWN else joining.operator,
        "stake": Tokens(joining.stake),
    }


async def go_on(node: LocalNode, request: UpRequest, facts: NodeFacts, steps: SetupSteps) -> dict[str, Any] | None:
    """Take the steps that are left, start the node and show it. Return what was done; None: it ran, and was shown."""
    session = node.session
    await end_left(node)
    async with node.chain() as chain:
        if node.operator is None:
            await help_without_operator(node, chain, facts, steps)
            steps = SetupSteps()
        elif steps.ether:
            await bring_ether(node, chain, steps.ether)
        # 1. Without a process of our own.
        holder = lock_holder(node.state)
        if not request.start or holder is not None:
            await take_steps(node, chain, facts, steps, request.name)
        # 2. With one: its engine starts while the stake is on its way.
        else:
            await run_node(
                node,
                lambda: take_steps(node, chain, facts, steps, request.name),
                lambda: keep_gas(node, chain, facts.joining),
            )
            return None
    if holder is not None and request.start:
        session.note(f"process {holder} runs it, a service or another command: this only watches it")
        await show_node(node)
    return document_of(node, facts) | {"config": node.place.config}


async def run_node(
    node: LocalNode, work: Callable[[], Awaitable[None]], keep: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Run the node's process until it ends for good; do some work meanwhile, then show and `keep` it.

    Raises as it ended.
    """
    async with NodeProcess(node) as process:
        try:
            await process.guard(work())
            keeper = asyncio.create_task(keep(), name="keep the node's gas")
            try:
                await process.guard(show_node(node))
            finally:
                keeper.cancel()
                await asyncio.gather(keeper, return_exceptions=True)
        except FinishedError as end:
            said = f"{end}\n  next: {end.hint}" if end.hint else str(end)
            node.session.note(printable(said, kept=NEW_LINE))


async def show_node(node: LocalNode) -> Never:
    """Show a node until cancelled: its status and the address of its run's page once, then its log."""
    session = node.session
    settings = session.settings
    session.note(f"{node.place.name}: {node.role} {node.address} of run {settings.run}, {settings.orchestrator.url}/")
    try:
        session.stderr.print(as_table(await read_status(session, node.address)), markup=False)
    except MusterError as error:
        session.note(f"its status is not known: {printable(str(error))}")
    log = node.log or node.place.output
    await follow_lines(log, LineFilter(), LAST_LINES, lambda line: session.note(shown(line)))


def watch_only(session: Session, target: NodeTarget) -> None:
    """Show a node that another process runs, until Ctrl-C."""

    async def watch() -> None:
        own = target.session(session)
        node = LocalNode(own, target.place, target.role, await address_of(own, None))
        await show_node(node)

    asyncio.run(interruptible(watch()))
