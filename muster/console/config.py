"""muster config: where every setting comes from, and a first settings file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from muster.clients.visiting import PRESETS, run_settings
from muster.console.command import command
from muster.console.session import DEFAULT_CONFIG, Session
from muster.errors import ConfigError, UsageError
from muster.settings.schema import Settings
from muster.settings.sources import URL_KEYS, known_keys, mask_setting, url_beside, value_of
from muster.settings.toml import toml_value

app = typer.Typer()

Network = Literal["local", "base-sepolia"]


@command(app, "show")
def show(session: Session) -> None:
    """Show every setting: its value and its source; with --json what it means. Paths are resolved, secrets masked."""
    loaded = session.loaded
    rows = [
        {
            "key": name,
            "value": mask_setting(name, _resolved(name, value_of(loaded.settings, name))),
            "source": loaded.source(name),
        }
        | ({"help": info.description or ""} if session.options.json else {})
        for name, info in known_keys().items()
    ]
    session.result(rows)


def _resolved(key: str, value: object) -> object:
    """Return a value with its path absolute, as a process started here would take it."""
    if isinstance(value, Path):
        return value.absolute()
    return url_beside(Path.cwd(), value) if key in URL_KEYS and isinstance(value, str) else value


@command(app, "init")
async def init(
    session: Session,
    network: Annotated[Network | None, typer.Option(help="Chain to prepare for; else local.")] = None,
    join: Annotated[
        str | None,
        typer.Option(
            "--join", metavar="URL", help="Prepare for the run of the orchestrator at this URL, once checked."
        ),
    ] = None,
    rpc_url: Annotated[
        str | None, typer.Option("--rpc-url", help="With --join: the endpoint to check it by, and to use.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write a settings file with what must be set (to --config, else muster.toml)."""
    path = session.options.config or DEFAULT_CONFIG
    if path.exists() and not force:
        raise ConfigError(f"{path} exists", hint="choose another with --config, or add --force")
    if join is None:
        if rpc_url is not None:
            raise UsageError("--rpc-url belongs to --join", hint="set chain.rpc_url in the file instead")
        values, document = PRESETS[network or "local"], {"network": network or "local"}
        todo = "set run, keys.keystore and orchestrator.url in it"
    elif network is not None:
        raise UsageError("--join names the chain itself", hint="leave out --network")
    else:
        values, document = await _joining(join, rpc_url, path)
        todo = "set keys.keystore in it, then muster run show"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(template(values), encoding="utf-8")
    session.result({"config": str(path), **document}, f"wrote {path}\n  next: {todo}")


async def _joining(url: str, rpc_url: str | None, config: Path) -> tuple[dict[str, object], dict[str, object]]:
    """Check a run, write the address book of its contracts, and return settings and result."""
    from muster.clients.join import fetch_run

    found = await fetch_run(url, rpc_url)
    addresses = f"addresses-{found.book.chain_id}-{found.book.runs[2:10].lower()}.json"
    found.book.keep(config.parent / addresses)
    document = {"run": found.run, "chain_id": found.book.chain_id, "orchestrator": found.orchestrator}
    return run_settings(found, addresses), document


def template(values: dict[str, object]) -> str:
    """Return a TOML file of what a node must set, and of what is different on this network."""
    defaults = Settings()
    run, url = values.get("run", defaults.run), values.get("orchestrator.url", defaults.orchestrator.url)
    values = {key: value for key, value in values.items() if key.startswith("chain.")}
    chain = [f"{key.removeprefix('chain.')} = {toml_value(value)}" for key, value in values.items()]
    lines = [
        "# What must be set. muster config show prints every setting; with --json, what it means.",
        "# Flags and MUSTER_SECTION__KEY in the environment come before this file.",
        "",
        "# Number of the run that this machine takes part in.",
        f"run = {run}",
        "",
        *(["[chain]", *chain, ""] if chain else []),
        "[keys]",
        "# The node's own key; muster wallet new worker-1 makes this one.",
        '# keystore = "~/.muster/keys/worker-1.json"',
        "# To start without you at the keyboard: a file (mode 0600) with its password.",
        '# password_file = "worker-1.password"',
        "",
        "[orchestrator]",
        "# URL of the run's orchestrator; the run's owner tells it.",
        f"url = {toml_value(url)}",
    ]
    return "\n".join(lines) + "\n"
