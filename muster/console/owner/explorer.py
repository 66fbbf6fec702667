"""muster explorer: show a run to people, from its chain and its log: a stranger can, for any run.

Settings, address book, database and files are in one folder for each run, where the same command resumes.
"""

from __future__ import annotations

import asyncio
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import Field

from muster.chain.types import AddressBook
from muster.clients.join import CheckedRun, fetch_run
from muster.clients.visiting import run_settings
from muster.console.command import command
from muster.console.options import Request
from muster.console.session import Session
from muster.errors import ConfigError, UsageError
from muster.runtime.files import write_atomically
from muster.settings.schema import ExplorerSettings
from muster.settings.sources import load_settings
from muster.settings.toml import to_toml
from muster.swarm.supervisor import free_ports

app = typer.Typer()

HEAD: Final = """# The explorer of run {run}, made by muster explorer, which keeps what is changed here.
# muster config show lists every setting. Relative paths begin at the folder of this file.
"""


class ExplorerRequest(Request):
    """The options of `muster explorer`."""

    url: Annotated[str | None, typer.Argument()] = None
    """Address of the run; else the settings file of --config says which run it is."""
    rpc_url: str | None = None
    """Endpoint of the chain; else the one that is known for it."""
    folder: Path | None = None
    """Folder of settings, database and files; else one of the run in ~/.muster/explorers."""
    host: str | None = None
    """Address to listen on, 0.0.0.0 for all; else 127.0.0.1."""
    port: int | None = Field(default=None, ge=0, le=65535)
    """Port to listen on; 0 takes a free one. Else 8800."""


@command(app, "explorer", spends=True)
def explorer(session: Session, request: ExplorerRequest) -> None:
    """Show a run on a page of your own, until interrupted: its chain and its log are all that it needs.

    No key is needed, and nothing is sent. Run the same command to resume; the folder can be deleted at any time.
    """
    if request.url is None:
        if given := request.given("rpc_url", "folder", "host", "port"):
            raise UsageError(f"{given[0]} goes with the address of a run", hint="muster explorer URL")
        if session.config_path is None:
            raise UsageError("which run is meant is not known", hint="muster explorer URL, or add --config FILE")
        session.become("explorer")
    if session.options.config is not None:
        raise UsageError("an address stands for a settings file", hint="leave out --config, or the address")

    # 1. The run, and what was set before.
    found = asyncio.run(fetch_run(request.url, request.rpc_url))
    folder = folder_of(found) if request.folder is None else request.folder.expanduser().absolute()
    config = folder / "muster.toml"
    values = settings_of(found, read_values(config, found), request)
    address = page_address(str(values["explorer.host"]), int(str(values["explorer.port"])))
    document = {"run": found.run, "orchestrator": found.orchestrator, "config": config, "page": address}
    if session.options.dry_run:
        would = f"would write {config} and show run {found.run} at {address}; nothing was written"
        session.result({"dry_run": True, **document}, would)
        return

    # 2. Its folder, and the process.
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found.book.save(folder / "addresses.json")
    write_atomically(config, HEAD.format(run=found.run) + to_toml(values))
    session.result(document, f"the page of run {found.run}: {address}")
    Session(replace(session.options, config=config)).become("explorer")


def folder_of(found: CheckedRun) -> Path:
    """Return the folder of a run's explorer: one for each chain, Runs contract and run."""
    name = f"{found.book.chain_id}-{found.book.runs.lower()}-{found.run}"
    return Path.home() / ".muster" / "explorers" / name


def read_values(config: Path, found: CheckedRun) -> dict[str, Any]:
    """Return what an earlier settings file sets, by dotted key; nothing where there is none.

    Raises ConfigError for a file that is broken, or for another run.
    """
    if not config.exists():
        return {}
    settings = load_settings(config)
    book = AddressBook.load(settings.chain.addresses)
    if (settings.run, book.chain_id, book.runs) != (found.run, found.book.chain_id, found.book.runs):
        raise ConfigError(f"{config} is for another run", hint="choose another folder: --folder DIR")
    values: dict[str, Any] = {}
    for name, value in tomllib.loads(config.read_text(encoding="utf-8")).items():
        values |= {f"{name}.{key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}
    return values


def settings_of(found: CheckedRun, earlier: dict[str, Any], request: ExplorerRequest) -> dict[str, Any]:
    """Return the settings, by dotted key: what was typed, then what was set before, then the defaults."""
    usual = ExplorerSettings()
    typed = {"chain.rpc_url": request.rpc_url, "explorer.host": request.host, "explorer.port": request.port or None}
    return {
        **run_settings(found, "addresses.json"),
        "explorer.host": usual.host,
        "explorer.port": free_ports(1)[0] if request.port == 0 else usual.port,
        "explorer.state_dir": "state",
        "log.file": "log.jsonl",
        **earlier,
        "orchestrator.url": found.orchestrator,
        **{key: value for key, value in typed.items() if value is not None},
    }


def page_address(host: str, port: int) -> str:
    """Return the address at which this machine's browser has the page."""
    name = "127.0.0.1" if host in ("", "0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/"
