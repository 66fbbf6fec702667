"""Sorting and arithmetic: the right answer scores one, in exactly one form, and anything else scores nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from muster.authoring.tasks.families import FAMILIES
from muster.authoring.tasks.generated import make_tasks
from muster.constants import MICRO
from muster.environments.answers import MAX_ANSWER_CHARS
from muster.environments.base import Environment, ScorerCall
from muster.environments.registry import default_manifest, make_environment
from muster.environments.task import Task, ask
from muster.errors import MalformedError

SORT = ask("sort 5231", answer="1235")
SORTING = make_environment(default_manifest("sorting"))


def score(environment: Environment, task: Task, completion: str, no_call: ScorerCall) -> int:
    found = environment.score(task, completion, no_call)
    assert (found.fuel, found.unsure) == (0, False), "no component is needed"
    return found.reward(environment.manifest)


@pytest.mark.parametrize(
    ("family", "levels"), [("sort", (3, 4, 5, 6)), ("arithmetic", (1, 2, 3)), ("sums", (9, 40, 90))]
)
def test_the_reference_answer_of_every_task_scores_one(
    family: str, levels: tuple[int, ...], no_call: ScorerCall
) -> None:
    environment = make_environment(FAMILIES[family].environment)
    tasks, held_out = make_tasks(3, families=[family], levels=levels, train=1000, held_out=60)[family]
    thought = "...</think>" if environment.manifest.thinks else ""
    for task in tasks + held_out:
        environment.check(task)
        assert score(environment, task, f"{thought}{task.reference['answer']}", no_call) == MICRO
        assert score(environment, task, str(environment.reference_completion(task)), no_call) == MICRO
        assert score(environment, task, "", no_call) == 0


def test_spaces_and_newlines_around_the_answer_are_forgiven(no_call: ScorerCall) -> None:
    assert score(SORTING, SORT, "any thought, 1234 say</think>\n 1235 \n", no_call) == MICRO


def test_without_thinking_the_answer_is_all_that_is_written(
    environment_of: Callable[..., Environment], no_call: ScorerCall
) -> None:
    sums = environment_of("arithmetic", thinking="none")
    task = ask("What is 7 + 5?", answer="12")
    assert score(sums, task, " 12\n", no_call) == MICRO
    assert score(sums, task, "...</think>12", no_call) == 0
    assert score(sums, task, "The answer is 12", no_call) == 0
    assert sums.reference_completion(task) == "12"


@pytest.mark.parametrize(
    "reference",
    [
        {},
        {"answer": ""},
        {"answer": 12},
        {"answer": " 12"},
        {"answer": "12\n"},
        {"answer": "1</think>2"},
        {"answer": "9" * (MAX_ANSWER_CHARS + 1)},
        {"answer": "12", "choices": 4},
    ],
)
def test_task_with_an_impossible_answer_is_refused(reference: dict[str, object]) -> None:
    with pytest.raises(MalformedError):
        SORTING.check(ask("sort 21", **reference))
