"""The options of `muster tasks import`: what is read, what scores it, what is left out, and what is held out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer
from pydantic import Field, model_validator

from muster.authoring.tasks.from_reasoning_gym import read_assignment
from muster.authoring.tasks.importing import ImportOptions
from muster.authoring.tasks.sources import MAPPED
from muster.console.options import Request
from muster.environments.manifest import EnvironmentManifest
from muster.environments.registry import own_manifest
from muster.errors import ConfigError, MalformedError, UsageError

if TYPE_CHECKING:
    from muster.authoring.tasks.sources_code import RunReference
    from muster.sandbox.client import Sandbox

TokenizerOption = Annotated[Path | None, typer.Option(help="Checkpoint folder whose tokenizer counts tokens.")]

REASONING_GYM: Final = "reasoning-gym"
"""The source that is a package and no file."""


class ImportRequest(Request, ImportOptions):
    """The options of `muster tasks import`."""

    source: Annotated[str, typer.Argument()]
    """Format: gsm8k, deepscaler, numina, synthetic; mapped; or reasoning-gym."""
    file: Annotated[Path, typer.Argument()]
    """JSON Lines or Parquet, on this machine; of reasoning-gym its datasets, comma-separated."""
    out: Annotated[Path, typer.Argument()]
    """Folder to write."""
    licence: str | None = None
    """What the authors allow, e.g. MIT."""
    origin: str | None = None
    """Where the data set is from; else the file's name."""
    note: str = ""
    """Attribution that its authors ask for."""
    environment: tuple[str, ...] = ()
    """What scores them: NAME, NAME:OPTION=VALUE,…, or a JSON file."""
    field: tuple[str, ...] = ()
    """Of mapped: NAME=COLUMN, e.g. prompt=question, answer=solution."""
    name: str | None = None
    """Of mapped: what to call the source."""
    count: int | None = Field(default=None, ge=1)
    """Of reasoning-gym: tasks of each dataset."""
    setting: tuple[str, ...] = ()
    """Of reasoning-gym: KEY=VALUE, e.g. max_terms=4."""
    tokenizer: TokenizerOption = None

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        """Raise UsageError for options that do not go together."""
        if self.given("field", "name") and self.source != MAPPED:
            raise UsageError(
                f"the columns of {self.source} are fixed", hint="--field and --name go with the source mapped"
            )
        if self.given("count", "setting") and self.source != REASONING_GYM:
            raise UsageError(f"{self.source} is a file", hint=f"--count and --setting go with {REASONING_GYM}")
        if (self.max_prompt_tokens is None) != (self.tokenizer is None):
            raise UsageError("--max-prompt-tokens and --tokenizer go together", hint="give both, or neither")
        return self


def environment_of(text: str) -> EnvironmentManifest:
    """Return the manifest that an option names: NAME, NAME:OPTION=VALUE,…, or a JSON file with one.

    Raises ConfigError, and UsageError for options that the environment lacks.
    """
    if not text.endswith(".json"):
        name, _, options = text.partition(":")
        try:
            return own_manifest(name, dict(_option(one) for one in options.split(",") if one))
        except MalformedError as error:
            raise UsageError(str(error), hint="docs/use/environments.md has each environment's options") from error
    try:
        return EnvironmentManifest.from_document(json.loads(Path(text).read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"no environment manifest in {text}: {error}", hint="write it as JSON") from error


def _option(text: str) -> tuple[str, Any]:
    hint = "for example --environment math:answer=number"
    return read_assignment(text, f"{text!r} is not OPTION=VALUE", hint)


def run_reference(sandbox: Sandbox) -> RunReference:
    """Return what runs reference solutions. Raises ConfigError when this machine has no component."""
    from muster.authoring.tasks.sources_code import run_in_sandbox
    from muster.sandbox.component import local_component
    from muster.sandbox.scorer import ScorerManifest

    scorer = ScorerManifest(local_component().hash, "code")
    return run_in_sandbox(lambda payload: sandbox.call(scorer, payload))


def manifests_of(given: list[EnvironmentManifest], names: tuple[str, ...]) -> dict[str, EnvironmentManifest]:
    """Return which manifest scores which of a source's environments. One for one may have any name."""
    if len(given) == len(names) == 1:
        return {names[0]: given[0]}
    unknown = [manifest.name for manifest in given if manifest.name not in names]
    if unknown:
        raise UsageError(
            f"the source has no tasks for the environment {', '.join(unknown)}", hint=f"it has: {', '.join(names)}"
        )
    return {manifest.name: manifest for manifest in given}


def fields_of(texts: tuple[str, ...]) -> dict[str, str]:
    fields = {}
    for text in texts:
        name, mark, column = text.partition("=")
        if not mark or not name or not column:
            raise UsageError(f"--field {text!r}", hint="write it like prompt=question")
        fields[name] = column
    return fields
