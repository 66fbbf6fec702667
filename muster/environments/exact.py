"""Tasks whose answer is one text, digits or a number: right when it is exactly the reference."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import ClassVar

from muster.constants import MICRO
from muster.environments.answers import (
    MAX_ANSWER_CHARS,
    THINK_END,
    after_thinking,
    completion_of,
    exact_answer,
    last_number,
)
from muster.environments.base import ScorerCall
from muster.environments.manifest import Score
from muster.environments.options import THINKING, OneOf, Option, OptionsEnvironment, failed, only, text_of
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


class Arithmetic(ExactAnswer):
    """Sums, differences and products. Reference: `{"answer": "42"}`.

    Option `answer`: "exact" wants nothing but the number; "number" takes the last number of the answer, for models that
    answer in sentences.
    """

    NAME: ClassVar[str] = "arithmetic"
    VERSION: ClassVar[int] = 2
    OPTIONS: ClassVar[Mapping[str, Option]] = {"answer": OneOf(("exact", "number")), "thinking": THINKING}

    def check(self, task: Task) -> None:
        """Raise MalformedError unless the reference's answer can be given, and found."""
        super().check(task)
        if self._answer == "number" and last_number(task.reference["answer"]) != task.reference["answer"]:
            raise MalformedError(f"task {task.id[:80]!r} has an answer that is no number")

    def score(self, task: Task, completion: str, call: ScorerCall) -> Score:
        """Return 1 when the answer, or its last number, is exactly the reference's, else 0."""
        if self._answer == "exact":
            return super().score(task, completion, call)
        answer = after_thinking(completion, self._thinking)
        number = None if answer is None else last_number(answer)
        if number is None:
            return failed("no number")
        return Score((MICRO,)) if Decimal(number) == Decimal(task.reference["answer"]) else failed("another number")


class Sorting(ExactAnswer):
    """Digits to sort. Reference: `{"answer": "1235"}`."""

    NAME: ClassVar[str] = "sorting"
