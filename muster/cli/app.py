"""The root of the command line: the nouns, and the options that may stand before them."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Final

import typer

from muster.cli.session import ConfigOption, DryRunOption, JsonOption, Options, YesOption, handled
from muster.errors import EXIT_CODES

NOUNS: Final = (
    "doctor",
    "swarm",
    "wallet",
    "faucet",
    "config",
    "worker",
    "validator",
    "run",
    "slash",
    "weights",
    "tasks",
    "model",
    "eval",
    "trainer",
    "orchestrator",
    "chain",
)
"""In the order of --help; each is a module of this package."""

app = typer.Typer(
    name="muster",
    help="Train one language model with strangers' GPUs, and inspect every piece of work before it counts or pays.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        print(version("muster"))
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    config: ConfigOption = None,
    json: JsonOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    context.obj = Options(config, json, dry_run, yes)


@cache
def add_nouns() -> None:
    for noun in NOUNS:
        module = import_module(f"muster.cli.{noun}")
        if noun in ("doctor", "faucet", "eval"):
            module.add_to(app)
        else:
            app.add_typer(module.app, name=noun)


def run() -> None:
    """Parse the command line and run it. Ends the process."""
    add_nouns()
    with handled(Options(json="--json" in sys.argv)):
        app()
