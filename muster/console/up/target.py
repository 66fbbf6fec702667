"""Find out which node a command means: from a URL, a name, a folder, or the one node that this machine has."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

import typer
from pydantic import AfterValidator, model_validator

from muster.clients.join import CheckedRun, fetch_run
from muster.console.node.nodes import GAS_DAYS, GasOption
from muster.console.options import Request
from muster.console.session import Options, Session, nodes_folder
from muster.console.up.place import (
    Identity,
    NodePlace,
    NodeRole,
    check_identity,
    choose_place,
    folder_name,
    read_node,
    read_nodes,
    the_only_node,
)
from muster.errors import UsageError


class UpRequest(Request):
    """What a person typed: the options of `muster up`."""

    url: Annotated[str | None, typer.Argument()] = None
    """Address of the run, from its page's join box; else the node that is here."""
    role: NodeRole | None = None
    """What to be; else a worker."""
    name: Annotated[str, AfterValidator(folder_name)] | None = None
    """Name of the node: of its folder, and shown to others. Else run-N-ROLE."""
    work_class: Annotated[int, typer.Option("--class")] = 0
    """Work class of this machine (muster run show)."""
    operator: str | None = None
    """Wallet that owns stake and earnings: a path or a name. Else one is made."""
    password_file: Path | None = None
    """File (mode 0600) with that wallet's password."""
    rpc_url: str | None = None
    """Endpoint of the chain; else the one that is known for it."""
    folder: Path | None = None
    """Folder of the node; else ~/.muster/nodes/NAME."""
    gas_days: GasOption = GAS_DAYS
    check_engine: bool = False
    """First see whether validators would accept this engine's work."""
    start: Annotated[bool, typer.Option("--start/--no-start")] = True
    """Run it; or only join."""

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        """Raise UsageError for options that do not go together."""
        if self.name is not None and self.folder is not None:
            raise UsageError("--name and --folder both say where the node is", hint="leave out one of them")
        return self


@dataclass(frozen=True)
class NodeTarget:
    place: NodePlace
    role: NodeRole
    found: CheckedRun | None
    """Its run, where a URL was given; None: its settings say where it is."""

    @property
    def is_made(self) -> bool:
        return self.place.config.exists()

    def session(self, outer: Session) -> Session:
        """Return a session with the settings of the node."""
        options = Options(self.place.config.absolute(), outer.options.json, outer.options.dry_run, outer.options.yes)
        return Session(options, stderr=outer.stderr)


def find_target(session: Session, request: UpRequest) -> NodeTarget:
    """Find the node; ask for the run's address if it is not known. Writes nothing.

    Raises UsageError without a terminal to ask on or if several nodes match, and as `fetch_run`.
    """
    folder = nodes_folder() if request.folder is None else request.folder.expanduser().absolute()
    if request.url is None and (known := _known(folder, request)) is not None:
        return known
    url = request.url if request.url is not None else _ask_for_url()
    found = asyncio.run(fetch_run(url, request.rpc_url))
    checked = "its contracts, run and signature are right"
    session.note(f"run {found.run} at {found.orchestrator}, on chain {found.book.chain_id}: {checked}")
    return NodeTarget(_place_for(folder, request, found), request.role or "worker", found)


def _known(folder: Path, request: UpRequest) -> NodeTarget | None:
    """Return a node that was made before, as the request names it; None where there is none."""
    if request.folder is not None:
        node = read_node(NodePlace(folder))
    else:
        made, broken = read_nodes(folder)
        if request.name in broken:
            raise broken[request.name]
        node = the_only_node(made, request.name, request.role)
    if node is None:
        return None
    return NodeTarget(node.place, request.role or node.identity.role or "worker", None)


def _place_for(folder: Path, request: UpRequest, found: CheckedRun) -> NodePlace:
    """Return the place of the run's node on this machine, made or not."""
    wanted = Identity(found.book.chain_id, found.book.runs, found.run, request.role or "worker")
    if request.folder is None:
        return choose_place(folder, *read_nodes(folder), wanted, request.name)
    place = NodePlace(folder)
    if (node := read_node(place)) is not None:
        check_identity(node, wanted)
    return place


def _ask_for_url() -> str:
    if not sys.stdin.isatty():
        raise UsageError("which run is not known", hint="muster up URL, from the join box of the run's page")
    return typer.prompt("Address of the run, from the join box of its page", err=True)
