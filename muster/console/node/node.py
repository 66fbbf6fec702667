"""muster node: all nodes of an operator, or of a folder of settings files, in one table; and what a node is called."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from eth_utils.address import is_address, to_checksum_address

from muster.chain.client import Chain
from muster.chain.keys import read_address
from muster.clients.orchestrator import OrchestratorClient
from muster.console.command import command
from muster.console.money.wallet import OPERATOR, address_of
from muster.console.node import nodes
from muster.console.node.status import read_node, read_registered
from muster.console.session import Options, Session, as_table, nodes_folder, wallet_path
from muster.contracts.registry import Registered, Role, Status
from muster.errors import MusterError, UsageError
from muster.runtime.units import Ether, Tokens

app = typer.Typer()

AT_ONCE: Final = 4
"""Nodes that are asked about at the same time."""

MAX_NODES: Final = 1_000


@dataclass(frozen=True)
class NodeRow:
    """What is known of one node. None: not known, or not for a node of this kind."""

    address: str = ""
    name: str = ""
    run: int | None = None
    role: str = ""
    status: str = ""
    accepted: int | None = None
    pending: int | None = None
    """Commitments without a final verdict."""
    rejected: int | None = None
    in_window: Tokens | None = None
    """Token wei of commitments that are not settled."""
    claimable: Tokens | None = None
    gas: Ether | None = None
    remark: str = ""
    """What it needs, or why some of this is not known."""


@command(app, "list", of_node=True)
async def list_nodes(
    session: Session,
    operator: Annotated[
        str | None, typer.Option("--operator", help="Address, wallet name or path: all nodes that it registered.")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder of settings files; else ~/.muster/nodes.")] = None,
) -> None:
    """List nodes: those of an operator, or of the settings files in a folder; with --config or --node only that one."""
    if operator is not None:
        rows = await _of_operator(session, operator_address(operator))
    else:
        rows = await _of_files(session, settings_files(session, folder))
    session.result([asdict(row) for row in rows], as_table([_for_people(row) for row in rows]))


@command(app, "name", operator=True, of_node=True)
async def name_node(
    session: Session,
    name: Annotated[str, typer.Argument(help='What the run\'s page calls the node; "" for nothing.')],
    node: nodes.NodeOption = None,
) -> None:
    """Name a node on the run's page, signed by its operator; "" removes the name. It can be changed once a minute."""
    # 1. What it is to be called.
    name, address = nodes.plain_name(name), await address_of(session, node)

    # 2. Whose node it is, on chain.
    async with session.operator() as chain:
        found, operator = await nodes.registered(chain, address), chain.signer
        if found.operator != operator.address:
            raise UsageError(
                f"{address} was registered by {found.operator}, and this is the key of {operator.address}",
                hint="name the operator's wallet: --operator WALLET",
            )
        if found.run != session.settings.run:
            raise UsageError(
                f"{address} is a node of run {found.run}, and the settings are for run {session.settings.run}",
                hint=f"set run = {found.run}, and orchestrator.url to that run's",
            )

        # 3. Ask, sign, send.
        document = {"run": found.run, "node": address, "name": name}
        shown = {"node": address, "name": name or "(none)", "seen by": "everybody who opens the run's page"}
        if not session.preview(f"Name a node of run {found.run}", shown):
            session.result({"dry_run": True, **document}, "nothing was sent")
            return
        await nodes.announce_name(session, chain, found.run, address, name)
    session.result(document)


@command(app, "gas", operator=True, of_node=True)
async def send_gas(
    session: Session,
    node: nodes.NodeOption = None,
    days: Annotated[float, typer.Option(help="Days that it should last, at the node's pace.", min=1)] = 7,
) -> None:
    """Send a node's key ether for gas from the operator's wallet: that of --operator, else the one of muster up."""
    # 1. The operator's key, and what the node lacks.
    address, wallet = await address_of(session, node), session.options.operator
    if wallet is None and not wallet_path(wallet := OPERATOR).exists():
        raise UsageError("gas comes from the operator's wallet", hint="add --operator NAME (muster wallet show)")
    signer = await session.signer(wallet, session.options.password_file)
    async with session.chain(signer) as chain:
        state = await read_registered(session, chain, address)
        most = nodes.most_gas(await chain.terms(state.node.run), state.node.role)
        held = replace(state.gas, hourly=state.gas.hourly or most)
        wei = max(0, held.needed(days * nodes.DAY_HOURS) - held.balance)
        document = {"node": address, "operator": signer.address, "balance": Ether(held.balance), "amount": Ether(wei)}

        # 2. Ask, send.
        if not wei:
            session.result(document, f"nothing to send: {held.sentence}")
            return
        if not session.preview("Send gas to a node", {**document, "lasts": f"{days:g} days at its pace"}):
            session.result({"dry_run": True, **document}, "nothing was sent")
            return
        await nodes.send_gas(session, chain, address, wei)
    session.result(document)


def operator_address(operator: str) -> str:
    """Return the address of an operator, given by address, wallet name or path. Raises ConfigError."""
    return to_checksum_address(operator) if is_address(operator) else read_address(wallet_path(operator))


def settings_files(session: Session, folder: Path | None) -> list[Path]:
    """Return the settings files to list: the one given, else those of the folder, else the one that holds here.

    Raises UsageError where there is none, and for more than MAX_NODES.
    """
    if session.options.config is not None:
        return [session.options.config]
    place = (folder or nodes_folder()).expanduser()
    found = [*sorted(place.glob("*.toml")), *sorted(place.glob("*/muster.toml"))]
    if not found and folder is None and session.config_path is not None:
        found = [session.config_path]
    if not found:
        hint = "muster up URL makes one; or name settings (--config), a folder (--folder) or an --operator"
        raise UsageError(f"there is no settings file in {place}", hint=hint)
    if len(found) > MAX_NODES:
        raise UsageError(f"{len(found)} settings files; at most {MAX_NODES} are listed", hint="name a folder: --folder")
    return found


async def _of_files(session: Session, files: Sequence[Path]) -> list[NodeRow]:
    """Return a row for each file; what fails for one says so in its row."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def row_of(path: Path) -> NodeRow:
        async with limit:
            own = Session(Options(config=path, json=session.options.json), stderr=session.stderr)
            row = NodeRow(name=path.parent.name if path.name == "muster.toml" else path.stem)
            try:
                row = replace(row, name=own.settings.name or row.name, run=own.settings.run)
                row = replace(row, address=await address_of(own, None))
                async with own.chain() as chain, own.orchestrator(chain) as client:
                    return await _read(chain, client, row, own.settings.run)
            except MusterError as error:
                return replace(row, remark=str(error))

    return list(await asyncio.gather(*map(row_of, files)))


async def _of_operator(session: Session, operator: str) -> list[NodeRow]:
    """Return a row for each node that an operator registered, in the order of registration.

    Only of nodes of the settings' run the orchestrator of the settings has a report.
    """
    limit = asyncio.Semaphore(AT_ONCE)
    async with session.chain() as chain:
        found = [one for one in await chain.all_events(Registered) if one.operator == operator]
        if len(found) > MAX_NODES:
            session.note(f"{operator} registered {len(found)} nodes: only the last {MAX_NODES} are listed")
        async with session.orchestrator(chain) as client:

            async def row_of(address: str) -> NodeRow:
                async with limit:
                    return await _read(chain, client, NodeRow(address), session.settings.run)

            return list(await asyncio.gather(*(row_of(one.node) for one in found[-MAX_NODES:])))


async def _read(chain: Chain, client: OrchestratorClient, row: NodeRow, served: int) -> NodeRow:
    """Fill a row from the chain, and from the orchestrator of run `served` where it answers."""
    try:
        state = await read_node(chain, client, row.address, served=served)
    except MusterError as error:
        return replace(row, remark=str(error))
    node, report = state.node, state.report
    row = replace(row, gas=Ether(state.gas.balance))
    if node.status == Status.NONE:
        return replace(row, status="not joined")
    row = replace(row, run=node.run, role=node.role.name.lower(), status=node.status.name.lower())
    remarks = [f"low on gas: {state.gas.refill}"] if state.low_on_gas else []
    if node.role == Role.WORKER:
        row = replace(row, in_window=state.in_window, claimable=Tokens(state.claimable))
        remarks += [f"no report: {state.problem}"] if state.problem else []
        if report is not None:
            rejected = sum(report.rejected.values())
            row = replace(row, accepted=report.accepted, pending=state.pending, rejected=rejected)
    return replace(row, remark="; ".join(remarks))


def _for_people(row: NodeRow) -> dict[str, Any]:
    """Return a row with no column that wraps: addresses by their ends, and reasons last."""
    address = f"{row.address[:8]}…{row.address[-4:]}" if row.address else ""
    return asdict(row) | {"address": address}
