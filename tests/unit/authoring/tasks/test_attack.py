"""Answers that cost no thought: an environment that pays for one is named, and ours pay for none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.authoring.tasks.checking import ANSWER_SHOWN, CHEAP_PAYS, FIXED, cheap_answers, check_set, is_same, paying
from muster.authoring.tasks.generated import make_task_set
from muster.environments.registry import make_environment, own_manifest
from muster.environments.scoring import Scorers
from muster.environments.task import Task, ask
from muster.tasksets.build import NewPart, write_task_set
from muster.tasksets.taskset import TaskSet

COIN = [
    ask(f"How likely is that? {number}", dataset="coin_flip", entry={"question": "?", "answer": answer, "metadata": {}})
    for number, answer in enumerate(("0.234375", "0.109375", "0.65625"))
]
NO_COMMA = [
    ask(f"Write {thing} without a comma.", instructions=[{"id": "punctuation:no_comma", "kwargs": {}}])
    for thing in ("a poem", "a story", "a letter")
]
NUMBERS = [ask(f"What is {a} plus {b}?", answer=str(a + b)) for a, b in ((17, 25), (30, 44), (8, 51))]


@pytest.fixture(scope="module")
def scorers() -> Iterator[Scorers]:
    with Scorers() as made:
        yield made


@pytest.fixture(scope="module")
def pays(scorers: Scorers) -> Callable[..., dict[str, float]]:
    def measure(name: str, tasks: list[Task], **options: Any) -> dict[str, float]:
        manifest = own_manifest(name, {"thinking": "none", **options})
        return paying(make_environment(manifest), tasks, scorers.call_of(manifest))

    return measure


def test_published_scorers_pay_for_answers_that_cost_no_thought(pays: Callable[..., dict[str, float]]) -> None:
    coins = pays("reasoning_gym", COIN, scoring="published")
    assert coins["the answer '0'"] == pytest.approx(2 / 3), "it may be the reference of one of the three"
    assert pays("instruction", NO_COMMA, scoring="published")["the answer '1'"] == 1.0


@pytest.mark.parametrize(
    ("name", "tasks", "options"),
    [
        ("reasoning_gym", COIN, {}),
        ("math", NUMBERS, {}),
        ("math", NUMBERS, {"answer": "number"}),
        ("arithmetic", NUMBERS, {"answer": "number"}),
        ("arithmetic", NUMBERS, {"answer": "exact"}),
        ("choice", [replace(one, reference={"answer": "C", "choices": 4}) for one in NUMBERS], {}),
    ],
)
def test_rewards_pay_for_none(
    pays: Callable[..., dict[str, float]], name: str, tasks: list[Task], options: dict[str, Any]
) -> None:
    assert pays(name, tasks, **options) == {}


def test_an_answer_that_is_right_by_chance_is_no_hack(pays: Callable[..., dict[str, float]]) -> None:
    ones = [ask(f"What is {a} minus {a - 1}?", answer="1") for a in (5, 9, 7)]
    assert pays("arithmetic", ones, answer="number") == {}
    assert is_same("\\boxed{1}", "1")
    assert is_same("1.0", "1")
    assert not is_same("1", None)
    assert not is_same("1", "-1")


def test_a_question_is_tried_whole_and_in_parts() -> None:
    found = dict(cheap_answers(ask("Add.\nUse 7 and 1,200.")))
    assert len(found) == len(FIXED) + 6
    assert found["the question"] == "Add.\nUse 7 and 1,200."
    assert found["line 1 of the question from its end"] == "Use 7 and 1,200."
    assert found["number 2 of the question from its end"] == "7"


def test_the_check_of_a_set_names_what_pays(tmp_path: Path, scorers: Scorers) -> None:
    make_task_set(0, families=["sums"], levels=[99], train=12, held_out=4, folder=tmp_path / "tasks")
    task_set = TaskSet.open(tmp_path / "tasks")

    def check(attack: int) -> list[int]:
        reports = check_set(task_set, scorers.environment, scorers.call_of, attack=attack)
        return [report.faults[CHEAP_PAYS] for report in reports]

    assert check(0) == check(8) == [0, 0]


STATED = {
    "What is 2 + 3? The answer is 5.": {"answer": "5"},
    "What is 2 + 4? Answer: **6**": {"answer": "6"},
    "How many legs has a spider? #### 8": {"answer": "8"},
    "Which is it? The correct answer is (B).": {"answer": "B", "choices": 4},
    "Solve it. \\boxed{12}": {"answer": "12"},
}
NOT_STATED = {
    "Is the answer 5 or 6?": {"answer": "5"},
    "The answer is 5.5 less than 10.5; what is it?": {"answer": "5"},
    "Which? Answer: A, B, C or D.": {"answer": "A", "choices": 4},
    "Which? Answer (A) or (B).": {"answer": "A", "choices": 2},
    "A result of 10 cm is doubled. Give the answer in \\boxed{}.": {"answer": "20"},
}
PROGRAM = "import sys\n\nprint(sum(map(int, sys.stdin.read().split())))"


def test_the_check_of_a_set_names_prompts_that_hold_their_answer(tmp_path: Path, scorers: Scorers) -> None:
    code = {"kind": "stdin", "solution": PROGRAM, "tests": [{"input": "1 2", "output": "3"}]}

    def parts(texts: dict[str, dict[str, Any]], more: str) -> list[NewPart]:
        asked = [ask(text, **reference) for text, reference in texts.items()]
        return [
            NewPart("letters", own_manifest("choice"), [task for task in asked if "choices" in task.reference]),
            NewPart("numbers", own_manifest("math"), [task for task in asked if "choices" not in task.reference]),
            NewPart("programs", own_manifest("code"), [ask(f"Add the numbers.{more}", **code)]),
        ]

    for texts, more, found in (
        (STATED, f"\n```python\n{PROGRAM}\n```", {ANSWER_SHOWN: 6}),
        (NOT_STATED, "\nimport sys", {}),
    ):
        task_set = write_task_set(tmp_path / str(len(found)), parts(texts, more))
        reports = check_set(task_set, scorers.environment, scorers.call_of)
        assert sum((report.faults for report in reports), Counter()) == found
