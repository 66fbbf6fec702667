"""Parts of `benchmarks/environments.py`: agreement with published scorers, determinism, rates and costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from muster.environments.manifest import EnvironmentManifest, ScorerManifest
from muster.environments.registry import own_manifest


def with_fuel(fuel: int, name: str, options: Mapping[str, Any] = MappingProxyType({})) -> EnvironmentManifest:
    """Return the manifest of an environment that a component scores, with this much fuel for each call."""
    manifest = own_manifest(name, options)
    assert isinstance(manifest.scorer, ScorerManifest)
    return replace(manifest, scorer=replace(manifest.scorer, fuel=fuel))
