"""muster config: where every setting comes from, and a first settings file."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from muster.cli.session import DEFAULT_CONFIG, Session, command
from muster.constants import CHAIN_BASE_SEPOLIA
from muster.errors import ConfigError, UsageError
from muster.settings import Settings
from muster.settings_sources import known_keys, mask, value_of
from muster.toml import toml_value

app = typer.Typer(help="Settings: what holds, where it came from, and a first file.", no_args_is_help=True)

Network = Literal["local", "base-sepolia"]
PRESETS: dict[str, dict[str, object]] = {
    "local": {},
    "base-sepolia": {
        "chain.rpc_url": "https://sepolia.base.org",
        "chain.chain_id": CHAIN_BASE_SEPOLIA,
        "chain.addresses": "addresses.json",
        "chain.confirmations": 3,
        "chain.poll_seconds": 2,
    },
}
"""What differs from the defaults, by network. Another endpoint of the same chain serves as well."""


@command(app, "show")
def show(
    session: Session,
    key: Annotated[str | None, typer.Option("--key", help="Only this setting, e.g. chain.rpc_url.")] = None,
) -> None:
    """Every setting: its value, where it came from, and what it means. Secrets are masked."""
    fields = known_keys()
    if key is not None and key not in fields:
        raise UsageError(f"no setting is called {key}", hint="muster config show")
    loaded = session.loaded
    rows = [
        {"key": name, "value": mask(value_of(loaded.settings, name)), "source": loaded.source(name)}
        | ({"help": info.description or ""} if key or session.options.json else {})
        for name, info in fields.items()
        if key in (None, name)
    ]
    session.result(rows[0] if key else rows)


@command(app, "init")
def init(
    session: Session,
    network: Annotated[Network, typer.Option(help="Chain to prepare for.")] = "local",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write a settings file with every setting, its default and what it means (to --config, else muster.toml)."""
    path = session.options.config or DEFAULT_CONFIG
    if path.exists() and not force:
        raise ConfigError(f"{path} exists", hint="choose another with --config, or add --force")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(template(PRESETS[network]), encoding="utf-8")
    session.result(
        {"config": str(path), "network": network},
        f"wrote {path}; next: set keys.keystore, run and orchestrator.url in it, then muster doctor",
    )


def template(values: dict[str, object]) -> str:
    """A TOML file in which every setting stands: set if it is in `values`, commented out with its default if not."""
    defaults = Settings()
    lines = ["# Settings of Muster. Flags and MUSTER_SECTION__KEY in the environment come before this file."]
    section = ""
    for key, info in known_keys().items():
        name = key.rpartition(".")[2]
        if (head := key.rpartition(".")[0]) != section:
            section = head
            lines += ["", f"[{section}]"]
        if info.description:
            lines.append(f"# {' '.join(info.description.split())}")
        value = values.get(key, value_of(defaults, key))
        lines.append(f"{'' if key in values else '# '}{name} = {toml_value(value)}")
    return "\n".join(lines) + "\n"
