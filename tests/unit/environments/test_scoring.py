"""Scoring by any manifest: each task by its own environment, with one sandbox for all."""

from __future__ import annotations

from typing import Any

import pytest

from muster.constants import MICRO
from muster.environments.exact import Arithmetic
from muster.environments.manifest import EnvironmentManifest
from muster.environments.registry import default_manifest
from muster.environments.scoring import Scorers
from muster.environments.task import ask
from muster.errors import CheckError, ConfigError, MalformedError, UnreachableError
from muster.sandbox.scorer import STACK, Outcome

HASH = "0x" + "5c" * 32
DOUBLE = ask("Double it.", kind="function", entry="double", tests=[{"input": [2], "output": 4}])
PROGRAM = "</think>```python\ndef double(x):\n    return 2 * x\n```"


def test_every_manifest_is_scored_by_its_own_environment() -> None:
    with Scorers() as scorers:
        tagged, bare = (
            EnvironmentManifest("arithmetic", Arithmetic.VERSION, {"thinking": thinking}, {"correct": MICRO})
            for thinking in ("tags", "none")
        )
        task = ask("17+25=", answer="42")
        assert [scorers.score(one, task, "</think>42").parts for one in (tagged, bare)] == [(MICRO,), (0,)]
        assert [scorers.score(one, task, "42").parts for one in (tagged, bare)] == [(0,), (MICRO,)]
        assert scorers.environment(tagged) is scorers.environment(
            EnvironmentManifest.from_document(tagged.to_document())
        )


def test_unknown_environment_or_option_is_refused() -> None:
    with Scorers() as scorers:
        with pytest.raises(ConfigError, match="no environment 'poetry'"):
            scorers.score(EnvironmentManifest("poetry", weights={"correct": MICRO}), ask("x"), "")
        with pytest.raises(MalformedError, match="no option"):
            scorers.score(
                EnvironmentManifest("sorting", options={"rhyme": 1}, weights={"correct": MICRO}), ask("x"), ""
            )


def test_a_component_that_is_not_here_is_no_fault_of_the_completion() -> None:
    """It raises, so no work is rejected."""
    with Scorers() as scorers, pytest.raises((CheckError, UnreachableError)):
        scorers.score(default_manifest("code", HASH), DOUBLE, PROGRAM)


@pytest.mark.parametrize("stopped", [STACK, "fuel"])
def test_a_call_that_was_deeper_than_the_stack_leaves_the_score_unsure(
    stopped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(self: object, scorer: object, payload: Any) -> Outcome:
        return Outcome(None, 11, stopped)

    monkeypatch.setattr("muster.sandbox.client.Sandbox.call", call)
    with Scorers() as scorers:
        score = scorers.score(default_manifest("code", HASH), DOUBLE, PROGRAM)
    assert (score.parts, score.fuel, score.unsure) == ((0,), 11, stopped == STACK)
