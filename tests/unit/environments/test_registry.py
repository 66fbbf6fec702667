"""Which manifests make an environment, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest

from muster.constants import MICRO
from muster.environments.manifest import EnvironmentManifest, ScorerManifest
from muster.environments.registry import ENVIRONMENTS, default_manifest, make_environment
from muster.errors import ConfigError, MalformedError

HASH = "0x" + "0" * 64


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_default_manifest_makes_its_environment(name: str) -> None:
    manifest = default_manifest(name, HASH)
    assert make_environment(manifest).manifest == manifest
    assert EnvironmentManifest.from_document(manifest.to_document()) == manifest
    assert (manifest.scorer is None) == (not ENVIRONMENTS[name].FUNCTION)
    assert sum(manifest.weights.values()) == MICRO


def test_registry_holds_every_environment() -> None:
    names = {"arithmetic", "authored", "choice", "code", "instruction", "math", "reasoning_gym", "sorting"}
    assert set(ENVIRONMENTS) == names
    with pytest.raises(ConfigError, match="no environment 'chess'"):
        default_manifest("chess")
    with pytest.raises(ConfigError, match="no environment 'chess'"):
        make_environment(EnvironmentManifest("chess", weights={"won": MICRO}))
    with pytest.raises(ConfigError, match="scored by a component"):
        default_manifest("math")


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"version": 3},
        {"options": {"colour": "red"}},
        {"options": {"thinking": "maybe"}},
        {"options": {"tolerance": -1}},
        {"options": {"tolerance": True}},
        {"options": {"tolerance": "0"}},
        {"options": {"partial": 1}},
        {"options": {"tolerance": float("nan")}},
        {"weights": {"correct": MICRO}},
        {"weights": {"extra": 0, "passed": MICRO}},
        {"scorer": None},
        {"scorer": ScorerManifest(HASH, "math_verify")},
    ],
)
def test_manifests_that_the_environment_does_not_know_are_refused(change: dict[str, Any]) -> None:
    default = default_manifest("code", HASH)
    fields = {
        "name": "code",
        "version": default.version,
        "options": default.options,
        "weights": default.weights,
        "scorer": default.scorer,
    }
    with pytest.raises(MalformedError):
        make_environment(EnvironmentManifest(**{**fields, **change}))


def test_a_scorer_where_none_is_needed_is_refused() -> None:
    default = default_manifest("sorting")
    with pytest.raises(MalformedError, match="no component"):
        make_environment(
            EnvironmentManifest("sorting", 1, default.options, default.weights, ScorerManifest(HASH, "code"))
        )
