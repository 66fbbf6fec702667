"""Tasks whose answer is one text: right when it is exactly the reference."""

from __future__ import annotations

from muster.constants import MICRO
from muster.environments.answers import MAX_ANSWER_CHARS, THINK_END, completion_of, exact_answer
from muster.environments.base import ScorerCall
from muster.environments.manifest import Score
from muster.environments.options import OptionsEnvironment, failed, only, text_of
from muster.environments.task import Task
from muster.errors import MalformedError


class ExactAnswer(OptionsEnvironment):
    """Base of environments that compare texts. Reference: `{"answer": text}`."""

    def check(self, task: Task) -> None:
        """Raise MalformedError unless the reference's answer can be given."""
        only(task.reference, ("answer",), task.id)
        answer = text_of(task.reference, "answer", task.id)
        if len(answer) > MAX_ANSWER_CHARS or answer != answer.strip(" \n") or THINK_END in answer:
            raise MalformedError(
                f"task {task.id[:80]!r} has an answer that cannot be given: over {MAX_ANSWER_CHARS} characters, "
                f"surrounded by spaces, or with {THINK_END} in it"
            )

    def score(self, task: Task, completion: str, call: ScorerCall) -> Score:
        """Return 1 when the answer is exactly the reference's, else 0."""
        answer = exact_answer(completion, self._thinking)
        if answer is None:
            return failed("no answer")
        return Score((MICRO,)) if answer == task.reference["answer"] else failed("another answer")

    def reference_completion(self, task: Task) -> str:
        """Return the reference's answer."""
        return completion_of(task.reference["answer"], self._thinking)
