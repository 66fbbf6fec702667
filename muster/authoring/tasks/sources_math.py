"""Published problems with one final answer: GSM8K, DeepScaleR, NuminaMath-1.5."""

from __future__ import annotations

from typing import Final

from muster.authoring.tasks.formats import Format, make_task, text_of
from muster.authoring.tasks.rows import Row
from muster.environments.task import Task
from muster.errors import MalformedError

ENVIRONMENT: Final = "math"
MAX_ANSWER: Final = 4_000

NO_ANSWERS: Final = frozenset({"proof", "notfound", "not found", "none", "n/a"})
"""What NuminaMath writes where a problem has no final answer."""


def _gsm8k(row: Row) -> tuple[str, Task]:
    _, mark, answer = text_of(row, "answer").rpartition("####")
    answer = answer.strip().replace(",", "")
    if not mark or not answer or len(answer) > MAX_ANSWER:
        raise MalformedError("no answer after ####")
    return ENVIRONMENT, make_task("gsm8k", text_of(row, "question"), {"answer": answer})


def _deepscaler(row: Row) -> tuple[str, Task]:
    answer = text_of(row, "answer", MAX_ANSWER).strip()
    return ENVIRONMENT, make_task("deepscaler", text_of(row, "problem"), {"answer": answer})


def _numina(row: Row) -> tuple[str, Task]:
    if row["question_type"] == "proof":
        raise MalformedError("asks for a proof")
    for column in ("problem_is_valid", "solution_is_valid"):
        if row.get(column, "Yes") != "Yes":
            raise MalformedError(f"{column} is not Yes")
    answer = text_of(row, "answer", MAX_ANSWER).strip()
    if answer.lower() in NO_ANSWERS:
        raise MalformedError("has no final answer")
    return ENVIRONMENT, make_task("numina", text_of(row, "problem"), {"answer": answer})


FORMATS: Final = (
    Format("gsm8k", ("question", "answer"), _gsm8k),
    Format("deepscaler", ("problem", "answer"), _deepscaler, ("solution",)),
    Format(
        "numina",
        ("problem", "answer", "question_type"),
        _numina,
        ("problem_is_valid", "solution_is_valid", "problem_type"),
    ),
)
