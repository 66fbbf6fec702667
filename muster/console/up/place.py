"""Where a node's files are on this machine, and which of its nodes a command means.

Each node has a folder below ~/.muster/nodes: settings, address book, the node's key with its password, the process's
state and log. All paths in its settings are relative to the folder, so it can be moved. A node is found by its chain,
contracts, run and role, and by its name if there are several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from muster.chain.types import AddressBook
from muster.clients.join import CheckedRun
from muster.clients.visiting import run_settings
from muster.console.node.nodes import NAME_HINT, plain_name
from muster.errors import ConfigError, UsageError
from muster.runtime.files import write_atomically
from muster.settings.sources import read_settings
from muster.settings.toml import to_toml

NodeRole = Literal["worker", "validator"]


@dataclass
class NodePlace:
    """The folder of one node, and what its files are called when it is made. Afterwards its settings say so."""

    folder: Path

    def __post_init__(self) -> None:
        self.name = self.folder.name
        self.config = self.folder / "muster.toml"
        self.addresses = self.folder / "addresses.json"
        self.keystore = self.folder / "node.json"
        self.password_file = self.folder / "node.password"
        """Of the node's key, with which its process starts by itself."""
        self.state = self.folder / "state"
        self.log = self.folder / "log.jsonl"
        """Of the process, in JSON lines."""
        self.output = self.folder / "output.log"
        """The stdout and stderr of a process that muster up runs."""


@dataclass(frozen=True)
class Identity:
    """What a node is for."""

    chain_id: int
    runs: str
    """Address of the contract."""
    run: int
    role: NodeRole | None
    """None: its settings do not say."""

    def fits(self, other: Identity) -> bool:
        """Return whether both may be the same node's."""
        same = (self.chain_id, self.runs, self.run) == (other.chain_id, other.runs, other.run)
        return same and (self.role is None or other.role is None or self.role == other.role)


@dataclass(frozen=True)
class MadeNode:
    """A node that has its settings file."""

    place: NodePlace
    identity: Identity


def read_node(place: NodePlace) -> MadeNode | None:
    """Return the node in a folder, None where it has no settings file yet. Raises ConfigError for one that is broken.

    Its role is that of the state folder that its settings name.
    """
    if not place.config.exists():
        return None
    loaded = read_settings(place.config.absolute())
    settings = loaded.settings
    named = [role for role in ("worker", "validator") if loaded.source(f"{role}.state_dir") != "default"]
    book = AddressBook.load(settings.chain.addresses)
    role: NodeRole | None = named[0] if len(named) == 1 else None  # type: ignore[assignment]
    return MadeNode(place, Identity(book.chain_id, book.runs, settings.run, role))


def read_nodes(folder: Path) -> tuple[list[MadeNode], dict[str, ConfigError]]:
    """Return the nodes below a folder, and why others cannot be read, by name."""
    found: list[MadeNode] = []
    broken: dict[str, ConfigError] = {}
    for config in sorted(folder.glob("*/muster.toml")):
        try:
            node = read_node(NodePlace(config.parent))
        except ConfigError as error:
            broken[config.parent.name] = error
            continue
        found += [node] if node is not None else []
    return found, broken


def folder_name(name: str) -> str:
    """Return the name of a node as its folder and its run's page have it. Raises UsageError for none that may be."""
    plain = plain_name(name)
    if not plain or plain.startswith("."):
        raise UsageError(f"no folder of a node is called {plain!r}", hint=NAME_HINT)
    return plain


def choose_place(
    folder: Path,
    made: Sequence[MadeNode],
    broken: Mapping[str, ConfigError],
    wanted: Identity,
    name: str | None,
) -> NodePlace:
    """Return the place of the node of this identity: where it is already, else a name that is free below `folder`.

    Raises UsageError where several nodes fit, and the error of a broken node whose place this may be.
    """
    names = {node.place.name: node for node in made}
    if name is not None:
        if name in broken:
            raise broken[name]
        if name in names:
            check_identity(names[name], wanted)
        return NodePlace(folder / name)
    fitting = [node.place for node in made if node.identity.fits(wanted)]
    if len(fitting) > 1:
        listed = ", ".join(place.name for place in fitting)
        raise UsageError(f"several nodes of this run are here: {listed}", hint="add --name NAME")
    if fitting:
        return fitting[0]
    plain, number = f"run-{wanted.run}-{wanted.role}", 1
    while (candidate := plain if number == 1 else f"{plain}-{number}") in names:  # of other runs with this number
        number += 1
    if candidate in broken:
        raise broken[candidate]
    return NodePlace(folder / candidate)


def check_identity(node: MadeNode, wanted: Identity) -> None:
    """Raise ConfigError where a node is for something else."""
    if node.identity.fits(wanted):
        return
    there = node.identity
    raise ConfigError(
        f"{node.place.folder} holds a {there.role or 'node'} of run {there.run} on chain {there.chain_id}, not a "
        f"{wanted.role} of run {wanted.run} on chain {wanted.chain_id} with the contracts of this document",
        hint="choose another name: --name NAME",
    )


def the_only_node(made: Sequence[MadeNode], name: str | None, role: NodeRole | None) -> MadeNode | None:
    """Return the node that a command without a URL means; None where none was made. Raises UsageError for several."""
    found = [node for node in made if name in (None, node.place.name) and role in (None, node.identity.role)]
    if len(found) > 1:
        listed = ", ".join(node.place.name for node in found)
        raise UsageError(f"several nodes are here: {listed}", hint="muster up --name NAME")
    return found[0] if found else None


# The settings file


def settings_text(place: NodePlace, found: CheckedRun, role: NodeRole) -> str:
    """Return the settings of a new node: all that its process needs, with paths relative to its folder."""
    values = {
        **run_settings(found, place.addresses.name),
        "name": place.name,
        "keys.keystore": place.keystore.name,
        "keys.password_file": place.password_file.name,
        f"{role}.state_dir": place.state.name,
        "log.file": place.log.name,
    }
    head = (
        f"# A {role} of run {found.run}, made by muster up, which continues with it: nothing has to be edited.\n"
        "# muster config show lists every setting. Relative paths begin at the folder of this file.\n"
    )
    return head + to_toml(values)


def write_node(place: NodePlace, found: CheckedRun, role: NodeRole) -> None:
    """Write address book and settings of a new node, the settings last: with them it is made."""
    found.book.save(place.addresses)
    write_atomically(place.config, settings_text(place, found, role))


def check_addresses(place: NodePlace, found: CheckedRun, rpc_url: str | None) -> None:
    """Raise ConfigError where a node's settings lead elsewhere than the run is, or than the endpoint that was typed."""
    settings = read_settings(place.config.absolute()).settings
    for key, there, wanted in (
        ("orchestrator.url", settings.orchestrator.url, found.orchestrator),
        ("chain.rpc_url", settings.chain.rpc_url, rpc_url or settings.chain.rpc_url),
    ):
        if there.rstrip("/") != wanted.rstrip("/"):
            raise ConfigError(f"{key} in {place.config} is {there}, not {wanted}", hint=f"set {key} there, then again")
