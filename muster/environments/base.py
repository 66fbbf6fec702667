"""What an environment is to the rest of the house, and what it may call."""

from __future__ import annotations

from typing import Any, Protocol

from muster.environments.manifest import EnvironmentManifest, Score
from muster.environments.task import Task
from muster.sandbox.scorer import Outcome


class ScorerCall(Protocol):
    """Calls the manifest's scorer, each time in a fresh instance of the component."""

    def __call__(self, payload: Any) -> Outcome:
        """Return the outcome of one call with a JSON payload.

        Raises UnreachableError when this machine could not tell: that is never the completion's fault.
        """
        ...


class Environment(Protocol):
    """Scores completions of its tasks. One instance per manifest; it keeps no state."""

    manifest: EnvironmentManifest

    def check(self, task: Task) -> None:
        """Raise MalformedError when the task has no reference that this environment can score by."""
        ...

    def score(self, task: Task, completion: str, call: ScorerCall) -> Score:
        """Score a completion's text, its end token removed.

        The text is a stranger's: it is never evaluated here, never searched with anything slower than a linear scan,
        and whatever runs a library on it goes through `call`.
        """
        ...

    def reference_completion(self, task: Task) -> str | None:
        """Return an answer that scores 1, without any thinking; None where the reference holds none."""
        ...
