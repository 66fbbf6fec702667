"""Sources of `muster tasks import` that are packages and no files: reasoning-gym, and tasksets of verifiers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.authoring.tasks import from_reasoning_gym, from_verifiers
from muster.authoring.tasks.foreign import environments_folder, exported, own_environment
from muster.authoring.tasks.formats import Format
from muster.environments.manifest import EnvironmentManifest
from muster.environments.registry import make_environment, own_manifest
from muster.errors import UsageError

REASONING_GYM: Final = "reasoning-gym"
VERIFIERS: Final = "verifiers"
PACKAGES: Final = (REASONING_GYM, VERIFIERS)

COUNT: Final = 500
"""Tasks of each dataset of reasoning-gym, by default."""
NEAR: Final = 1.0
"""Of reasoning-gym: its puzzles share their wording, so only those with the same words in a row are nearly equal."""


@dataclass(frozen=True)
class ExportedSource:
    """A source whose rows an export program has written."""

    format: Format
    rows: Path
    manifests: Mapping[str, EnvironmentManifest]
    origin: str


@contextmanager
def exported_source(
    source: str,
    what: str,
    given: Sequence[EnvironmentManifest],
    *,
    count: int | None,
    seed: int,
    settings: Sequence[str],
) -> Iterator[ExportedSource]:
    """Yield a package's tasks, exported in a separate environment. Raises as `exported` and the rooms."""
    if len(given) > 1:
        raise UsageError(f"{source} is scored by one environment", hint="give --environment once, or not at all")
    make = _reasoning_gym if source == REASONING_GYM else _verifiers
    with make(what, given[0] if given else None, count, seed, settings) as found:
        yield found


@contextmanager
def _reasoning_gym(
    what: str, given: EnvironmentManifest | None, count: int | None, seed: int, settings: Sequence[str]
) -> Iterator[ExportedSource]:
    names = [name.strip() for name in what.split(",") if name.strip()]
    order = from_reasoning_gym.order_of(names, COUNT if count is None else count, seed, settings)
    manifest = given or own_manifest(from_reasoning_gym.ENVIRONMENT)
    if manifest.name != from_reasoning_gym.ENVIRONMENT:
        raise UsageError(f"reasoning-gym is scored by {from_reasoning_gym.ENVIRONMENT}, not by {manifest.name}")
    python = own_environment(from_reasoning_gym.REQUIREMENTS, environments_folder())
    with exported(python, from_reasoning_gym.PROGRAM, order) as (about, rows):
        from_reasoning_gym.check_about(about)
        format_ = from_reasoning_gym.format_of_datasets(names, seed, make_environment(manifest))
        said = "".join(f", {setting}" for setting in settings)
        origin = f"reasoning-gym {from_reasoning_gym.VERSION}: {', '.join(names)}, seed {seed}{said}"
        yield ExportedSource(format_, rows, {manifest.name: manifest}, origin[:2000])


@contextmanager
def _verifiers(
    what: str, given: EnvironmentManifest | None, count: int | None, seed: int, settings: Sequence[str]
) -> Iterator[ExportedSource]:
    # 1. Export.
    requirement, name = from_verifiers.requirement_of(what)
    python = own_environment((from_verifiers.REQUIREMENT, requirement), environments_folder())
    order = {"taskset": name, "count": count, "config": from_reasoning_gym.read_settings(settings)}
    with exported(python, from_verifiers.PROGRAM, order) as (about, rows):
        # 2. What scores follows from the reward; only the form of the thinking is the owner's choice.
        mapped = from_verifiers.map_rewards(from_verifiers.read_about(about))
        if given is not None and given.name != mapped.known.environment:
            raise UsageError(f"its reward is that of {mapped.known.environment}, not of {given.name}")
        thinking = {"thinking": given.options["thinking"]} if given is not None else {}
        manifest = own_manifest(mapped.known.environment, {**mapped.known.options, **thinking})
        label = re.sub(r"[^a-z0-9._-]", "-", name.lower())[:64]
        format_ = from_verifiers.format_of_taskset(label, mapped, make_environment(manifest))
        origin = f"{Path(what).name} through verifiers {from_verifiers.VERSION}"
        yield ExportedSource(format_, rows, {manifest.name: manifest}, origin[:2000])
