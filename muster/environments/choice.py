"""Multiple choice: the answer is a letter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from muster.constants import MICRO
from muster.environments.answers import LETTERS, after_thinking, completion_of, last_box
from muster.environments.base import ScorerCall
from muster.environments.letters import last_letter, letter_in
from muster.environments.manifest import Score
from muster.environments.options import THINKING, OneOf, Option, OptionsEnvironment, failed, only, text_of
from muster.environments.task import Task
from muster.errors import MalformedError


class MultipleChoice(OptionsEnvironment):
    r"""Questions with lettered answers. Reference: `{"answer": "B", "choices": 4}`.

    Option `answer`: "letter" takes the letter that the answer names (`letters.py`), one in a box first; "exact" wants
    nothing but the letter; "boxed" wants it in `\boxed{}`, also as `(B)`, `B.` or `\text{B}`.
    """

    NAME: ClassVar[str] = "choice"
    VERSION: ClassVar[int] = 3
    OPTIONS: ClassVar[Mapping[str, Option]] = {"answer": OneOf(("letter", "exact", "boxed")), "thinking": THINKING}

    def check(self, task: Task) -> None:
        """Raise MalformedError unless the reference is one of two to 26 letters."""
        only(task.reference, ("answer", "choices"), task.id)
        answer, choices = text_of(task.reference, "answer", task.id), task.reference.get("choices")
        if type(choices) is not int or not 2 <= choices <= len(LETTERS):
            raise MalformedError(f"task {task.id[:80]!r} has no number of choices from 2 to {len(LETTERS)}")
        if answer not in tuple(LETTERS[:choices]):
            raise MalformedError(f"task {task.id[:80]!r} has the answer {answer[:40]!r} of {choices} choices")

    def score(self, task: Task, completion: str, call: ScorerCall) -> Score:
        """Return 1 when the letter is the reference's, else 0."""
        text = after_thinking(completion, self._thinking)
        if text is None:
            return failed("the thinking did not end, or ended twice")
        if self._answer == "letter":
            letter = last_letter(text, task.reference["choices"])
        else:
            letter = letter_in(last_box(text) or "") if self._answer == "boxed" else text.strip(" \n")
        if not letter:
            return failed("no letter")
        return Score((MICRO,)) if letter == task.reference["answer"] else failed("another letter")

    def reference_completion(self, task: Task) -> str:
        """Return the reference's letter, in a box where one is wanted."""
        letter = task.reference["answer"]
        return completion_of(f"\\boxed{{{letter}}}" if self._answer == "boxed" else letter, self._thinking)
