"""Fixtures of the environments' tests: calls of the real component, and one that must not happen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from muster.environments.base import Environment, Outcome, ScorerCall
from muster.environments.manifest import EnvironmentManifest, ScorerManifest
from muster.environments.registry import default_manifest, make_environment

FUEL = 20_000_000_000
MEMORY = 512 * 1024**2

CallFactory = Callable[..., ScorerCall]


@pytest.fixture(scope="session")
def scorer_call() -> Iterator[CallFactory]:
    """Yields calls of a function of the component that this checkout builds, with a limit on fuel and memory."""
    from muster.sandbox.client import Sandbox
    from muster.sandbox.component import local_component

    component = local_component()

    def make(function: str, fuel: int = FUEL, memory: int = MEMORY) -> ScorerCall:
        scorer = ScorerManifest(component.hash, function, fuel, memory)

        def call(payload: Any) -> Outcome:
            return sandbox.call(scorer, payload)

        return call

    with Sandbox() as sandbox:
        sandbox.walls(component.hash)  # starts its process here: the CPU time of all its calls is this fixture's
        yield make


@pytest.fixture(scope="session")
def no_call() -> ScorerCall:
    """Fails the test: our own code has to know the score."""

    def call(payload: Any) -> Outcome:
        raise AssertionError(f"called the component with {str(payload)[:200]}")

    return call


@pytest.fixture(scope="session")
def environment_of() -> Callable[..., Environment]:
    """Returns an environment of that name with the given options, for a component that need not exist."""

    def make(name: str, **options: Any) -> Environment:
        default = default_manifest(name, "0x" + "0" * 64)
        manifest = EnvironmentManifest(
            name, default.version, {**default.options, **options}, default.weights, default.scorer
        )
        return make_environment(manifest)

    return make
