"""Generated families: the tasks of a seed stay what they were, and no problem is in both halves."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.authoring.tasks.families import FAMILIES, StoriesFamily, SumsFamily
from muster.authoring.tasks.generated import make_task_set, make_tasks
from muster.environments.task import ChatMessage, Task
from muster.errors import ConfigError, MalformedError
from muster.tasksets.taskset import TaskSet


@pytest.mark.parametrize(
    ("family", "seed", "levels", "train", "digest"),
    [
        ("sort", 7, (3, 4, 5, 6), 512, "cfb658acddc2933c1bba3a7aef3593a02d84ce9aa9bb7908716d7793b9f394a0"),
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


@pytest.mark.parametrize(
    ("family", "levels"), [("sort", (2, 3)), ("arithmetic", (1, 2)), ("sums", (6, 12)), ("stories", (6, 12))]
)
def test_no_held_out_problem_is_trained_on_in_other_clothes(family: str, levels: tuple[int, ...]) -> None:
    source = FAMILIES[family]
    tasks, held = make_tasks(5, families=[family], levels=levels, train=250, held_out=24)[family]
    keys = {source.key(task) for task in held}
    assert len(keys) == 24
    assert not keys & {source.key(task) for task in tasks}
    assert len({task.text for task in tasks + held}) == 274


@given(st.integers(1, 1000), st.integers(0, 2**32))
def test_sums_are_right_in_every_wording(level: int, seed: int) -> None:
    from random import Random

    task = SumsFamily().make(Random(seed), level)
    assert SumsFamily().key(task)
    with pytest.raises(MalformedError):
        SumsFamily().key(replace(task, reference={"answer": str(int(task.reference["answer"]) + 1)}))
    with pytest.raises(MalformedError):
        SumsFamily().key(replace(task, level=int(max(SumsFamily().key(task).split("+"), key=int)) - 1))


def test_sums_are_asked_in_all_wordings_about_equally() -> None:
    tasks, _ = make_tasks(0, families=["sums"], levels=(50,), train=1000, held_out=24)["sums"]
    heads = Counter(re.sub("[0-9]+", "N", task.text) for task in tasks)
    assert len(heads) == len(SumsFamily.WORDINGS)
    assert all(150 <= count <= 250 for count in heads.values())
    assert FAMILIES["sums"].environment.options == {"answer": "number", "thinking": "none"}
    assert FAMILIES["sums"].environment.name == "arithmetic"


def test_held_out_numbers_of_a_sum_are_in_no_story_either() -> None:
    made = make_tasks(0, families=["sums", "stories"], levels=(9, 12, 15), train=288, held_out=48)
    held, trained = (
        {FAMILIES[name].key(task) for name, halves in made.items() for task in halves[half]} for half in (1, 0)
    )
    assert {name: tuple(map(len, halves)) for name, halves in made.items()} == {"sums": (288, 48), "stories": (288, 48)}
    assert not held & trained
    assert {sign for key in held for sign in "+-" if sign in key} == {"+", "-"}


@given(st.integers(1, 1000), st.integers(0, 2**32))
def test_stories_are_right_in_every_plot(level: int, seed: int) -> None:
    from random import Random

    family = StoriesFamily()
    task = family.make(Random(seed), level)
    key = family.key(task)
    a, sign, b = re.split("([+-])", key)
    answer = int(a) + int(b) if sign == "+" else int(a) - int(b)
    assert task.reference == {"answer": str(answer)}
    largest = max(int(b), answer) if sign == "-" else max(int(a), int(b))
    assert family.key(replace(task, level=largest)) == key
    for wrong in (
        replace(task, reference={"answer": str(answer + 1)}),
        replace(task, level=largest - 1),
        replace(task, messages=(*task.messages, ChatMessage("user", "?"))),
    ):
        with pytest.raises(MalformedError):
            family.key(wrong)


def test_a_story_told_otherwise_is_none() -> None:
    from random import Random

    family = StoriesFamily()
    task = family.make(Random(1), 9)
    other = task.messages[1].content.replace("How", "But how")
    with pytest.raises(MalformedError, match="not a story"):
        family.key(replace(task, messages=(task.messages[0], ChatMessage("user", other))))


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


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_task_of_another_family_has_no_key(family: str) -> None:
    stranger = Task("x", (), {"answer": "1"})
    with pytest.raises(MalformedError):
        FAMILIES[family].key(stranger)
