"""reasoning-gym's own scorers: their answers, and that an answer that runs gets nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from muster.constants import MICRO
from muster.environments.base import Environment, Outcome, ScorerCall
from muster.environments.manifest import Score
from muster.environments.reasoning_gym import DATASETS, REFUSED
from muster.environments.task import Task, ask
from muster.errors import MalformedError
from testbed.suite.cpu_time import SCORER_SECONDS, cpu_at_most

CHAIN = ask("1 + 2", dataset="chain_sum", entry={"question": "1 + 2", "answer": "3", "metadata": {}})
COUNTDOWN = ask(
    "Make 10 of 2, 3 and 4.",
    dataset="countdown",
    entry={
        "question": "?",
        "answer": "2*3 + 4",
        "metadata": {"numbers": [2, 3, 4], "target": 10, "expression": "2*3 + 4"},
    },
)
SPIRAL = ask(
    "Spiral.",
    dataset="spiral_matrix",
    entry={"question": "?", "answer": "1 2 4 3", "metadata": {"matrix": [[1, 2], [3, 4]], "solution": [1, 2, 4, 3]}},
)
INTEGRAL = ask(
    "Integrate 2*x.",
    dataset="simple_integration",
    entry={"question": "?", "answer": "x**2 + C", "metadata": {"integrand": "2*x", "variable": "x"}},
)


@pytest.fixture(scope="module")
def gym(environment_of: Callable[..., Environment]) -> Environment:
    return environment_of("reasoning_gym", scoring="published")


@pytest.fixture(scope="module")
def call(scorer_call: Callable[..., ScorerCall]) -> ScorerCall:
    return scorer_call("reasoning_gym", fuel=5_000_000_000)


@pytest.mark.parametrize("task", [CHAIN, COUNTDOWN, SPIRAL, INTEGRAL], ids=lambda task: task.reference["dataset"])
def test_the_reference_scores_one_and_nothing_scores_nothing(
    gym: Environment, environment_of: Callable[..., Environment], call: ScorerCall, task: Task
) -> None:
    for environment in (gym, environment_of("reasoning_gym", scoring="published", answer="tags")):
        environment.check(task)
        score = environment.score(task, environment.reference_completion(task) or "", call)
        assert (score.parts, score.reason) == ((MICRO,), "")
        assert score.fuel > 0
        for text in ("", "</think>", "</think> \n", "</think></think>3", "<answer>3</answer>"):
            assert environment.score(task, text, call) == Score((0,), 0, "no answer")


@pytest.mark.parametrize(
    ("task", "answer", "reward"),
    [
        (CHAIN, "3", MICRO),
        (CHAIN, "3.0", MICRO),
        (CHAIN, "the answer is 3", 66_667),
        (CHAIN, "4", 0),
        (COUNTDOWN, "(4) + 3*2", MICRO),
        (COUNTDOWN, "2 + 3 + 4", None),
        (SPIRAL, "[1, 2, 4, 3]", None),
        (SPIRAL, "1 2 3 4", None),
        (INTEGRAL, "x*x + C", MICRO),
        (INTEGRAL, "x**3", None),
    ],
)
def test_other_answers_score_what_the_package_says(
    gym: Environment, call: ScorerCall, task: Task, answer: str, reward: int | None
) -> None:
    parts = gym.score(task, f"</think>{answer}", call).parts
    assert parts == (reward,) if reward is not None else parts[0] < MICRO


RUNS = [
    "__import__('os').abort()",
    "[open('/etc/passwd').read()]",
    "(lambda: 10)()",
    "exec(chr(49))",
    "exec(chr(120)+chr(61)+chr(49)) or 10",
    "eval(chr(49)+chr(48))",
    "setattr(Integer, chr(95), 1)",
    "x.__class__.__mro__",
    "().__class__",
    "[x for x in ().__class__.__base__.__subclasses__()]",
    "print(10)",
    "ｅｘｅｃ(1)",
    "(exec)(chr(49))",
    "sum(sin(x) for sin in (exec,))",
    "9**9**9**9",
    "factorial(10**9)",
    "(" * 50_000,
    "[" * 50_000,
    "-" * 50_000 + "1",
    "9" * 200_000,
    "x" * 200_000,
    "\ud800",
]


@pytest.mark.parametrize("task", [CHAIN, COUNTDOWN, SPIRAL, INTEGRAL], ids=lambda task: task.reference["dataset"])
@pytest.mark.parametrize("answer", RUNS, ids=lambda answer: answer[:20].encode("ascii", "replace").decode())
def test_an_answer_that_runs_gets_next_to_nothing(gym: Environment, call: ScorerCall, task: Task, answer: str) -> None:
    with cpu_at_most(SCORER_SECONDS):
        assert gym.score(task, f"</think>{answer}", call).parts[0] <= MICRO // 10


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ({"score": 1.0}, MICRO),
        ({"score": 0.5}, 500_000),
        ({"score": 2 / 3}, 666_667),
        ({"score": 0.0000005}, 0),  # the float is a little below the half
        ({"score": 1}, 0),
        ({"score": True}, 0),
        ({"score": 1.0000001}, 0),
        ({"score": -0.1}, 0),
        ({"score": float("nan")}, 0),
        ({"score": "1.0"}, 0),
        ({"error": "KeyError"}, 0),
        (None, 0),
    ],
)
def test_a_float_becomes_millionths(gym: Environment, value: Any, part: int) -> None:
    assert gym.score(CHAIN, "</think>3", lambda payload: Outcome(value, 5)).parts == (part,)


def test_the_configuration_changes_the_tolerance(gym: Environment, call: ScorerCall) -> None:
    entry = {"question": "?", "answer": "1.5", "metadata": {}}
    rough = ask("?", dataset="decimal_arithmetic", entry=entry, config={"max_num_decimal_places": 1})
    exact = ask("?", dataset="decimal_arithmetic", entry=entry, config={"max_num_decimal_places": 6})
    assert [gym.score(task, "</think>1.55", call).parts for task in (rough, exact)] == [(MICRO,), (0,)]


def test_unscorable_entry_is_refused_with_the_reason(gym: Environment) -> None:
    assert not DATASETS & set(REFUSED)
    assert len(DATASETS) + len(REFUSED) == 106
    for reference, reason in (
        ({"dataset": "sokoban", "entry": {"answer": "U"}}, "numpy"),
        ({"dataset": "chess", "entry": {"answer": "U"}}, "no dataset"),
        ({"dataset": "chain_sum"}, "no entry"),
        ({"dataset": "chain_sum", "entry": {"answer": 3}}, "cannot be given"),
        ({"dataset": "chain_sum", "entry": {"answer": "3", "metadata": {"$pickle": ""}}}, "typed JSON"),
    ):
        with pytest.raises(MalformedError, match=reason):
            gym.check(ask("?", **reference))


def test_the_component_has_every_dataset_that_is_not_refused(call: ScorerCall) -> None:
    missing = [
        name
        for name in sorted(DATASETS)
        if "no dataset" in str(call({"dataset": name, "entry": {"answer": "x", "metadata": {}}, "answer": "y"}).value)
    ]
    assert missing == []


PUZZLE24 = ask(
    "Make 24 of 4, 6, 1 and 1.",
    dataset="puzzle24",
    entry={"question": "?", "answer": "4*6*1*1", "metadata": {"cards": [4, 6, 1, 1], "expression": "4*6*1*1"}},
)
OTHER_CARDS = ask(
    "Make 24 of 8, 3, 2 and 2.",
    dataset="puzzle24",
    entry={"question": "?", "answer": "8*3*(2/2)", "metadata": {"cards": [8, 3, 2, 2], "expression": "8*3*(2/2)"}},
)
COMPLEX = ask(
    "Add (1+2j) and (3+4j).",
    dataset="complex_arithmetic",
    entry={
        "question": "?",
        "answer": "4.0 + 6.0i",
        "metadata": {"num1": [1.0, 2.0], "num2": [3.0, 4.0], "operation": "+", "result": [4, 6]},
    },
)
COIN = ask(
    "How likely are two heads of six?",
    dataset="coin_flip",
    entry={"question": "?", "answer": "0.234375", "metadata": {"num_trials": 6}},
)


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        (COMPLEX, "nan"),
        (COMPLEX, "nan + nani"),
        (COMPLEX, "1e999999"),
        (COMPLEX, "None"),
        (PUZZLE24, "24"),
        (PUZZLE24, "4*6*1"),
        (OTHER_CARDS, "4*6*1*1"),
        (COUNTDOWN, "1e1"),
        (COUNTDOWN, "10"),
        (COUNTDOWN, "2*5"),
        (INTEGRAL, "Integral(2*x, x)"),
        (INTEGRAL, "Integral (2*x, x) + C"),
        (COIN, "0"),
        (COIN, "0.2"),
        (COIN, "1/0"),
        (CHAIN, "the answer is 3"),
        (SPIRAL, "None"),
        (SPIRAL, "1 2 3 4"),
        (SPIRAL, "0"),
    ],
)
def test_an_answer_that_solves_nothing_earns_nothing(
    environment_of: Callable[..., Environment], call: ScorerCall, task: Task, answer: str
) -> None:
    score = environment_of("reasoning_gym").score(task, f"</think>{answer}", call)
    assert (score.parts, bool(score.reason)) == ((0,), True)


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        (COMPLEX, "4.0 + 6.0i"),
        (PUZZLE24, "(4*6)*1*1"),
        (OTHER_CARDS, "8*3/(2/2)"),
        (COUNTDOWN, "4+3*2"),
        (CHAIN, "3"),
        (INTEGRAL, "x*x + C"),
        (SPIRAL, "1 2 4 3"),
        (COIN, "15/64"),
    ],
)
def test_a_solution_earns_the_reward(
    environment_of: Callable[..., Environment], call: ScorerCall, task: Task, answer: str
) -> None:
    score = environment_of("reasoning_gym").score(task, f"</think>{answer}", call)
    assert (score.parts, score.reason) == ((MICRO,), "")


def test_a_dataset_that_cheap_answers_solve_is_refused_as_a_reward(
    gym: Environment, environment_of: Callable[..., Environment]
) -> None:
    task = ask("What follows from P?", dataset="propositional_logic", entry={"answer": None, "metadata": {}})
    gym.check(task)
    with pytest.raises(MalformedError, match="earns no reward: a premise that is joined with itself"):
        environment_of("reasoning_gym").check(task)
