"""What the published rules extract from a completion, and how it scores."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from muster.authoring.benchmarks.catalog import BENCHMARKS
from muster.authoring.benchmarks.definitions import BenchmarkItem, visible
from muster.authoring.benchmarks.livecodebench import as_function, published_program
from muster.authoring.benchmarks.programs import completed, program
from muster.authoring.benchmarks.questions import (
    flexible_letter,
    flexible_number,
    strict_letter,
    strict_number,
)
from muster.authoring.benchmarks.scoring import BenchmarkScorer
from muster.constants import MICRO
from muster.environments.scoring import Scorers
from muster.errors import UsageError
from testbed.samples.benchmark_files import Loader
from testbed.samples.published_rows import ROWS

ITEM = BenchmarkItem("x/1", "What?", {})


def test_a_prompt_shows_the_question() -> None:
    assert BENCHMARKS["gsm8k"].check_prompt("Q: {question}") == "Q: {question}"
    with pytest.raises(UsageError, match="a prompt without the question"):
        BENCHMARKS["gsm8k"].check_prompt("What is it?")
    item = replace(ITEM, question="a {tests} {question} b", fields={"tests": "{question}"})
    assert item.prompt("{question} {tests} {other} {}") == "a {tests} {question} b {question} {other} {}"


@pytest.mark.parametrize(
    ("text", "visible_part"),
    [
        ("plain", "plain"),
        ("thought</think>answer", "answer"),
        ("<think>one</think>two</think>three", "three"),
        ("<think>never ends", ""),
        (" \n<think>never ends", ""),
        ("an answer about <think>", "an answer about <think>"),
    ],
)
def test_thinking_is_not_scored(text: str, visible_part: str) -> None:
    assert visible(text) == visible_part


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("#### 18", "18", "18"),
        ("#### 1,234 and 7", "1234", "7"),
        ("####18", None, "18"),
        ("It costs $1,000.50.", None, "1000.50"),
        ("5-3", None, "-3"),
        ("#### -7.", "-7", "-7"),
        ("no number", None, None),
        ("well...", None, ".."),
        ("#### 5\n#### 6", "5", "6"),
        ("\u0664", None, None),
    ],
)
def test_gsm8ks_numbers(text: str, strict: str | None, flexible: str | None) -> None:
    assert (strict_number(text, ITEM), flexible_number(text, ITEM)) == (strict, flexible)


LETTERED = replace(ITEM, aids={"A": "One apple", "B": "Two pears.", "C": "three", "D": "four"})


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("The answer is (B).", "B", "B"),
        ("The answer is (B)", "B", "B"),
        ("The answer is B", None, None),
        ("(A) or (C)", None, "C"),
        ("It is TWO pears!", None, "B"),
        ("So: D", None, "D"),
        ("The answer is ( B ).", None, None),
        ("The answer is (E).", "E", "E"),
        ("", None, None),
    ],
)
def test_gpqas_letters(text: str, strict: str | None, flexible: str | None) -> None:
    assert (strict_letter(text, LETTERED), flexible_letter(text, LETTERED)) == (strict, flexible)


def test_programs_are_found_as_published() -> None:
    assert program("So:\n```python\nx = 1\n```\nDone.", ITEM) == "```python\nx = 1\n\n```\n"
    assert program("```python\nx = 1", ITEM) == "```python\nx = 1\n\n```\n"
    assert program("x = 1", ITEM) == "```python\nx = 1\n```\n"
    function = replace(ITEM, question="def f():\n")
    assert completed("    return 1", function) == "```python\ndef f():\n    return 1\n```\n"
    assert completed("def f():\n    return 1", function) == "```python\ndef f():\n    return 1\n```\n"
    method = replace(ITEM, aids={"kind": "function"})
    assert published_program("a\n```\nb\n```\nc\n```\nd", method) == "```python\nc\n```\n"
    assert published_program("```python\nx = 1", method) is None


def test_a_program_becomes_a_function() -> None:
    code = as_function("import math\nx = 1\nif __name__ == '__main__':\n    print(x)\n")
    assert code.split("\n")[:4] == ["import math", "def program_():", "    x = 1", "    print(x)"]
    assert as_function("x = = 1") == "x = = 1"


ANSWERS: dict[str, list[tuple[str, dict[str, bool]]]] = {
    "gsm8k": [
        ("#### 14", {"strict": True, "flexible": True}),
        ("It is 14.", {"strict": False, "flexible": True}),
        ("", {"strict": False, "flexible": False}),
    ],
    "math500": [
        ("$\\boxed{1.5}$", {"math_verify": True}),
        ("The answer is $\\frac{6}{4}$.", {"math_verify": True}),
        ("\\boxed{2}", {"math_verify": False}),
    ],
    "aime24": [("<think>7</think>\\boxed{401}", {"math_verify": True}), ("\\boxed{041}", {"math_verify": False})],
    "aime25": [("The answer is **401**.", {"math_verify": True}), ("<think>401", {"math_verify": False})],
    "ifeval": [
        ("NASA AND USA", {"strict": True, "loose": True}),
        ("Ha:\nNASA AND USA", {"strict": True, "loose": True}),
    ],
    "humaneval": [
        ("```python\ndef above(n: List[float], low):\n    return [x for x in n if x > low]\n```", {"passed": True}),
        ("    return [one for one in numbers if one > low]\n", {"passed": True}),
        ("```python\ndef above(n, low):\n    return tuple(x for x in n if x > low)\n```", {"passed": False}),
    ],
    "mbpp": [
        ("```python\ndef double(n):\n    return n + n\n```", {"passed": True}),
        ("```python\ndef tested_(i):\n    return True\n```", {"passed": False}),
    ],
    "livecodebench": [
        ("```python\nprint(sum(map(int, input().split())))\n```", {"passed": True}),
        ("```python\nprint(f'{sum(map(int, input().split()))}.0')\n```", {"passed": True}),
        ("```python\nprint(6)\n```", {"passed": False}),
    ],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_completions_of_the_first_item_score_by_every_rule(name: str, load: Loader, scorers: Scorers) -> None:
    scorer = BenchmarkScorer(BENCHMARKS[name], scorers)
    with load(name, ROWS[name][:1]) as data:
        for text, expected in ANSWERS[name]:
            scored = scorer.score(data.items[0], data.reference(0), text)
            assert {rule: score == MICRO for rule, score in scored.scores.items()} == expected, text


def test_livecodebenchs_own_bounds_hold(load: Loader, scorers: Scorers) -> None:
    """Deep recursion, long numbers, much work and long inputs pass by its own scorer, so they do here."""
    row = next(row for row in ROWS["livecodebench"] if not json.loads(row["metadata"]).get("func_name"))
    long = f"{' ' * (2 << 20)}1 2"
    tests = [{"input": long, "output": "3\n1e5000\n5000\nInfinity", "testtype": "stdin"}]
    program = (
        "def depth(n):\n    return 0 if n == 0 else 1 + depth(n - 1)\n"
        "print(sum(map(int, input().split())))\nprint(10**5000)\nprint(depth(5_000))\nprint(float('inf'))\n"
        "total = 0\nfor i in range(10_000_000):\n    total += i\n"
    )
    scorer = BenchmarkScorer(BENCHMARKS["livecodebench"], scorers)
    with load("livecodebench", [{**row, "public_test_cases": json.dumps(tests), "private_test_cases": "[]"}]) as data:
        scored = scorer.score(data.items[0], data.reference(0), f"```python\n{program}```")
    assert scored.scores == {"passed": MICRO}


def test_humanevals_tests_compare_as_their_assertions_do(load: Loader, scorers: Scorers) -> None:
    test = (
        "def check(candidate):\n    assert candidate(1) is True\n    assert candidate(2) == -9999999999999999\n"
        "    assert abs(candidate(3) - 0.5) < 1e-6\n"
    )
    solution = "    return {1: True, 2: -9999999999999999, 3: 0.5}[n]\n"
    row = {"prompt": "def f(n):\n    'What?'\n", "canonical_solution": solution, "test": test, "entry_point": "f"}
    scorer = BenchmarkScorer(BENCHMARKS["humaneval"], scorers)
    with load("humaneval", [{"task_id": "HumanEval/0", **row}]) as data:
        assert [set(test) - {"input", "output"} for test in data.reference(0)["tests"]] == [
            {"identical"},
            set(),
            {"tolerance"},
        ]
        for returned, right in (
            ("True, -9999999999999999, 0.5", True),
            ("True, -9999999999999999, 0.5000001", True),
            ("1.0, -9999999999999999, 0.5", False),
            ("1, -9999999999999999, 0.5", False),
            ("True, -9999999999999999.0, 0.5", False),
            ("True, -9999999999999999, 0.501", False),
        ):
            completion = f"    return ({returned})[n - 1]\n"
            scored = scorer.score(data.items[0], data.reference(0), completion)
            assert (scored.scores["passed"] == MICRO) == right, returned


def test_gpqa_is_right_by_the_letter_of_the_right_choice(load: Loader, scorers: Scorers) -> None:
    scorer = BenchmarkScorer(BENCHMARKS["gpqa_diamond"], scorers)
    with load("gpqa_diamond", ROWS["gpqa_diamond"]) as data:
        for i, item in enumerate(data.items):
            right = data.reference(i)["answer"]
            for letter in "ABCD":
                scored = scorer.score(item, data.reference(i), f"The answer is ({letter}).")
                assert scored.scores == dict.fromkeys(("flexible", "strict"), MICRO * (letter == right))


def test_a_rules_hash_changes_with_what_it_extracts_by(scorers: Scorers) -> None:
    benchmark = BENCHMARKS["gsm8k"]
    hashes = BenchmarkScorer(benchmark, scorers).hashes()
    assert len(set(hashes.values())) == 2
    changed = replace(benchmark, rules=(replace(benchmark.rules[0], version=2), benchmark.rules[1]))
    others = BenchmarkScorer(changed, scorers).hashes()
    assert (others["strict"] != hashes["strict"], others["flexible"] == hashes["flexible"]) == (True, True)
