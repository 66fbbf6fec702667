"""Which environments there are. To add one, write its module and name its class here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from muster.constants import MICRO
from muster.environments.authored import Authored
from muster.environments.base import Environment
from muster.environments.choice import MultipleChoice
from muster.environments.code import Code
from muster.environments.exact import Arithmetic, Sorting
from muster.environments.instruction import Instruction
from muster.environments.manifest import EnvironmentManifest, ScorerManifest
from muster.environments.math import Math
from muster.environments.reasoning_gym import ReasoningGym
from muster.errors import ConfigError
from muster.sandbox.component import local_component

ENVIRONMENTS: Final[Mapping[str, Any]] = {
    environment.NAME: environment
    for environment in (Arithmetic, Authored, MultipleChoice, Code, Instruction, Math, ReasoningGym, Sorting)
}
"""Every environment's class by its name."""


def make_environment(manifest: EnvironmentManifest) -> Environment:
    """Return the environment that a manifest names.

    Raises ConfigError when there is none of that name, MalformedError when it does not know the manifest's version,
    options, parts or function.
    """
    return _class_of(manifest.name)(manifest)


def default_manifest(name: str, component_hash: str = "") -> EnvironmentManifest:
    """Return an environment's manifest with all options at their defaults.

    Raises ConfigError when there is no such environment, or it is scored by a component and none is given.
    """
    cls = _class_of(name)
    if cls.FUNCTION and not component_hash:
        raise ConfigError(f"environment {name} is scored by a component", hint="give the component's sha256")
    return EnvironmentManifest(
        name,
        cls.VERSION,
        {option: spec.default for option, spec in cls.OPTIONS.items()},
        {part: MICRO // len(cls.PARTS) for part in cls.PARTS},
        ScorerManifest(component_hash, cls.FUNCTION) if cls.FUNCTION else None,
    )


def own_manifest(name: str, options: Mapping[str, Any] = MappingProxyType({})) -> EnvironmentManifest:
    """Return an environment's manifest with these options, scored by what was built on this machine.

    Raises ConfigError for a name that is none or where no component was built, MalformedError for an option that the
    environment lacks.
    """
    default = default_manifest(name, local_component().hash if _class_of(name).FUNCTION else "")
    manifest = replace(default, options={**default.options, **options})
    make_environment(manifest)
    return manifest


def _class_of(name: str) -> Any:
    if name not in ENVIRONMENTS:
        raise ConfigError(f"no environment {name[:40]!r}", hint=f"known environments: {', '.join(ENVIRONMENTS)}")
    return ENVIRONMENTS[name]
