"""The root of the command line: the nouns, and the options that may stand before them.

A noun's module is imported when the noun is typed, so no command waits for the libraries of another.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

from muster.console.command import ConfigOption, DryRunOption, JsonOption, YesOption, handled
from muster.console.session import Options
from muster.errors import EXIT_CODES

NOUNS: Final = {
    "up": "Make a node of this machine: join a run, work for it, and watch it. The same command resumes later.",
    "setup": "Install what a role needs besides this package: torch, and the engine of workers.",
    "doctor": "Check this machine, the settings, chain, key, orchestrator and storage; say how to fix what is wrong.",
    "swarm": "A swarm on this machine: every process of a run, on a private chain.",
    "wallet": "Keys. The cold operator key owns stake and earnings; each node has its own hot session key.",
    "faucet": "Draw test tokens to a wallet. They are worth nothing, and can be drawn once a day.",
    "config": "Settings: what holds, where it came from, and a first file.",
    "worker": "Workers: generate rollouts for a run and be paid for them.",
    "validator": "Validators: inspect strangers' work, open cases, vote on others' cases.",
    "node": "All nodes of an operator: what they did, earned and need, and what they are called.",
    "service": "Keep a node running: a systemd user service that starts again by itself.",
    "logs": "Show a node's log for people, and follow it.",
    "notify": "Notifications: what a node tells its operator through a webhook.",
    "run": "Runs: what is trained, by which terms, with whose money.",
    "slash": "Cases: who was accused of what, and whether it holds.",
    "guardian": "The guardian: stop new commitments on the day on which a fault is found.",
    "grades": "Grades of private tests, checked once their epoch is over.",
    "look": "Looks of validators: what the trainer counted, counted again.",
    "weights": "Weights: every shard is checked against the root on chain.",
    "tasks": "Task sets.",
    "env": "Environments that strangers contribute: check, submit and admit them.",
    "model": "Models.",
    "eval": "Measure pass@k of a checkpoint on held-out tasks, with 95 % confidence intervals.",
    "serve": "Serve a checkpoint, or a checked step of a run, by the OpenAI API on this machine.",
    "trainer": "The trainer: batches, updates, checkpoints.",
    "orchestrator": "The orchestrator: uploads, verdicts, demand.",
    "explorer": "Show a run on a page of your own, from its chain and its log: yours or another's.",
    "chain": "The contracts: deploy them, look at a deployment.",
}
"""What --help says, in its order."""

FOLDERS: Final = {
    "evaluate": ("eval", "serve", "weights"),
    "money": ("chain", "faucet", "wallet"),
    "node": ("doctor", "logs", "node", "notify", "service", "validator", "worker"),
    "owner": ("explorer", "grades", "guardian", "look", "model", "orchestrator", "run", "slash", "swarm", "trainer"),
    "tasks": ("env", "tasks"),
}
"""Where the modules of nouns are; `up` and `config` are directly in this package. Each module has an `app`."""

MODULES: Final = {noun: f"{folder}.{noun}" for folder, nouns in FOLDERS.items() for noun in nouns}


class Nouns(TyperGroup):
    """The root group: it shows a line for each noun, and imports the one that is typed."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, noun_command(name) if name in NOUNS else command, rest


app = typer.Typer(
    name="muster",
    cls=Nouns,
    help="Train one language model with strangers' GPUs, and inspect every piece of work before it counts or pays.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _noun, _line in NOUNS.items():
    app.command(_noun, help=_line)(lambda: None)


def noun_command(noun: str) -> Any:
    """Import a noun's module; return its group, or its one command where that is called like the noun."""
    nouns = import_module(f"muster.console.{MODULES.get(noun, noun)}").app
    nouns.rich_markup_mode = None
    group = get_group(nouns)
    if noun in group.commands:
        return group.commands[noun]
    group.name, group.help, group.no_args_is_help = noun, NOUNS[noun], True
    return group


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


def run() -> None:
    """Parse the command line and run it. Ends the process."""
    with handled(Options(json="--json" in sys.argv)):
        app()
