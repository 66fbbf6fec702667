"""An author's source in the component: its inputs, its restrictions, and the parts of its score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from muster.constants import MICRO
from muster.environments.answers import MAX_TEXT_CHARS, completion_of
from muster.environments.authored import MAX_SOURCE_BYTES, Authored
from muster.environments.base import ScorerCall
from muster.environments.manifest import EnvironmentManifest, Score
from muster.environments.registry import default_manifest, make_environment
from muster.environments.task import ChatMessage, Task
from muster.errors import MalformedError
from muster.sandbox.scorer import Outcome
from testbed.samples.contributions import source_of

CallFactory = Callable[..., ScorerCall]
TASK = Task("letters/r", (ChatMessage("user", "How many r?"),), {"answer": {"n": 3}, "oracle": "3"}, 2, "0xab")


def environment(body: str, **weights: int) -> Authored:
    default = default_manifest("authored", "0x" + "0" * 64)
    options = {**default.options, "source": source_of(body)}
    made = make_environment(replace(default, options=options, weights=weights or {"correct": MICRO}))
    assert isinstance(made, Authored)
    return made


@pytest.fixture
def score(scorer_call: CallFactory) -> Callable[..., Score]:
    def run(body: str, completion: str = "3", fuel: int = 10**10, **weights: int) -> Score:
        text = completion_of(completion, "tags")
        return environment(body, **weights).score(TASK, text, scorer_call("authored", fuel=fuel))

    return run


def test_it_sees_the_task_and_what_follows_the_thinking_but_not_the_oracle(score: Callable[..., Score]) -> None:
    body = """
shown = {"id": "letters/r", "level": 2, "answer": {"n": 3}}
shown["messages"] = [{"role": "user", "content": "How many r?"}]
return {"correct": 1_000_000 * (task == shown), "text": 1_000_000 * (completion == " 3 ")}
"""
    found = score(body, " 3 ", correct=900_000, text=100_000)
    assert (found.parts, found.reason) == ((MICRO, MICRO), "")
    assert 0 < found.fuel < 10**8


def test_parts_are_in_the_order_of_their_names(score: Callable[..., Score]) -> None:
    found = score('return {"b": 2, "a": 1}', a=MICRO // 2, b=MICRO // 2)
    assert (found.parts, found.reason) == ((1, 2), "not the full score")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return 1", "the scorer failed: it returned int, no dict of integers"),
        ("return {}", "the scorer returned the parts none, not correct"),
        ('return {"correct": 1, "extra": 1}', "the scorer returned the parts correct, extra, not correct"),
        ('return {"correct": 1_000_001}', "part correct is 1000001, no integer from 0 to 1000000"),
        ('return {"correct": -1}', "part correct is -1, no integer"),
        ('return {"correct": 10**400}', "part correct is 1000000000"),
        ('return {"correct": 10**5000}', "stopped: ValueError"),
        ('return {"correct": 1.0}', "no dict of integers"),
        ('return {"correct": True}', "no dict of integers"),
        ("return 1 / 0", "ZeroDivisionError in line 2: division by zero"),
        ("return score(task, completion)", "RecursionError"),
        ("raise SystemExit(0)", "SystemExit in line 2"),
        ("while True: pass", "stopped: fuel"),
        ('return {"correct": len("x" * 10**9)}', "MemoryError"),
        ("import os", "ImportError in line 2: a scorer cannot import os"),
        ("import time", "a scorer cannot import time"),
        ("import authored_scorer", "a scorer cannot import authored_scorer"),
        ("eval(completion)", "NameError in line 2: name 'eval' is not defined"),
        ("exec(completion)", "name 'exec' is not defined"),
        ('open("/etc/passwd")', "name 'open' is not defined"),
        ("(", "SyntaxError in line 2: '(' was never closed"),
    ],
)
def test_failing_source_scores_zero_with_a_reason(score: Callable[..., Score], body: str, reason: str) -> None:
    found = score(body, fuel=3 * 10**8)
    assert found.parts == (0,)
    assert reason in found.reason


def test_a_source_without_a_score_function_scores_nothing(scorer_call: CallFactory) -> None:
    made = replace(environment("pass").manifest, options={"source": "x = 1\n", "thinking": "tags"})
    found = Authored(made).score(TASK, completion_of("3", "tags"), scorer_call("authored"))
    assert (found.parts, found.reason) == ((0,), "the scorer failed: KeyError in line 0: 'score'")


def test_fuel_that_runs_out_is_all_of_it(score: Callable[..., Score]) -> None:
    assert score("while True: pass", fuel=10**8).fuel == 10**8


def test_completions_that_no_source_has_to_look_at(no_call: ScorerCall) -> None:
    made = environment('return {"correct": 1_000_000}')
    assert made.score(TASK, "3", no_call).reason == "no answer"
    assert made.score(TASK, "</think>3</think>", no_call).parts == (0,)
    assert "over 262144 characters" in made.score(TASK, "</think>" + "x" * (MAX_TEXT_CHARS + 1), no_call).reason


@pytest.mark.parametrize(
    "value",
    [None, 1, "text", [], {}, {"parts": None}, {"parts": {"correct": None}}, {"parts": {"correct": "1"}}, {"error": 1}],
)
def test_a_component_that_answers_anything_at_all_gives_a_zero(value: Any) -> None:
    made = environment("pass")
    found = made.score(TASK, "</think>3", lambda payload: Outcome(value, 5, "result"))
    assert (found.parts, found.fuel) == ((0,), 5)
    assert found.reason


def test_its_oracle_is_an_answer_without_thinking() -> None:
    assert environment("pass").reference_completion(TASK) == "</think>3"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ({"oracle": "3"}, "has no answer"),
        ({"answer": None, "oracle": "3"}, "has no answer"),
        ({"answer": "", "oracle": "3"}, "has no answer"),
        ({"answer": 3}, "no 'oracle'"),
        ({"answer": 3, "oracle": ""}, "no 'oracle'"),
        ({"answer": 3, "oracle": "</think>"}, "cannot be given"),
        ({"answer": 3, "oracle": "3", "tests": []}, "'tests' in its reference"),
    ],
)
def test_tasks_that_cannot_be_scored_are_refused(reference: dict[str, Any], message: str) -> None:
    with pytest.raises(MalformedError, match=message):
        environment("pass").check(replace(TASK, reference=reference))
    environment("pass").check(TASK)


@pytest.mark.parametrize("source", ["", "x" * (MAX_SOURCE_BYTES + 1), 7, None, "\ud800"])
def test_sources_that_are_none_are_refused(source: Any) -> None:
    default = default_manifest("authored", "0x" + "0" * 64)
    with pytest.raises(MalformedError, match="option source of environment authored is a text of 1 to 65536 bytes"):
        make_environment(replace(default, options={**default.options, "source": source}))


def test_the_source_is_part_of_what_is_hashed() -> None:
    first, second = environment("return 1").manifest, environment("return 2").manifest
    assert first.to_bytes() != second.to_bytes()
    assert EnvironmentManifest.from_document(first.to_document()) == first
