"""Benchmarks whose answers are functions in Python: HumanEval and MBPP.

A published test that asserts is turned into inputs and outputs by the reference solution, in the sandbox, so that the
expected output never meets the answer. HumanEval's tests are recorded call by call, with how each result is compared
(`tasksets.sources_code`). Of MBPP's `assert f(2) == 3` the left side is what an answer computes and the right side what
is expected.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Final

from muster.authoring.benchmarks.definitions import Benchmark, BenchmarkItem, HubFiles, Rule
from muster.authoring.tasks.formats import text_of
from muster.authoring.tasks.rows import Row
from muster.authoring.tasks.sources_code import EQUAL, IDENTICAL, MAX_CODE, ROUNDED, RunReference, parse, recorded_calls
from muster.authoring.tasks.sources_synthetic import code_reference
from muster.environments.answers import last_code_block
from muster.environments.code import MAX_TESTS
from muster.environments.comparing import same_value
from muster.errors import MalformedError

TOLERANCE: Final = 1e-6
"""What HumanEval's tests forgive of a number that they do not compare by `==`."""
COMPARED: Final[Mapping[str, Mapping[str, Any]]] = {
    EQUAL: {},
    IDENTICAL: {"identical": True},
    ROUNDED: {"tolerance": TOLERANCE},
}
"""What a test of the environment says for each way in which HumanEval's compare."""

FENCE: Final = "```"


def fenced(code: str) -> str:
    """Return a program as the environment finds it."""
    return f"{FENCE}python\n{code}\n{FENCE}\n"


def program(text: str, item: BenchmarkItem) -> str:
    """Return the last block of Python, one that never ends where no other is, or all of the text."""
    return fenced(last_code_block(text) or last_code_block(f"{text}\n{FENCE}") or text)


# --- HumanEval


def _humaneval(row: Row, _: int, run_reference: RunReference) -> BenchmarkItem:
    prompt, entry = text_of(row, "prompt", MAX_CODE), text_of(row, "entry_point", 200)
    solution = prompt + text_of(row, "canonical_solution", MAX_CODE)
    test = text_of(row, "test", MAX_CODE)
    recorded = recorded_calls(solution, entry, test, run_reference)
    inputs, outputs = [one.arguments for one in recorded], [one.output for one in recorded]
    reference = code_reference(inputs, outputs, entry=entry, solution=solution)
    reference["setup"] = prompt
    for one, call in zip(reference["tests"], recorded, strict=True):
        one |= COMPARED[call.compared]
    return BenchmarkItem(text_of(row, "task_id", 200), prompt, reference)


def completed(text: str, item: BenchmarkItem) -> str:
    """Return the program; one that begins with spaces goes on where the prompt ends."""
    code = last_code_block(text) or last_code_block(f"{text}\n{FENCE}") or text
    return fenced(item.question + code if code.strip("\n")[:1].isspace() else code)


# --- MBPP

TEST_HALF: Final = range(11, 511)
"""The task numbers that are published as the test half; others are examples and training."""
OUTSIDE_TEST: Final = "not of the test half, tasks 11 to 510"

_ANSWERING: Final = """
def tested_(index):
    names = dict(globals())
    exec(SETUP_, names)
    return eval(SIDES_[index], names)
"""


def _mbpp(row: Row, _: int, run_reference: RunReference) -> BenchmarkItem:
    # 1. What is asked.
    number = row["task_id"]
    if type(number) is not int or number not in TEST_HALF:
        raise MalformedError(OUTSIDE_TEST)
    question = next((row[name] for name in ("text", "prompt") if isinstance(row.get(name), str)), "")
    if not question.strip() or len(question) > MAX_CODE:
        raise MalformedError("neither text nor prompt is a text")
    tests = row["test_list"]
    if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
        raise MalformedError("test_list is no list of tests")

    # 2. Both sides of every test, the expected one by the reference solution.
    sides = [_sides(test) for test in tests[:MAX_TESTS]]
    setup = "\n".join((*_texts(row.get("test_imports")), *_texts(row.get("test_setup_code"))))
    parse(setup)
    solution = text_of(row, "code", MAX_CODE)
    found = [
        run_reference(f"{solution}\n\n{_side_code(setup, side)}", "tested_", [[i] for i in range(len(side))])
        for side in zip(*sides, strict=True)
    ]
    if not all(same_value(ours, theirs, 0, distinct=True) for ours, theirs in zip(*found, strict=True)):
        raise MalformedError("the reference solution fails its test")

    # 3. Answers compute the left sides.
    inputs = [[i] for i in range(len(sides))]
    reference = code_reference(inputs, found[1], entry="tested_", solution=solution)
    reference["setup"] = _side_code(setup, [left for left, _ in sides])
    return BenchmarkItem(f"mbpp/{number}", question.strip(), reference, {"tests": "\n".join(tests)})


def _sides(test: str) -> tuple[str, str]:
    match parse(test).body:
        case [ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]))]:
            try:
                return ast.unparse(left), ast.unparse(right)
            except RecursionError as error:
                raise MalformedError("a test that is nested too deeply") from error
    raise MalformedError("a test is not one assertion that two values are equal")


def _side_code(setup: str, sides: Any) -> str:
    return f"SETUP_, SIDES_ = {setup!r}, {list(sides)!r}\n{_ANSWERING}"


def _texts(value: object) -> list[str]:
    if isinstance(value, list):
        return [one for one in value if isinstance(one, str)]
    return [value] if isinstance(value, str) else []


BENCHMARKS: Final = (
    Benchmark(
        "humaneval",
        ("task_id", "prompt", "canonical_solution", "test", "entry_point"),
        _humaneval,
        (Rule("passed", "code", {"tuples": "distinct"}, completed),),
        "Complete this Python function. Answer with the whole function in one block of Python.\n\n"
        "```python\n{question}\n```",
        20,
        0.2,
        1024,
        HubFiles("openai/openai_humaneval", ("openai_humaneval/test-00000-of-00001.parquet",)),
        ks=(1, 10, 100),
        size=164,
    ),
    Benchmark(
        "mbpp",
        ("task_id", "code", "test_list"),
        _mbpp,
        (Rule("passed", "code", {"tuples": "distinct"}, program),),
        "{question}\n\nAnswer with one block of Python. It must pass these tests:\n\n```python\n{tests}\n```",
        20,
        0.2,
        1024,
        HubFiles("google-research-datasets/mbpp", ("full/test-00000-of-00001.parquet",)),
        ("text", "prompt", "test_setup_code", "test_imports"),
        (1, 10, 100),
        outside=OUTSIDE_TEST,
        size=len(TEST_HALF),
    ),
)
