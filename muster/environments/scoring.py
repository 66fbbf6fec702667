"""Score completions of many tasks: each by its manifest, with one sandbox for all."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from muster.environments.base import Environment, ScorerCall
from muster.environments.manifest import EnvironmentManifest, Score
from muster.environments.registry import make_environment
from muster.environments.task import Task
from muster.errors import MalformedError
from muster.runtime.closing import Closing
from muster.sandbox.client import Sandbox
from muster.sandbox.scorer import Outcome, ScorerManifest


class Scorers(Closing):
    """Scores by any manifest. Blocking and thread-safe; its processes start when a score first needs them."""

    def __init__(self, components: Path | None = None) -> None:
        """Keep components of runs in a folder; without one, only this machine's own is found."""
        self.sandbox = Sandbox(components)
        self._environments: dict[bytes, Environment] = {}

    def close(self) -> None:
        self.sandbox.close()

    def environment(self, manifest: EnvironmentManifest) -> Environment:
        """Return a manifest's environment. Raises as `make_environment`."""
        key = manifest.to_bytes()
        if key not in self._environments:
            self._environments[key] = make_environment(manifest)
        return self._environments[key]

    def score(self, manifest: EnvironmentManifest, task: Task, completion: str) -> Score:
        """Score a completion's text, its end token removed.

        A task whose reference the environment cannot score by is worth 0 to everybody. Raises UnreachableError when
        this machine cannot run the scorer, and as `make_environment`.
        """
        environment = self.environment(manifest)
        try:
            environment.check(task)
        except MalformedError as error:
            return worthless(manifest, error)
        return score_by(environment, task, completion, self.call_of(manifest))

    def call_of(self, manifest: EnvironmentManifest) -> ScorerCall:
        """Return what a manifest's environment calls its scorer by. An environment without one never does."""
        return partial(self.sandbox.call, cast(ScorerManifest, manifest.scorer))


def worthless(manifest: EnvironmentManifest, error: MalformedError) -> Score:
    """Return the score of every completion of a task that is of no use."""
    return Score((0,) * len(manifest.parts), reason=f"the task is of no use: {error}"[:200])


def score_by(environment: Environment, task: Task, completion: str, call: ScorerCall) -> Score:
    """Return a completion's score, and whether another machine could have come to another one. Raises as `call`."""
    outcomes: list[bool] = []

    def noted(payload: Any) -> Outcome:
        outcome = call(payload)
        outcomes.append(outcome.unsure)
        return outcome

    score = environment.score(task, completion, noted)
    return replace(score, unsure=any(outcomes))
