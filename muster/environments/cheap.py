"""Answers that cost no thought: what each environment is tried with before a model is trained on it.

A trained model finds what pays here within hours. `muster tasks check --attack`, tests and benchmarks share this list.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

from muster.environments.task import Task

FIXED: Final = (
    *("nan", "inf", "-inf", "None", "null", "True", "False", "yes", "no", "?", "N/A", "0", "1", "-1", "2", "0.0"),
    *("A", "B", "x", "x + C", "P", "[]", "{}", "[[]]", "()", "[0]", '""', "1e999999", "72e0", "0/1", "1+1", "oo"),
    *("Integral(x, x)", "\\int x\\,dx", "\\boxed{0} \\boxed{1}", "0 or 1", "1, 2, 3", "1 2 3", "4*6*1*1", "the"),
    *("```python\npass\n```", '{"a": 1}', "My answer is yes."),
)
"""Constants, what is no number, unevaluated forms, several answers in one."""
MOST_COPIED: Final = 6
"""Lines and numbers of a question that are tried, each from its end."""


def cheap_answers(task: Task) -> Iterator[tuple[str, str]]:
    """Yield what an answer is called, and the answer: the fixed ones, the question, its last lines and numbers."""
    question = task.messages[-1].content
    yield from ((f"the answer {answer!r}", answer) for answer in FIXED)
    yield "the question", question
    lines = [line.strip() for line in question.splitlines() if line.strip()]
    yield from ((f"line {place} of the question from its end", line) for place, line in _last(lines))
    numbers = re.findall(r"-?\d(?:[\d.,]*\d)?", question)
    yield from ((f"number {place} of the question from its end", number) for place, number in _last(numbers))
    yield "the question as an integral", f"Integral({lines[-1][:200] if lines else ''})"


def is_same(answer: str, right: str | None) -> bool:
    """Return whether an answer is the reference's: one text but for case, brackets and spaces, or one value."""
    if right is None:
        return False
    ours, theirs = (re.sub(r"\\boxed|[\s{}()$]|(?<=\d),(?=\d{3})", "", text).casefold() for text in (answer, right))
    try:
        return ours == theirs or math.isclose(float(ours[:64]), float(theirs[:64]), rel_tol=1e-12)
    except ValueError:
        return False


def _last(values: list[str]) -> Iterator[tuple[int, str]]:
    return enumerate(reversed(values[-MOST_COPIED:]), 1)
