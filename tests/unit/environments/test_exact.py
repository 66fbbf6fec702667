"""Sorting, arithmetic and choices: one answer scores, and everything else does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.constants import MICRO
from muster.environments.base import Environment, Outcome, ScorerCall
from muster.environments.manifest import Score
from muster.environments.registry import default_manifest, make_environment
from muster.environments.task import ask
from muster.errors import MalformedError

SORT = ask("sort 5231", answer="1235")
QUESTION = ask("Which? A) 1 B) 2 C) 3 D) 4", answer="B", choices=4)


@pytest.mark.parametrize("name", ["sorting", "arithmetic"])
@pytest.mark.parametrize("thinking", ["tags", "none"])
def test_the_reference_scores_one_and_nothing_scores_nothing(
    environment_of: Callable[..., Environment], no_call: ScorerCall, name: str, thinking: str
) -> None:
    environment = environment_of(name, thinking=thinking)
    environment.check(SORT)
    assert environment.score(SORT, environment.reference_completion(SORT) or "", no_call) == Score((MICRO,))
    assert environment.score(SORT, "", no_call) == Score((0,), 0, "no answer")


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
        "...</think>\ud800",
        "...</think>__import__('os')",
        "...</think>" + "9" * 1_000_000,
        "...</think>" + " " * 1_000_000 + "1235",
        "</think>" * 100_000 + "1235",
    ],
)
def test_anything_else_scores_nothing(
    environment_of: Callable[..., Environment], no_call: ScorerCall, text: str
) -> None:
    assert environment_of("sorting").score(SORT, text, no_call).parts == (0,)


@given(st.text(max_size=300))
def test_the_exact_score_is_total_and_exact(text: str) -> None:
    environment = make_environment(default_manifest("sorting"))
    expected = text.count("</think>") == 1 and text.split("</think>")[1].strip(" \n") == "1235"
    assert environment.score(SORT, text, lambda payload: Outcome(None, 0)).parts == (MICRO if expected else 0,)


@pytest.mark.parametrize("answer", [None, 1235, "", " 1235", "1235\n", "</think>", "9" * 257])
def test_answers_that_cannot_be_given_are_refused(environment_of: Callable[..., Environment], answer: Any) -> None:
    with pytest.raises(MalformedError):
        environment_of("sorting").check(ask("sort 5231", answer=answer))


@pytest.mark.parametrize(
    ("option", "text", "right"),
    [
        ("letter", "It is (B).", True),
        ("letter", "B or C", False),
        ("letter", "\\boxed{B}, not C", True),
        ("letter", "b", False),
        ("exact", " B\n", True),
        ("exact", "B.", False),
        ("boxed", "\\boxed{B}", True),
        ("boxed", "B", False),
        ("boxed", "\\boxed{A}\\boxed{B", False),
    ],
)
def test_the_letter_of_a_choice(
    environment_of: Callable[..., Environment], no_call: ScorerCall, option: str, text: str, right: bool
) -> None:
    environment = environment_of("choice", answer=option)
    environment.check(QUESTION)
    assert environment.score(QUESTION, f"so</think>{text}", no_call).parts == (MICRO if right else 0,)
    assert environment.score(QUESTION, environment.reference_completion(QUESTION) or "", no_call) == Score((MICRO,))
    assert environment.score(QUESTION, "", no_call).parts == (0,)


@pytest.mark.parametrize(
    "reference",
    [{"answer": "E", "choices": 4}, {"answer": "B"}, {"answer": "AB", "choices": 4}, {"answer": "A", "choices": 1}],
)
def test_choices_that_cannot_be_made_are_refused(
    environment_of: Callable[..., Environment], reference: dict[str, Any]
) -> None:
    with pytest.raises(MalformedError):
        environment_of("choice").check(ask("?", **reference))


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("12", True),
        ("7 + 5 = 12.", True),
        ("It is 13, no: 12", True),
        ("12 is more than 5", False),
        ("1,2", False),
        ("12.0", True),
        ("12.01", False),
        ("-12", False),
        ("twelve", False),
        ("", False),
    ],
)
def test_the_last_number_of_a_sentence(
    environment_of: Callable[..., Environment], no_call: ScorerCall, text: str, right: bool
) -> None:
    environment, task = environment_of("arithmetic", answer="number", thinking="none"), ask("7 + 5?", answer="12")
    environment.check(task)
    assert environment.score(task, text, no_call).parts == (MICRO if right else 0,)
    assert environment.score(task, environment.reference_completion(task) or "", no_call).parts == (MICRO,)
    with pytest.raises(MalformedError, match="no number"):
        environment.check(ask("7 + 5?", answer="twelve"))
