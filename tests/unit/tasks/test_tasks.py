"""Task sets: gold answers score, hostile answers do not, the split is disjoint and the root binds the file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.constants import MICRO
from muster.errors import ConfigError, MalformedError, MismatchError
from muster.tasks import (
    LENGTH_ALPHA,
    Task,
    TaskSet,
    length_reward,
    load_task_set,
    make_task_set,
    save_task_set,
    verify,
)
from muster.tasks.rewards import answer_of

SORT = Task("sort 5231", "1235", "sort", 4)


@pytest.fixture(scope="module")
def task_set() -> TaskSet:
    return make_task_set(7, train=512, held_out=128)


@pytest.mark.parametrize(("family", "levels"), [("sort", (3, 4, 5, 6)), ("arithmetic", (1, 2, 3))])
def test_gold_answer_of_every_task_scores_one(family: str, levels: tuple[int, ...]) -> None:
    tasks = make_task_set(3, family=family, levels=levels, train=1000, held_out=60)
    assert all(verify(task, f"...</think>{task.answer}") == MICRO for task in tasks.train + tasks.held_out)
    assert {task.level for task in tasks.train} == set(levels)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1235",
        "...</think>",
        "...</think>5231",
        "...</think>1235 1235",
        "...</think>01235",
        "...</think>+1235",
        "...</think>1235.0",
        "...</think>1235</think>",
        "</think>0</think>1235",
        "...</think>1235<|user|>",
        "...</think>１２３５",
        "...</think>1235\x00",
        "...</think>12\u200b35",
        "...</think>\u00a01235",
        "...</think>__import__('os')",
        "...</think>" + "9" * 1_000_000,
        "...</think>" + " " * 1_000_000 + "1235",
        "</think>" * 100_000 + "1235",
    ],
)
def test_anything_else_scores_nothing(text: str) -> None:
    assert verify(SORT, text) == 0


def test_spaces_and_newlines_around_the_answer_are_forgiven() -> None:
    assert verify(SORT, "any thought, 1234 say</think>\n 1235 \n") == MICRO
    assert answer_of("a</think> b c ") == "b c"


@given(st.text(max_size=300))
def test_verify_is_total_and_exact(text: str) -> None:
    expected = text.count("</think>") == 1 and text.split("</think>")[1].strip(" \n") == SORT.answer
    assert verify(SORT, text) == (MICRO if expected else 0)


@pytest.mark.parametrize(
    ("budget", "length", "reward"),
    [
        (12, 12, 0),
        (12, 6, -LENGTH_ALPHA // 2),
        (12, 18, -LENGTH_ALPHA // 2),
        (8, 32, -3 * LENGTH_ALPHA),
        (7, 8, -14285),
    ],
)
def test_length_reward_is_relative_to_the_budget(budget: int, length: int, reward: int) -> None:
    assert length_reward(budget, length) == reward


def test_equal_seeds_give_equal_roots_and_others_do_not() -> None:
    def root(seed: int) -> bytes:
        return make_task_set(seed, train=64, held_out=16).root

    assert root(1) == root(1)
    assert root(1) != root(2)
    # Pinned: a change here means that yesterday's seeds make other task sets.
    assert root(0).hex() == "b65b563494d19f32addb4cda74d3e06cbe1114444ede815824ae23137488b063"


def test_no_held_out_problem_is_a_training_problem_in_other_clothes(task_set: TaskSet) -> None:
    held = {task.answer for task in task_set.held_out}
    assert len(held) == len(task_set.held_out)
    assert not held & {task.answer for task in task_set.train}
    task_set.check_disjoint()
    digits = task_set.held_out[0].answer
    leak = Task(f"sort {digits[::-1]}", digits, "sort", len(digits))
    with pytest.raises(MismatchError, match="training problems too"):
        replace(task_set, train=(*task_set.train, leak)).check_disjoint()
    with pytest.raises(MismatchError, match="a task twice"):
        replace(task_set, train=(*task_set.train, task_set.train[0])).check_disjoint()


def test_file_round_trip_checks_the_root(task_set: TaskSet, tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    save_task_set(task_set, path)
    loaded = load_task_set(path, task_set.root)
    assert loaded == task_set
    assert (loaded.size, loaded.root) == (512, task_set.root)
    assert loaded.task(511) == task_set.train[511]
    with pytest.raises(IndexError):
        loaded.task(512)
    path.write_bytes(path.read_bytes().replace(b"sort", b"Sort", 1))
    with pytest.raises(MismatchError, match="the run's terms name"):
        load_task_set(path, task_set.root)
    with pytest.raises(ConfigError, match="no task set"):
        load_task_set(tmp_path / "absent.jsonl")


def _lines(header: object, *lines: object) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in (header, *lines)).encode()


GOOD_HEADER = {"format": "muster.tasks.v1", "held_out": 1, "train": 1}
GOOD_LINES = (["sort 21", "12", "sort", 2], ["sort 43", "34", "sort", 2])


def test_a_small_file_by_hand_loads(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(_lines(GOOD_HEADER, *GOOD_LINES))
    assert load_task_set(path).train == (Task("sort 21", "12", "sort", 2),)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        _lines(GOOD_HEADER, GOOD_LINES[0]),
        _lines({**GOOD_HEADER, "train": 2}, *GOOD_LINES),
        _lines({**GOOD_HEADER, "train": True}, *GOOD_LINES),
        _lines({**GOOD_HEADER, "format": "else"}, *GOOD_LINES),
        _lines({**GOOD_HEADER, "more": 1}, *GOOD_LINES),
        _lines([], *GOOD_LINES),
        _lines(GOOD_HEADER, ["sort 21", "21", "sort", 2], GOOD_LINES[1]),
        _lines(GOOD_HEADER, ["sort 21", "12", "sort", 3], GOOD_LINES[1]),
        _lines(GOOD_HEADER, ["sort 21", "12", "unknown", 2], GOOD_LINES[1]),
        _lines(GOOD_HEADER, ["sort 21", "12", "sort", True], GOOD_LINES[1]),
        _lines(GOOD_HEADER, ["1+1=", "3", "arithmetic", 1], GOOD_LINES[1]),
        _lines(GOOD_HEADER, {"prompt": "x"}, GOOD_LINES[1]),
        _lines(GOOD_HEADER, *GOOD_LINES).replace(b", ", b","),
    ],
)
def test_anything_but_a_canonical_file_is_malformed(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(data)
    with pytest.raises(MalformedError):
        load_task_set(path)


@pytest.mark.parametrize(
    "options",
    [
        {"levels": (0,)},
        {"levels": ()},
        {"levels": (13,)},
        {"train": 0},
        {"family": "poetry"},
        {"levels": (1,), "train": 99},
    ],
)
def test_impossible_task_sets_are_refused(options: dict) -> None:
    with pytest.raises(ConfigError):
        make_task_set(0, **{"train": 5, "held_out": 5, **options})
