"""What an owner chooses for a run, by options, by answers, or by the file that keeps them. Pure but for that file.

None: nothing was chosen, and `muster.console.run_init.design` says what holds then.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from eth_utils.address import is_address
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from muster.authoring.tasks.families import FAMILIES
from muster.errors import ConfigError, UsageError
from muster.models.files import context_of
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

Count = Annotated[int, Field(ge=1, le=1 << 31)]
Budgets = Annotated[tuple[Annotated[int, Field(ge=1, le=65_535)], ...], Field(min_length=1, max_length=14)]
Amount = Annotated[str, Field(max_length=100)]


class RunChoices(BaseModel):
    """Everything that may be chosen; money as people write it, in tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    network: Network | None = None
    title: Annotated[str, Field(max_length=80)] | None = None
    about: Annotated[str, Field(max_length=4000)] | None = None
    model: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    tasks: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    levels: Annotated[tuple[Count, ...], Field(min_length=1, max_length=64)] | None = None
    train: Count | None = None
    held_out: Count | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    budgets: Budgets | None = None
    max_prompt_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    recipe: RecipeName | None = None
    learning_rate: Annotated[float, Field(gt=0, lt=1)] | None = None
    batch_groups: Annotated[int, Field(ge=1, le=100_000)] | None = None
    group_size: Annotated[int, Field(ge=2, le=4096)] | None = None
    groups_per_commitment: Annotated[int, Field(ge=1, le=4096)] | None = None
    commitments_per_hour: Annotated[int, Field(ge=1, le=255)] | None = None
    pay: Amount | None = None
    stake: Amount | None = None
    steps: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    validators: str | None = None
    host: Annotated[str, Field(max_length=253)] | None = None
    rpc_url: Annotated[str, Field(max_length=2000)] | None = None
    ports: tuple[Annotated[int, Field(ge=1, le=65_535)], ...] | None = None
    local_workers: Annotated[int, Field(ge=1, le=64)] | None = None
    operator: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    password_file: Annotated[str, Field(max_length=4096)] | None = None

    @field_validator("title", "about", "model", "tasks", "operator", "password_file")
    @classmethod
    def _is_text(cls, value: str | None) -> str | None:
        """Take what can be written as UTF-8."""
        if value is not None and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ValueError("it is no valid text")
        return value

    @field_validator("title")
    @classmethod
    def _is_a_line(cls, value: str | None) -> str | None:
        return None if value is None else " ".join(value.split())

    @field_validator("pay", "stake")
    @classmethod
    def _is_an_amount(cls, value: str | None) -> str | None:
        if value is not None and not 0 < parse_amount(value) < 1 << 96:
            raise ValueError("it must be above 0 and fit 96 bits")
        return value

    @field_validator("validators")
    @classmethod
    def _names_somebody(cls, value: str | None) -> str | None:
        if value not in (None, OPEN, OWNER) and not is_address(value):
            raise ValueError(f"write {OPEN}, {OWNER}, or an address that keeps the list")
        return value

    @field_validator("host")
    @classmethod
    def _is_a_host(cls, value: str | None) -> str | None:
        if value is not None and not HOST_NAME.fullmatch(value):
            raise ValueError("write a name such as run.example.org, or an address, without http:// and port")
        return value

    @field_validator("ports")
    @classmethod
    def _are_three(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and len(set(value)) != 3:
            raise ValueError("three different ports are needed: chain, orchestrator, weights")
        return value


FAMILY_NAMES: Final = tuple(FAMILIES)
NETWORKS: Final = get_args(Network)

OPTION_OF: Final = {name: "--" + name.replace("_", "-") for name in RunChoices.model_fields} | {
    "max_completion_tokens": "--max-tokens",
    "ports": "--port",
    "local_workers": "--workers",
}
"""By the name of a choice."""

HEAD: Final = """# What you chose for this run. muster run init goes on with it; options that you type come before it.
"""


def make_choices(values: Mapping[str, Any], *, of: str = "") -> RunChoices:
    """Return the choices of these values. Raises UsageError, or ConfigError where they are of a file.

    of: name of the file.
    """
    try:
        return RunChoices.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        reason = first["msg"].removeprefix("Value error, ")
        if of:
            hint = f"correct it there, or type {OPTION_OF[name]}" if name in OPTION_OF else "remove it there"
            raise ConfigError(f"{of}: {name}: {reason}", hint=hint) from error
        raise UsageError(f"{OPTION_OF.get(name, name)}: {reason}", hint="muster run init --help") from error


def read_choices(path: Path) -> RunChoices:
    """Return the choices that a file keeps; none where there is no file. Raises ConfigError."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return RunChoices()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}", hint="correct it, or remove it to be asked again") from error
    return make_choices(raw, of=str(path))


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
