"""Mathematical answers: the host comparison agrees with math-verify in the component, and hostile answers end."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from muster.constants import MICRO
from muster.environments.base import Environment, Outcome, ScorerCall
from muster.environments.manifest import Score
from muster.environments.math import plain_integer
from muster.environments.task import ask
from muster.errors import MalformedError
from testbed.suite.cpu_time import SCORER_SECONDS, cpu_at_most

PUBLISHED: Any = {"scoring": "published"}
EQUAL = [
    ("\\frac{1}{2}", "0.5"),
    ("\\frac{1}{2}", "1/2"),
    ("\\frac12", "\\dfrac{1}{2}"),
    ("1,000", "1000"),
    ("x^2+2x+1", "(x+1)^2"),
    ("\\sin^2 x+\\cos^2 x", "1"),
    ("2\\sqrt{2}", "\\sqrt{8}"),
    ("\\{1,2\\}", "\\{2, 1\\}"),
    ("(1,2)", "(1, 2)"),
    ("[0,1)", "[0, 1)"),
    ("\\pi", "\\pi"),
    ("90^\\circ", "90"),
    ("50\\%", "50"),
    ("x=3", "3"),
    ("0.333333", "1/3"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"),
    ("\\text{Monday}", "\\text{Monday}"),
    ("10^{10}", "10000000000"),
]
DIFFERENT = [
    ("\\frac{1}{2}", "2"),
    ("x^2", "x^3"),
    ("\\{1,2\\}", "\\{1,3\\}"),
    ("(1,2)", "(2,1)"),
    ("[0,1)", "[0,1]"),
    ("\\pi", "3.14"),
    ("1", "9**9**9**9"),
    ("1", "1 or 2"),
    ("5", "\\text{5 or 6}"),
    ("1", "__import__('os').system('true')"),
    ("7", "\\infty"),
    ("x", "\ud800"),
]


@pytest.fixture(scope="module")
def call(scorer_call: Callable[..., ScorerCall]) -> ScorerCall:
    return scorer_call("math_verify", fuel=10_000_000_000)


@pytest.fixture(scope="module")
def math(environment_of: Callable[..., Environment]) -> Environment:
    return environment_of("math", **PUBLISHED)


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_equal_answers_score(math: Environment, call: ScorerCall, gold: str, answer: str) -> None:
    task = ask("?", answer=gold)
    math.check(task)
    assert math.score(task, f"hm</think>so \\boxed{{{answer}}}.", call).parts == (MICRO,)


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_different_answers_do_not(math: Environment, call: ScorerCall, gold: str, answer: str) -> None:
    score = math.score(ask("?", answer=gold), f"hm</think>so \\boxed{{{answer}}}.", call)
    assert score.parts == (0,)
    assert score.reason


def test_the_reference_scores_one_and_nothing_scores_nothing(
    environment_of: Callable[..., Environment], no_call: ScorerCall, call: ScorerCall
) -> None:
    for option in ("boxed", "boxed_or_text", "text", "number"):
        environment, task = environment_of("math", **PUBLISHED, answer=option), ask("?", answer="42")
        environment.check(task)
        score = environment.score(task, environment.reference_completion(task) or "", call)
        assert score.parts == (MICRO,)
        assert (score.fuel > 0) == (option == "text")
        assert environment.score(task, "", no_call).parts == (0,)
        assert environment.score(task, "</think>", no_call).parts == (0,)


def test_host_comparison_agrees_with_the_component(
    environment_of: Callable[..., Environment], call: ScorerCall
) -> None:
    rng = Random(5)
    near = [(a, a + d) for a in (0, 1, 9, 10, 99, 999, 10**6, 123456, 10**11) for d in (0, 1, 10)]
    pairs = [(rng.randrange(-(10**k), 10**k), rng.randrange(-(10**k), 10**k)) for k in range(1, 13)]
    for ours, theirs in near + pairs + [(-a, a) for a, _ in near]:
        assert plain_integer(str(ours)) == ours
        assert plain_integer(str(theirs)) == theirs
        payload = {"gold": str(ours), "answer": str(theirs), "gold_format": "latex", "answer_format": "latex"}
        assert call(payload).value == {"equal": ours == theirs}, (ours, theirs)
    for gold, _ in EQUAL + DIFFERENT:
        for form in ("latex", "text"):
            payload = {"gold": gold, "answer": gold, "gold_format": form, "answer_format": "latex"}
            assert call(payload).value == {"equal": True}


BARE = ["\\sqrt{7}", "(2,6)", "[1,4)", "9\\pi", "x^2+4x+4", "6+8i", "\\text{Monday}"]
"""What math-verify does not find in a text that marks no mathematics."""


@pytest.mark.parametrize("gold", BARE)
@pytest.mark.parametrize("option", ["text", "boxed_or_text"])
def test_a_text_counts_only_by_what_math_verify_finds_in_it(
    environment_of: Callable[..., Environment], call: ScorerCall, option: str, gold: str
) -> None:
    environment, task = environment_of("math", **PUBLISHED, answer=option), ask("?", answer=gold)
    texts = (gold, f"${gold}$", f"So it is \\[{gold}\\]", f"\\boxed{{{gold}}}")
    assert [environment.score(task, f"</think>{text}", call).parts[0] for text in texts] == [0, MICRO, MICRO, MICRO]
    assert environment.score(task, environment.reference_completion(task) or "", call).parts == (MICRO,)


@pytest.mark.parametrize(
    "text", ["", "-", "--1", "01", "+1", "1.5", "1/2", "1,000", "１", "1e3", "-0", "-0 ", "1" * 13, " 1", "1\n"]
)
def test_other_numbers_are_left_to_the_component(text: str) -> None:
    assert plain_integer(text) is None


@pytest.mark.parametrize(
    ("option", "text", "asked"),
    [
        ("boxed", "x is 5, \\boxed{1+2}", ("1+2", "latex")),
        ("boxed_or_text", "x is 5", ("x is 5", "text")),
        ("boxed_or_text", "\\boxed{1+2}", ("1+2", "latex")),
        ("text", "\\boxed{1+2} ", ("\\boxed{1+2}", "text")),
        ("number", "1 + 2 = 3.50", ("3.50", "latex")),
    ],
)
def test_component_receives_the_answer_and_its_format(
    environment_of: Callable[..., Environment], option: str, text: str, asked: tuple[str, str]
) -> None:
    payloads: list[Any] = []

    def call(payload: Any) -> Outcome:
        payloads.append(payload)
        return Outcome({"equal": True}, 7)

    score = environment_of("math", **PUBLISHED, answer=option).score(ask("?", answer="3"), f"</think>{text}", call)
    assert score == Score((MICRO,), 7)
    formats = {"answer_format": asked[1], "gold_format": "latex", "scoring": "published"}
    assert payloads == [{"answer": asked[0], "gold": "3", **formats}]


@pytest.mark.parametrize("value", [None, {}, {"equal": 1}, {"equal": "True"}, {"equal": None}, [True], True, "equal"])
def test_only_a_true_counts(math: Environment, value: Any) -> None:
    score = math.score(ask("?", answer="x"), "</think>\\boxed{y}", lambda payload: Outcome(value, 9, "fuel"))
    assert score == Score((0,), 9, "stopped: fuel")


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" + "{" * 2000 + "}" * 2000 + "}",
        "\\boxed{" + "\\frac{" * 500 + "1" + "}{2}" * 500 + "}",
        "\\boxed{" + "(" * 2000 + "1" + ")" * 2000 + "}",
        "\\boxed{" + "9^" * 1000 + "9}",
        "\\boxed{10^{10^{10^{10}}}}",
        "\\boxed{100000!!!!}",
        "\\boxed{\\int_0^1 " + "x" * 3000 + "dx}",
        "\\boxed{" + "\x00" * 4000 + "}",
    ],
)
def test_hostile_answers_end(math: Environment, call: ScorerCall, text: str) -> None:
    with cpu_at_most(SCORER_SECONDS):
        assert math.score(ask("?", answer="\\frac{1}{2}"), f"</think>{text}", call).parts == (0,)


def test_hostile_texts_end(environment_of: Callable[..., Environment], call: ScorerCall) -> None:
    environment = environment_of("math", **PUBLISHED, answer="text")
    for text in ("$" * 20_000, "answer is " * 5_000, "1" * 100_000, "= " * 20_000, "\\[" * 20_000, "x" * 1_000_000):
        with cpu_at_most(SCORER_SECONDS):
            assert environment.score(ask("?", answer="\\frac{1}{2}"), f"</think>{text}", call).parts == (0,)


@pytest.mark.parametrize("answer", ["", " 1", "{", "\\frac{1}{2", "1" * 5000, None])
def test_answers_that_cannot_be_given_are_refused(math: Environment, answer: Any) -> None:
    with pytest.raises(MalformedError):
        math.check(ask("?", answer=answer))
