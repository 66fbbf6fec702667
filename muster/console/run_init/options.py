"""The options of `muster run init` that are choices, by the names of `RunChoices`, and what was typed as choices."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from muster.console.run_init.choices import OPTION_OF, Network, RunChoices, make_choices
from muster.console.session import Options, parse_numbers
from muster.errors import UsageError
from muster.runtime.secret_files import read_small
from muster.settings.recipes import RecipeName
from muster.swarm.supervisor import free_ports


def _option(name: str, kind: Any, text: str, **bounds: Any) -> Any:
    return Annotated[kind, typer.Option(OPTION_OF[name], help=text, **bounds)]


def _whole(name: str, text: str, least: int = 1, most: int | None = None) -> Any:
    return _option(name, int | None, text, min=least, max=most)


def _text(name: str, text: str) -> Any:
    return _option(name, str | None, text)


CHOICE_OPTIONS: Final[Mapping[str, Any]] = {
    "network": _option("network", Network | None, "Where: a chain on this machine, or a public test network."),
    "title": _text("title", "What the run is called on its page."),
    "about": _text("about", "What it trains and why, for its page."),
    "model": _text("model", "new, smollm2-135m, OWNER/NAME on the hub, or a checkpoint folder."),
    "tasks": _text("tasks", "Folder of a task set, or families of which tasks are made."),
    "levels": _text("levels", "Of made tasks: difficulties, as of muster tasks make."),
    "train": _whole("train", "Of made tasks: training tasks of each family."),
    "held_out": _whole("held_out", "Of made tasks: tasks of each family that are kept for measuring."),
    "seed": _whole("seed", "Of made tasks and models: equal seeds give equal ones.", 0),
    "budgets": _text("budgets", "Thinking budgets in tokens, comma-separated."),
    "max_prompt_tokens": _whole("max_prompt_tokens", "Longest prompt; else that of the tasks."),
    "max_completion_tokens": _whole(
        "max_completion_tokens", "Where an answer is cut off; else twice the largest budget."
    ),
    "recipe": _option("recipe", RecipeName | None, "The trainer's recipe."),
    "learning_rate": _option("learning_rate", float | None, "Else the recipe's, or that of a model others have made."),
    "batch_groups": _whole("batch_groups", "Groups that a step is trained on."),
    "group_size": _whole("group_size", "Answers to a task, which are compared.", 2),
    "groups_per_commitment": _whole("groups_per_commitment", "Groups of one file of a worker."),
    "commitments_per_hour": _whole("commitments_per_hour", "Most files of a worker in an hour.", most=255),
    "pay": _text("pay", "Tokens for a commitment."),
    "stake": _text("stake", "Tokens that a node locks; else what covers 26 hours of work."),
    "steps": _whole("steps", "Steps that the escrow should pay for.", 0),
    "validators": _text("validators", "Who may validate: open, owner, or the address that keeps the list."),
    "host": _text("host", "Name or address at which nodes reach this machine."),
    "rpc_url": _text("rpc_url", "Endpoint of the chain, where it is another than the usual one."),
    "ports": _whole("ports", "First of three ports of a local run; 0 takes free ones.", 0, 65_533),
    "local_workers": _whole("local_workers", "Workers of a local run.", most=64),
}


def with_choices(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options besides its own; it gets them as `chosen`, by their names."""
    *own, _ = inspect.signature(function, eval_str=True).parameters.values()
    keyword = inspect.Parameter.KEYWORD_ONLY
    more = [inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in CHOICE_OPTIONS.items()]
    function.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]
    return function


def typed_choices(chosen: Mapping[str, Any], about_file: Path | None, wallet: Options, known: RunChoices) -> RunChoices:
    """Return what was typed as choices. Raises UsageError, ConfigError for a text that cannot be read.

    known: what the folder has, of which free ports are kept.
    """
    values = {name: value for name, value in chosen.items() if value is not None}
    for name in ("budgets", "levels"):
        if name in values:
            values[name] = parse_numbers(values[name])
    if about_file is not None:
        if "about" in values:
            raise UsageError("--about and --about-file say the same", hint="leave out one of them")
        values["about"] = _read_about(about_file)
    if (first := values.pop("ports", None)) is not None:
        kept = known.ports if first == 0 else None
        values["ports"] = kept or tuple(range(first, first + 3) if first else free_ports(3))
    if wallet.operator is not None:
        path = Path(wallet.operator).expanduser()
        values["operator"] = str(path.absolute()) if path.is_file() else wallet.operator
    if wallet.password_file is not None:
        values["password_file"] = str(wallet.password_file.absolute())
    return make_choices(values)


def _read_about(path: Path) -> str:
    try:
        return read_small(path).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as text: {error}", hint="--about-file FILE") from error
