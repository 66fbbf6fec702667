r"""Mathematical answers: right when math-verify finds them equal to the reference.

math-verify runs in the component. Two answers need no call: an expression whose text is the reference's, which the
component's function holds equal too, and plain integers. Both agree with the component
(`tests/unit/environments/test_math.py`), so a run may score with or without them. A text is looked through by
math-verify even where it is the reference's: an answer that it does not find there does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from muster.constants import MICRO
from muster.environments.answers import (
    MAX_BOX_CHARS,
    MAX_TEXT_CHARS,
    after_thinking,
    balanced,
    completion_of,
    last_box,
    last_number,
)
from muster.environments.base import ScorerCall
from muster.environments.manifest import Score
from muster.environments.options import THINKING, OneOf, Option, OptionsEnvironment, failed, only, text_of
from muster.environments.task import Task
from muster.errors import MalformedError

MAX_DIGITS: Final = 12
"""Of an integer that is compared here."""

_DIGITS: Final = frozenset("0123456789")


class Math(OptionsEnvironment):
    r"""Problems with a mathematical answer. Reference: `{"answer": text}`, in LaTeX or plain.

    Option `answer`: "boxed" takes the last `\boxed{}`; "boxed_or_text" the whole answer where there is no box;
    "text" always the whole answer, in which math-verify looks for one; "number" the last number, as for GSM8K.
    Option `scoring`: "published" is math-verify's verdict, "reward" has rules that are harder to game.
    Option `gold`: "latex" for a bare expression, "text" for a text in which math-verify looks for one.
    """

    NAME: ClassVar[str] = "math"
    VERSION: ClassVar[int] = 2
    FUNCTION: ClassVar[str] = "math_verify"
    OPTIONS: ClassVar[Mapping[str, Option]] = {
        "answer": OneOf(("boxed", "boxed_or_text", "text", "number")),
        "gold": OneOf(("latex", "text")),
        "scoring": OneOf(("reward", "published")),
        "thinking": THINKING,
    }

    def check(self, task: Task) -> None:
        """Raise MalformedError unless the reference's answer can be given."""
        only(task.reference, ("answer",), task.id)
        answer = text_of(task.reference, "answer", task.id)
        if len(answer) > MAX_BOX_CHARS or answer != answer.strip():
            raise MalformedError(
                f"task {task.id[:80]!r} has an answer over {MAX_BOX_CHARS} characters or in white space"
            )
        if self._answer in ("boxed", "boxed_or_text") and not balanced(answer):
            raise MalformedError(f"task {task.id[:80]!r} has an answer that no box can hold: {answer[:80]!r}")
        if self._answer == "number" and last_number(answer) != answer:
            raise MalformedError(f"task {task.id[:80]!r} has an answer that is no number: {answer[:80]!r}")

    def score(self, task: Task, completion: str, call: ScorerCall) -> Score:
        """Return 1 when the answer is equal to the reference's, else 0."""
        # 1. Find the answer.
        text = after_thinking(completion, self._thinking)
        if text is None:
            return failed("the thinking did not end, or ended twice")
        answer, form = self._find(text)
        if not answer:
            return failed("no answer")

        # 2. Compare texts and plain integers here.
        gold = task.reference["answer"]
        if form == "latex" and gold == answer:
            return Score((MICRO,))
        if form == "latex" and self._options["gold"] == "latex":
            ours, theirs = plain_integer(gold), plain_integer(answer)
            if ours is not None and theirs is not None:
                return Score((MICRO,)) if ours == theirs else failed("another number")

        # 3. Let math-verify compare the rest.
        formats = {"answer_format": form, "gold_format": self._options["gold"], "scoring": self._options["scoring"]}
        outcome = call({"answer": answer, "gold": gold, **formats})
        match outcome.value:
            case {"equal": True}:
                return Score((MICRO,), outcome.fuel)
        return failed(f"stopped: {outcome.stopped}"[:200] if outcome.stopped else "another answer", outcome.fuel)

    def reference_completion(self, task: Task) -> str:
        """Return the reference's answer, in a box unless a number is looked for or the reference is a text itself."""
        answer = task.reference["answer"]
        boxed = self._answer in ("boxed", "boxed_or_text") or (self._answer, self._options["gold"]) == ("text", "latex")
        return completion_of(f"\\boxed{{{answer}}}" if boxed else answer, self._thinking)

    def _find(self, text: str) -> tuple[str | None, str]:
        """Return the answer and whether it is "latex", a bare expression, or "text" to look in."""
        if self._answer == "number":
            return last_number(text), "latex"
        if self._answer != "text" or self._options["scoring"] == "reward":
            box = last_box(text)
            if box is not None or self._answer == "boxed":
                return box, "latex"
        return (text.strip() if len(text) <= MAX_TEXT_CHARS else None), "text"


def plain_integer(text: str) -> int | None:
    """Return the integer that a text of ASCII digits writes; None for any other text.

    No sign but a hyphen, no leading zeros, at most `MAX_DIGITS` digits. Decimals and fractions are math-verify's: it
    rounds some of them.
    """
    sign, body = (-1, text[1:]) if text.startswith("-") else (1, text)
    if 1 <= len(body) <= MAX_DIGITS and _DIGITS.issuperset(body) and (body[0] != "0" or text == "0"):
        return sign * int(body)
    return None
