"""What a completion is worth: integers in millionths (`constants.MICRO`), equal on every machine.

The text comes from a stranger's model. It is never evaluated, never turned into a number and never searched with
anything slower than a linear scan.
"""

from __future__ import annotations

from typing import Final

from muster.constants import MICRO
from muster.tasks.families import Task

THINK_END: Final = "</think>"
"""What ends the thinking. The prompt opens it, so a completion is `thinking</think>answer`."""

LENGTH_ALPHA: Final = 100_000
"""Weight of the length reward, in millionths: missing the budget by its own size costs 0.1.
Changing this changes the `length_reward` column, so validators of another version reject it."""

MAX_ANSWER_CHARS: Final = 256


def answer_of(completion: str) -> str | None:
    """Return the answer: what follows the only `</think>`, without surrounding spaces and newlines.

    None when the thinking was never ended, was ended twice, or the answer is empty or longer than
    `MAX_ANSWER_CHARS`.
    """
    _, mark, answer = completion.partition(THINK_END)
    if not mark or THINK_END in answer or len(answer) > MAX_ANSWER_CHARS:
        return None
    return answer.strip(" \n") or None


def verify(task: Task, completion: str) -> int:
    """Return the task reward of a completion's text (EOS removed): MICRO when the answer is exactly right, else 0."""
    return MICRO if answer_of(completion) == task.answer else 0


def length_reward(budget: int, length: int) -> int:
    """Return −α·|length − budget| / budget in millionths, rounded towards zero; `length` counts tokens, EOS included.

    Relative, because with answers of 20 tokens an absolute penalty per token would be negligible or dominate the task.
    """
    return -(LENGTH_ALPHA * abs(length - budget) // budget)
