"""Read the options of `muster tasks import`: what scores, which columns, and what runs reference solutions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from muster.environments.manifest import EnvironmentManifest
from muster.environments.registry import own_manifest
from muster.errors import ConfigError, MalformedError, UsageError

if TYPE_CHECKING:
    from muster.authoring.tasks.sources_code import RunReference
    from muster.sandbox.client import Sandbox


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
    """Read OPTION=VALUE: true and false, numbers, else a text."""
    name, mark, value = text.partition("=")
    if not mark:
        raise UsageError(f"{text!r} is not OPTION=VALUE", hint="for example --environment math:answer=number")
    try:
        return name, from_json(value)
    except ValueError:
        return name, value


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


def fields_of(texts: list[str]) -> dict[str, str]:
    fields = {}
    for text in texts:
        name, mark, column = text.partition("=")
        if not mark or not name or not column:
            raise UsageError(f"--field {text!r}", hint="write it like prompt=question")
        fields[name] = column
    return fields
