"""What an owner chooses for a run, by options, by answers, or by the file that keeps them.

Pure, but for that file and a look at whether a model's folder is there.

None: nothing was chosen, and `muster.console.run_init.design` says what holds then.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import typer
from eth_utils.address import is_address
from pydantic import AfterValidator, Field, ValidationError

from muster.authoring.tasks.families import FAMILIES
from muster.console.options import NUMBERS, Request, first_fault
from muster.errors import ConfigError, UsageError
from muster.models.files import context_of, folder_of
from muster.runtime.files import write_atomically
from muster.runtime.units import parse_amount
from muster.settings.recipes import RecipeName
from muster.settings.toml import to_toml

Network = Literal["local", "base-sepolia"]

NEW_MODEL: Final = "new"
NEW_CONTEXT: Final = 512
"""Of a model that is made here. Mirrors `muster.models.init.CONTEXT`, which imports torch."""
OPEN: Final = "open"
OWNER: Final = "owner"
"""Who may validate: any operator that locks a stake, or the operators that the run's owner admits."""

HOST_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9a-fA-F:]{2,39}\]")


def _is_text(value: str) -> str:
    """Take what can be written as UTF-8."""
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ValueError("it is no valid text")
    return value


def _is_an_amount(value: str) -> str:
    if not 0 < parse_amount(value) < 1 << 96:
        raise ValueError("it must be above 0 and fit 96 bits")
    return value


def _names_somebody(value: str) -> str:
    if value not in (OPEN, OWNER) and not is_address(value):
        raise ValueError(f"write {OPEN}, {OWNER}, or an address that keeps the list")
    return value


def _is_a_model(value: str) -> str:
    if value != NEW_MODEL:
        try:
            folder_of(value)
        except UsageError as error:
            raise ValueError(f"{error}: write {NEW_MODEL}, a checkpoint folder, or OWNER/NAME on the hub") from error
    return value


def _is_a_host(value: str) -> str:
    if not HOST_NAME.fullmatch(value):
        raise ValueError("write a name such as run.example.org, or an address, without http:// and port")
    return value


def _are_four(value: tuple[int, ...]) -> tuple[int, ...]:
    if not len(value) == len(set(value)) == 4:
        raise ValueError("four different ports are needed: chain, orchestrator, weights, explorer")
    return value


Count = Annotated[int, Field(ge=1, lt=1 << 31)]
Budgets = Annotated[tuple[Annotated[int, Field(ge=1, le=65_535)], ...], Field(min_length=1, max_length=14), NUMBERS]
Levels = Annotated[tuple[Count, ...], Field(min_length=1, max_length=64), NUMBERS]
Amount = Annotated[str, Field(max_length=100), AfterValidator(_is_an_amount)]
Text = Annotated[str, Field(max_length=4000), AfterValidator(_is_text)]
Title = Annotated[
    str, Field(max_length=80), AfterValidator(_is_text), AfterValidator(lambda text: " ".join(text.split()))
]
Ports = Annotated[tuple[Annotated[int, Field(ge=1, le=65_535)], ...], AfterValidator(_are_four)]
Place = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_is_text)]
"""A path, or a name of what is elsewhere."""
Model = Annotated[Place, AfterValidator(_is_a_model)]


class TypedChoices(Request):
    """What may be chosen by options; money as people write it, in tokens."""

    network: Network | None = None
    """Where: a chain on this machine, or a public test network."""
    title: Title | None = None
    """What the run is called on its page."""
    about: Text | None = None
    """What it trains and why, for its page."""
    model: Model | None = None
    """new, OWNER/NAME on the hub, or a checkpoint folder."""
    tasks: Place | None = None
    """Folder of a task set, or families of which tasks are made."""
    levels: Levels | None = None
    """For generated tasks: difficulties, as in muster tasks make."""
    train: Count | None = None
    """For generated tasks: training tasks of each family."""
    held_out: Count | None = None
    """For generated tasks: held-out tasks of each family."""
    seed: int | None = Field(default=None, ge=0, lt=1 << 63)
    """For generated tasks and models: equal seeds give equal ones."""
    budgets: Budgets | None = None
    """Thinking budgets in tokens, comma-separated."""
    max_prompt_tokens: Count | None = None
    """Longest prompt; else that of the tasks."""
    max_completion_tokens: Annotated[Count | None, typer.Option("--max-tokens")] = None
    """Where an answer is cut off; else twice the largest budget."""
    recipe: RecipeName | None = None
    """The trainer's recipe."""
    learning_rate: float | None = Field(default=None, gt=0, lt=1)
    """Else the recipe's, or that for a pretrained model."""
    batch_groups: int | None = Field(default=None, ge=1, le=100_000)
    """Groups that a step is trained on."""
    group_size: int | None = Field(default=None, ge=2, le=4096)
    """Answers to a task, which are compared."""
    groups_per_commitment: int | None = Field(default=None, ge=1, le=4096)
    """Groups of one file of a worker."""
    commitments_per_hour: int | None = Field(default=None, ge=1, le=255)
    """Most files of a worker in an hour."""
    accepts_required: Annotated[int | None, typer.Option("--accepts"), Field(ge=1, le=255)] = None
    """Validators that look at each commitment, and must accept it."""
    look_rows: int | None = Field(default=None, ge=1, le=4096)
    """Rows that a look replays; else 12."""
    wage_bps: int | None = Field(default=None, ge=0, le=5000)
    """Wage of a look in basis points of the pay; else one and a half times what it costs."""
    pay: Amount | None = None
    """Tokens for a commitment."""
    stake: Amount | None = None
    """Tokens that a node locks; else what covers 26 hours of work."""
    steps: int | None = Field(default=None, ge=0, le=10_000_000)
    """Steps that the escrow should pay for."""
    validators: Annotated[str, AfterValidator(_names_somebody)] | None = None
    """Who may validate: open, owner, or the address that keeps the list."""
    host: Annotated[str, Field(max_length=253), AfterValidator(_is_a_host)] | None = None
    """Name or address at which nodes reach this machine."""
    rpc_url: str | None = Field(default=None, max_length=2000)
    """Endpoint of the chain, where it is another than the usual one."""
    local_workers: Annotated[int | None, typer.Option("--workers"), Field(ge=1, le=64)] = None
    """Workers of a local run."""


class RunChoices(TypedChoices):
    """Everything that may be chosen: what is typed, the ports of a local run, and the owner's wallet."""

    ports: Annotated[Ports | None, typer.Option("--port")] = None
    operator: Place | None = None
    password_file: Annotated[str, Field(max_length=4096), AfterValidator(_is_text)] | None = None


FAMILY_NAMES: Final = tuple(FAMILIES)
NETWORKS: Final = get_args(Network)

HEAD: Final = """# What you chose for this run. muster run init continues with it; options that you type come before it.
"""


def make_choices(values: Mapping[str, Any]) -> RunChoices:
    """Return the choices of these values. Raises UsageError."""
    return RunChoices.read(values, "muster run init")


def read_choices(path: Path) -> RunChoices:
    """Return the choices that a file keeps; none where there is no file. Raises ConfigError."""
    try:
        return RunChoices.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return RunChoices()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}", hint="correct it, or remove it to be asked again") from error
    except ValidationError as error:
        name, reason = first_fault(error)
        is_known = name in RunChoices.model_fields
        hint = f"correct it there, or type {RunChoices.option(name)}" if is_known else "remove it there"
        raise ConfigError(f"{path}: {name}: {reason}", hint=hint) from error


def write_choices(path: Path, choices: RunChoices) -> None:
    """Keep what was chosen, unless the file says it already: a person may have written it in other words."""
    if not path.exists() or read_choices(path) != choices:
        write_atomically(path, HEAD + to_toml(choices.model_dump(exclude_none=True)))


def merged(known: RunChoices, given: RunChoices) -> RunChoices:
    """Return the known choices with those that are given now in their place."""
    return make_choices(known.model_dump(exclude_none=True) | given.model_dump(exclude_none=True))


def known_context(choices: RunChoices) -> int | None:
    """Return the context of the chosen model as far as it is known before it is made or fetched, in tokens."""
    if choices.model in (None, NEW_MODEL):
        return NEW_CONTEXT
    folder = Path(str(choices.model)).expanduser()
    return context_of(folder) if folder.is_dir() else None
