"""Tasks that are scored by their author's own Python source, which runs in the component and nowhere else.

The source defines `score(task, completion)` and returns the parts of the score in millionths, by name. It stands in the
manifest, so the terms of a run name it. See `authored_scorer` in `muster/sandbox/guest` for what it can
use, and `muster.authoring.contributions` for how it gets into a task set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from muster.constants import MICRO
from muster.environments.answers import MAX_TEXT_CHARS, THINK_END, after_thinking, completion_of
from muster.environments.base import ScorerCall
from muster.environments.manifest import EnvironmentManifest, Score
from muster.environments.options import THINKING, Option, OptionsEnvironment, Text, only, text_of
from muster.environments.task import Task
from muster.errors import MalformedError

MAX_SOURCE_BYTES: Final = 64 * 1024
"""Of a scorer's source. Changing this changes which manifests nodes refuse."""

STOPPED: Final = {
    "fuel": ": it takes more than the limit",
    "trap": ": the source ends its process, or reaches for what the sandbox lacks",
}
"""What to tell an author beside the sandbox's own word."""

DEFAULT_SOURCE: Final = '''def score(task, completion):
    """Return 1 when the answer is exactly the task's."""
    return {"correct": 1_000_000 if completion.strip() == task["answer"] else 0}
'''


class Authored(OptionsEnvironment):
    """An author's scorer. Reference: `{"answer": any JSON, "oracle": text}`.

    The scorer gets the task as `{"id", "level", "messages": [{"role", "content"}], "answer"}`, and of the completion
    what follows the thinking. The oracle, an answer that scores 1, is for checking and never given to it.
    """

    NAME: ClassVar[str] = "authored"
    PARTS: ClassVar[tuple[str, ...]] = ("correct",)
    """Of the default source. Others name their own, by the weights of the manifest."""
    FUNCTION: ClassVar[str] = "authored"
    OPTIONS: ClassVar[Mapping[str, Option]] = {
        "source": Text(MAX_SOURCE_BYTES, DEFAULT_SOURCE),
        "thinking": THINKING,
    }

    def __init__(self, manifest: EnvironmentManifest) -> None:
        super().__init__(manifest, manifest.parts)

    def check(self, task: Task) -> None:
        """Raise MalformedError unless the task has an answer, and an oracle that can be given."""
        only(task.reference, ("answer", "oracle"), task.id)
        if task.reference.get("answer") in (None, "", [], {}):
            raise MalformedError(f"task {task.id[:80]!r} has no answer", hint="give each task an answer")
        oracle = text_of(task.reference, "oracle", task.id)
        if len(oracle) > MAX_TEXT_CHARS or (self._thinking == "tags" and THINK_END in oracle):
            raise MalformedError(
                f"task {task.id[:80]!r} has an oracle that cannot be given: over {MAX_TEXT_CHARS} characters, "
                f"or with {THINK_END} in it"
            )

    def score(self, task: Task, completion: str, call: ScorerCall) -> Score:
        """Return the parts that the source returns; zeros, with the reason, where it returns none."""
        # 1. What is scored: an answer that one call can hold.
        answer = after_thinking(completion, self._thinking)
        if answer is None:
            return self._zero("no answer")
        if len(answer) > MAX_TEXT_CHARS:
            return self._zero(f"an answer over {MAX_TEXT_CHARS} characters")

        # 2. Let the source judge it.
        outcome = call({"completion": answer, "source": self._options["source"], "task": _shown(task)})
        match outcome.value:
            case {"parts": dict(parts)}:
                return self._score(parts, outcome.fuel)
            case {"error": str(error)}:
                return self._zero(f"the scorer failed: {error}", outcome.fuel)
        why = STOPPED.get(outcome.stopped, "")
        return self._zero(f"stopped: {outcome.stopped}{why}", outcome.fuel)

    def reference_completion(self, task: Task) -> str:
        return completion_of(task.reference["oracle"], self._thinking)

    def _score(self, parts: Mapping[Any, Any], fuel: int) -> Score:
        names = self.manifest.parts
        if set(parts) != set(names):
            given = ", ".join(sorted(map(str, parts)))[:100] or "none"
            return self._zero(f"the scorer returned the parts {given}, not {', '.join(names)}", fuel)
        for name in names:
            if type(parts[name]) is not int or not 0 <= parts[name] <= MICRO:
                return self._zero(f"part {name} is {str(parts[name])[:40]}, no integer from 0 to {MICRO}", fuel)
        found = tuple(parts[name] for name in names)
        return Score(found, fuel, "" if min(found) == MICRO else "not the full score")

    def _zero(self, reason: str, fuel: int = 0) -> Score:
        return Score((0,) * len(self.manifest.parts), fuel, reason[:300])


def _shown(task: Task) -> dict[str, Any]:
    """Return what the source sees of a task."""
    return {
        "answer": task.reference["answer"],
        "id": task.id,
        "level": task.level,
        "messages": [{"role": message.role, "content": message.content} for message in task.messages],
    }
