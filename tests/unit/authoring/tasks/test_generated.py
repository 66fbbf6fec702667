"""Generated families: the tasks of a seed stay what they were, and no problem is in both halves."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.authoring.tasks.families import FAMILIES, StoriesFamily, SumsFamily
from muster.authoring.tasks.generated import make_task_set, make_tasks
from muster.environments.task import Task
from muster.errors import ConfigError
from muster.tasksets.taskset import TaskSet


@pytest.mark.parametrize(
    ("family", "seed", "levels", "train", "digest"),
    [
        ("sort", 7, (3, 4, 5, 6), 512, "cfb658acddc2933c1bba3a7aef3593a02d84ce9aa9bb7908716d7793b9f394a0"),
        ("calculator", 3, (3, 4), 200, "4621f3a75de0b16bd1c31647cb90a7e592752e238d1ac965d6d044a934e4d165"),
        ("sums", 3, (9, 12, 15), 200, "a039cfa837059d0163c7d533d03ccba517f1861d2137fdeebad52f11f30be2c9"),
        ("stories", 3, (9, 12, 15), 200, "034c7dc63cf1b8a739eaa5933c7abce86b6748d0d8f90b42a0de0cddff24aee0"),
        ("arithmetic", 3, (1, 2, 3), 1000, "1d3a35a8c7817192e15cb2641110998af216b4d83654a46abe25624c4f405af0"),
    ],
)
def test_tasks_of_a_seed_are_those_of_the_first_version(
    family: str, seed: int, levels: tuple[int, ...], train: int, digest: str
) -> None:
    tasks, held = make_tasks(seed, families=[family], levels=levels, train=train, held_out=60)[family]
    whole = "\n".join(f"{task.text} {task.reference['answer']}" for task in tasks + held)
    assert hashlib.sha256(whole.encode()).hexdigest() == digest
    assert {task.level for task in tasks} == set(levels)


def problem_of(task: Task) -> tuple[str, ...]:
    """Return what a task asks, whatever its wording: its digits, or its two numbers and how they are combined."""
    numbers = re.findall("[0-9]+", task.text)
    if len(numbers) == 1:
        return tuple(sorted(numbers[0]))
    sign = re.search("(?<=[0-9])[+*-](?=[0-9])", task.text)
    total = sum(map(int, numbers))
    combined = sign[0] if sign else "+" if task.reference["answer"] == str(total) else "-"
    return (combined, *sorted(numbers, key=int))


@pytest.mark.parametrize(
    ("family", "levels"), [("sort", (2, 3)), ("arithmetic", (1, 2)), ("sums", (6, 12)), ("stories", (6, 12))]
)
def test_no_held_out_problem_is_trained_on_in_other_clothes(family: str, levels: tuple[int, ...]) -> None:
    tasks, held = make_tasks(5, families=[family], levels=levels, train=250, held_out=24)[family]
    problems = set(map(problem_of, held))
    assert len(problems) == 24
    assert not problems & set(map(problem_of, tasks))
    assert len({task.text for task in tasks + held}) == 274


@given(st.integers(1, 1000), st.integers(0, 2**32))
def test_sums_are_right_in_every_wording(level: int, seed: int) -> None:
    task, key = SumsFamily().make(Random(seed), level)
    low, high = sorted(map(int, re.findall("[0-9]+", task.text)))
    assert (task.reference, key) == ({"answer": str(low + high)}, f"{low}+{high}")
    assert 1 <= low <= high <= level == task.level


def test_sums_are_asked_in_all_wordings_about_equally() -> None:
    tasks, _ = make_tasks(0, families=["sums"], levels=(50,), train=1000, held_out=24)["sums"]
    heads = Counter(re.sub("[0-9]+", "N", task.text) for task in tasks)
    assert len(heads) == len(SumsFamily.WORDINGS)
    assert all(150 <= count <= 250 for count in heads.values())
    assert FAMILIES["sums"].environment.options == {"answer": "number", "thinking": "none"}
    assert FAMILIES["sums"].environment.name == "arithmetic"


def test_held_out_numbers_of_a_sum_are_in_no_story_either() -> None:
    made = make_tasks(0, families=["sums", "stories"], levels=(9, 12, 15), train=288, held_out=48)
    held, trained = ({problem_of(task) for halves in made.values() for task in halves[half]} for half in (1, 0))
    assert {name: tuple(map(len, halves)) for name, halves in made.items()} == {"sums": (288, 48), "stories": (288, 48)}
    assert not held & trained
    assert {problem[0] for problem in held} == {"+", "-"}


@given(st.integers(1, 1000), st.integers(0, 2**32))
def test_stories_are_right_in_every_plot(level: int, seed: int) -> None:
    task, key = StoriesFamily().make(Random(seed), level)
    a, sign, b = re.split("([+-])", key)
    answer = int(a) + int(b) if sign == "+" else int(a) - int(b)
    assert task.reference == {"answer": str(answer)}
    assert problem_of(task) == (sign, *sorted((a, b), key=int))
    assert 1 <= (max(int(b), answer) if sign == "-" else max(int(a), int(b))) <= level == task.level


def test_a_generated_set_is_written_and_read(tmp_path: Path) -> None:
    made = make_task_set(3, families=["sums"], levels=(4, 8, 12), train=100, held_out=24, folder=tmp_path / "set")
    opened = TaskSet.open(tmp_path / "set", made.root)
    tasks, held = make_tasks(3, families=["sums"], levels=(4, 8, 12), train=100, held_out=24)["sums"]
    assert [task for _, task in opened.train] == tasks
    assert [task for _, task in opened.held_out] == held
    assert (opened.size, opened.document.parts[0].name) == (100, "sums")
    assert "--family sums --seed 3 --levels 4,8,12" in opened.document.parts[0].sources[0].origin


@pytest.mark.parametrize(
    "options",
    [
        {"families": ["poetry"]},
        {"families": []},
        {"families": ["sums", "sums"]},
        {"levels": ()},
        {"levels": (0,)},
        {"levels": (13,)},
        {"train": 0},
        {"held_out": 0},
        {"levels": (1,), "train": 1000},
        {"families": ["sums"], "levels": (3,), "held_out": 7},
    ],
)
def test_what_cannot_be_made_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        make_tasks(0, **{"train": 5, "held_out": 5, **options})  # pyright: ignore[reportArgumentType]
