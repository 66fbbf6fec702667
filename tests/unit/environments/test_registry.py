"""Which manifests make an environment, and which are refused."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

import pytest

from muster.constants import MICRO
from muster.environments.manifest import EnvironmentManifest, ScorerManifest
from muster.environments.registry import ENVIRONMENTS, default_manifest, make_environment
from muster.errors import ConfigError, MalformedError

HASH = "0x" + "0" * 64
PUBLISHED: Final = {
    "arithmetic": "e25062ced40c2246ca02ba0737f73c62872c89e2991a32a93f8659d3f1ac2ff5",
    "authored": "1313f1eb6cfe494fcee2dd0e76913dd39d3d20c20bb2dc2c275d67645065343e",
    "choice": "5836d67528ec216ca1fae29d446517a6cd2e6abfd7d827d75ae76eda489bee4e",
    "code": "7ca25ed1fe47db5c9a3e69053a6ee4cfd766e094144575e48b290c18ec73bc25",
    "instruction": "95e19a0a460eca5357a6f0868b79638110c0572db3af623654b9bfedfd63e767",
    "math": "d2efc3611c37482f95bbf063f1822348b9e481b0aeb42dfc736c49544ac63f63",
    "reasoning_gym": "3585a8fc902899f8a0604219ea91aa2f7bde9b1b9cc433bfc9b6860d54e7b692",
    "sorting": "acd74a9b617fb72b3530b8473fa03c72d7c9a540fa02ba1da1c61107defcfef2",
}
"""By environment, sha256 of its default manifest: task sets of runs hold such manifests, and their hash covers them."""


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_default_manifest_makes_its_environment(name: str) -> None:
    manifest = default_manifest(name, HASH)
    assert make_environment(manifest).manifest == manifest
    assert EnvironmentManifest.from_document(manifest.to_document()) == manifest
    assert (manifest.scorer is None) == (not ENVIRONMENTS[name].FUNCTION)
    assert sum(manifest.weights.values()) == MICRO


@pytest.mark.parametrize("name", PUBLISHED)
def test_default_manifest_keeps_its_published_bytes(name: str) -> None:
    assert sha256(default_manifest(name, HASH).to_bytes()).hexdigest() == PUBLISHED[name]


def test_manifest_of_native_programs_is_refused_with_what_to_do() -> None:
    document = default_manifest("code", HASH).to_document()
    scorer = {"image": HASH, "memory": 1 << 30, "runtime": "native-1", "seconds": 1}
    for old in (document | {"scorer": scorer}, document | {"options": document["options"] | {"runner": "native"}}):
        with pytest.raises(MalformedError, match="Muster no longer runs native programs") as refused:
            EnvironmentManifest.from_document(old)
        assert "make the task set again with runner=component" in refused.value.hint


def test_registry_holds_every_environment() -> None:
    assert set(ENVIRONMENTS) == set(PUBLISHED)
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
