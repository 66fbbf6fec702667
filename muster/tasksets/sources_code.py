"""HumanEval and MBPP: functions to write, with tests in the style of `assert f(2) == 3`.

Such a test runs beside the answer, which could change what `assert` or `==` mean. So it is turned into what goes in and
what comes out: the arguments are read from the test's syntax tree, and the reference solution is run on them, by
whatever `RunReference` the caller gives. That executes code from the file; it belongs into the sandbox.
"""

from __future__ import annotations

import ast
import json
import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from muster.environments.task import Task
from muster.errors import MalformedError
from muster.tasksets.formats import Format, make_task, text_of
from muster.tasksets.rows import Row
from muster.tasksets.sources_synthetic import MAX_TESTS, code_reference

RunReference = Callable[[str, str, list[list[Any]]], list[Any]]
"""(code, name of its function, arguments of each call) → what each call returns, as JSON values.

Raises MalformedError when the code fails. It must run in a sandbox: the code is a stranger's."""

MAX_CODE: Final = 200_000


def make_formats(run_reference: RunReference) -> tuple[Format, ...]:
    """Return the formats, which run reference solutions by `run_reference`."""

    def humaneval(row: Row) -> tuple[str, Task]:
        prompt, entry = text_of(row, "prompt", MAX_CODE), text_of(row, "entry_point", 200)
        solution = prompt + text_of(row, "canonical_solution", MAX_CODE)
        calls = calls_in(text_of(row, "test", MAX_CODE), {"candidate", entry})
        question = f"Complete this Python function. Answer with the whole function.\n\n```python\n{prompt}\n```"
        reference = _reference(solution, entry, calls, run_reference)
        return "code", make_task("humaneval", question, reference, name=row["task_id"])

    def mbpp(row: Row) -> tuple[str, Task]:
        # 1. What is asked.
        text = next((row[name] for name in ("text", "prompt") if isinstance(row.get(name), str)), "")
        if not text.strip() or len(text) > MAX_CODE:
            raise MalformedError("neither text nor prompt is a text")

        # 2. The one function that its tests call.
        solution, tests = text_of(row, "code", MAX_CODE), row["test_list"]
        if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
            raise MalformedError("test_list is no list of tests")
        if isinstance(row.get("test_setup_code"), str) and row["test_setup_code"].strip():
            raise MalformedError("its tests need code of their own")
        defined = {node.name for node in _parse(solution).body if isinstance(node, ast.FunctionDef)}
        calls = calls_in("\n".join(tests), defined)
        names = {call.name for call in calls}
        if len(names) != 1:
            raise MalformedError("its tests call none or several of its functions on literals")

        # 3. What that returns.
        reference = _reference(solution, names.pop(), calls, run_reference)
        question = f"{text}\n\nAnswer with Python code. It is tested like this:\n\n```python\n{tests[0]}\n```"
        return "code", make_task("mbpp", question, reference, name=row["task_id"])

    needed = ("task_id", "prompt", "canonical_solution", "test", "entry_point")
    return (
        Format("humaneval", needed, humaneval, (), ("code",)),
        Format("mbpp", ("task_id", "code", "test_list"), mbpp, ("text", "prompt", "test_setup_code"), ("code",)),
    )


@dataclass(frozen=True)
class FunctionCall:
    """A call in a test, with literals for arguments."""

    name: str
    arguments: list[Any]
    wanted: Any = None
    """What it must return, where `known`."""
    known: bool = False


def calls_in(tests: str, names: set[str]) -> list[FunctionCall]:
    """Return the asserted calls of these functions whose arguments are literals that JSON has."""
    found = []
    for node in ast.walk(_parse(tests)):
        if not isinstance(node, ast.Assert):
            continue
        call, wanted, known = node.test, None, False
        if isinstance(call, ast.Compare) and len(call.ops) == 1 and isinstance(call.ops[0], (ast.Eq, ast.Is)):
            with suppress(MalformedError):  # compared with something computed: what the reference returns decides
                wanted, known = _literal(call.comparators[0]), True
            call = call.left
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in names:
            try:
                arguments = [_literal(argument) for argument in call.args]
            except MalformedError:
                continue
            if not call.keywords:
                found.append(FunctionCall(call.func.id, arguments, wanted, known))
    return found[:MAX_TESTS]


def _reference(solution: str, entry: str, calls: list[FunctionCall], run_reference: RunReference) -> dict[str, Any]:
    """Return inputs and outputs, once the reference solution passes those tests that say what they expect."""
    if not calls:
        raise MalformedError("no test calls it on literals")
    inputs = [call.arguments for call in calls]
    outputs = run_reference(solution, entry, inputs)
    if len(outputs) != len(calls):
        raise MalformedError("the reference solution did not answer every test")
    for call, output in zip(calls, outputs, strict=True):
        if call.known and not _equal(call.wanted, output):
            raise MalformedError("the reference solution fails a test of its own")
    return code_reference(inputs, list(outputs), entry=entry, solution=solution)


def _equal(wanted: Any, output: Any) -> bool:
    if isinstance(wanted, float) and isinstance(output, (int, float)):
        return math.isclose(wanted, output, rel_tol=1e-6, abs_tol=1e-6)
    return wanted == output


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal as JSON has it, tuples as lists. Raises MalformedError for anything else."""
    try:
        return json.loads(json.dumps(ast.literal_eval(node), allow_nan=False))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise MalformedError("an argument that is no literal of JSON") from error


def _parse(code: str) -> ast.Module:
    if len(code) > MAX_CODE:
        raise MalformedError("code that is too long")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in strangers' code
            return ast.parse(code)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise MalformedError("code that does not parse") from error
