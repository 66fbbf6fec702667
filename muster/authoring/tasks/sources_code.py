"""HumanEval and MBPP: functions to write, with tests in the style of `assert f(2) == 3`.

Such a test runs beside the answer, which could change what `assert` or `==` mean. So it is turned into what goes in and
what comes out: the test runs once, in the sandbox, with the reference solution, and every call that it makes is written
down. A reference that fails its own test is left out. Of MBPP's tests those that forgive an order are left out too, for
what was written down would not; HumanEval's forgive rounding alone (`tolerance` of the environment `code`), and in
HumanEval/32 which root is found.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from muster.authoring.tasks.formats import Format, make_task, text_of
from muster.authoring.tasks.rows import Row
from muster.authoring.tasks.sources_synthetic import code_reference
from muster.environments.base import ScorerCall
from muster.environments.code import MAX_TESTS
from muster.environments.task import Task
from muster.errors import MalformedError

RunReference = Callable[[str, str, list[list[Any]]], list[Any]]
"""(code, name of its function, arguments of each call) → what each call returns, both as typed JSON.

Raises MalformedError when the code fails. It must run in a sandbox: the code is a stranger's."""

MAX_CODE: Final = 200_000
UNRUNNABLE: Final = "its reference needs a module that the sandbox lacks, such as numpy, or another language"
UNORDERED: Final = frozenset(("set", "frozenset", "sorted", "Counter", "len", "sum", "any", "all"))
"""What a test compares by when it forgives an order, or more."""

EQUAL, IDENTICAL, ROUNDED = "equal", "identical", "rounded"
"""How a test compares what a call returns: by `==` or as a truth, by `is`, or otherwise: within bounds, or as part of a
computation."""


@dataclass(frozen=True)
class RecordedCall:
    """One call that a test makes."""

    arguments: list[Any]
    output: Any
    compared: str
    """`EQUAL`, `IDENTICAL` or `ROUNDED`."""


_RECORDER: Final = """
def recorded_calls_():
    import copy
    calls = []
    def recorder(*arguments, compared_="rounded"):
        given = copy.deepcopy(arguments)
        value = names[ENTRY_](*arguments)
        calls.append([list(given), copy.deepcopy(value), compared_])
        return value
    names = globals()
    apart = {**names, ENTRY_: recorder}  # the solution's own recursion does not come by here
    exec(compile(TEST_, "<test>", "exec", dont_inherit=True), apart)
    if "check" in apart:
        apart["check"](recorder)
    return calls
"""


def run_in_sandbox(call: ScorerCall) -> RunReference:
    """Return what runs reference solutions by a component's function `code`."""

    def run(code: str, entry: str, inputs: list[list[Any]]) -> list[Any]:
        outputs = []
        for given in inputs:
            outcome = call({"code": code, "entry": entry, "input": given, "kind": "function"})
            match outcome.value:
                case {"value": value}:
                    outputs.append(value)
                case {"error": "ModuleNotFoundError"}:
                    raise MalformedError(UNRUNNABLE)
                case {"error": str(error)}:
                    raise MalformedError(f"the reference solution fails: {error[:100]}")
                case _:
                    raise MalformedError(f"the reference solution is stopped: {outcome.stopped}")
        return outputs

    return run


def check_imports(solution: str, run_reference: RunReference) -> None:
    """Raise MalformedError when a solution is no Python, or imports at its top what the sandbox lacks."""
    try:
        tree = parse(solution)
    except MalformedError as error:
        raise MalformedError(UNRUNNABLE) from error
    imports: list[ast.stmt] = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    if imports:
        run_reference(f"{ast.unparse(ast.Module(imports, []))}\ndef imported_(): pass", "imported_", [[]])


def recorded_calls(solution: str, entry: str, test: str, run_reference: RunReference) -> list[RecordedCall]:
    """Return every call that a test makes, no two alike, at most `MAX_TESTS`.

    `test` is code that asserts, by the function's name or in a function `check` that is given the candidate. Raises
    MalformedError when the solution fails it.
    """
    code = f"{solution}\n\nENTRY_, TEST_ = {entry!r}, {_marked(entry, test)!r}\n{_RECORDER}"
    (calls,) = run_reference(code, "recorded_calls_", [[]])
    if not isinstance(calls, list) or not calls:
        raise MalformedError("its tests never call it")
    found = {}
    for one in calls:
        match one:
            case [list(arguments), output, str(compared)]:
                call = RecordedCall(arguments, output, compared)
                found.setdefault((json.dumps(arguments, sort_keys=True), compared), call)
            case _:
                raise MalformedError("its tests cannot be written down")
    return list(found.values())[:MAX_TESTS]


def _marked(entry: str, test: str) -> str:
    """Return a test whose calls of the candidate say how their results are compared. Raises MalformedError."""
    tree = parse(test)
    names = {entry}
    for node in tree.body:
        match node:
            case ast.FunctionDef(name="check", args=ast.arguments(args=[ast.arg(arg=candidate), *_])):
                names.add(candidate)
    try:
        return ast.unparse(ast.fix_missing_locations(_Marking(names).visit(tree)))
    except RecursionError as error:
        raise MalformedError("a test that is nested too deeply") from error


class _Marking(ast.NodeTransformer):
    """Gives calls of some names the argument `compared_`."""

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self._compared = ROUNDED

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        match node.test:
            case ast.Compare(left=ast.Call(), ops=[ast.Is()]):
                self._compared = IDENTICAL
            case ast.Compare(ops=[ast.Eq()]) | ast.Call() | ast.UnaryOp(op=ast.Not(), operand=ast.Call()):
                self._compared = EQUAL
        self.generic_visit(node)
        self._compared = ROUNDED
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node.func:
            case ast.Name(id=name) if name in self._names:
                node.keywords.append(ast.keyword("compared_", ast.Constant(self._compared)))
        return node


def make_formats(run_reference: RunReference) -> tuple[Format, ...]:
    """Return the formats, which run reference solutions by `run_reference`."""

    def humaneval(row: Row) -> tuple[str, Task]:
        prompt, entry = text_of(row, "prompt", MAX_CODE), text_of(row, "entry_point", 200)
        solution = prompt + text_of(row, "canonical_solution", MAX_CODE)
        reference = _reference(solution, entry, text_of(row, "test", MAX_CODE), run_reference)
        question = f"Complete this Python function. Answer with the whole function.\n\n```python\n{prompt}\n```"
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
        setup = row.get("test_setup_code")
        setup = setup if isinstance(setup, str) else ""
        defined = {node.name for node in parse(solution).body if isinstance(node, ast.FunctionDef)}
        names = {name for test in tests for name in _called(test) & defined}
        if len(names) != 1:
            raise MalformedError("its tests call none or several of its functions")
        exact = [test for test in tests if not _called(test) & UNORDERED]
        if not exact:
            raise MalformedError("all of its tests forgive an order")

        # 3. What that returns.
        reference = _reference(solution, names.pop(), "\n".join((setup, *exact)), run_reference)
        question = f"{text}\n\nAnswer with Python code. It is tested like this:\n\n```python\n{tests[0]}\n```"
        return "code", make_task("mbpp", question, reference, name=row["task_id"])

    needed = ("task_id", "prompt", "canonical_solution", "test", "entry_point")
    return (
        Format("humaneval", needed, humaneval, (), ("code",)),
        Format("mbpp", ("task_id", "code", "test_list"), mbpp, ("text", "prompt", "test_setup_code"), ("code",)),
    )


def parse(code: str) -> ast.Module:
    """Return a stranger's code as a tree. Raises MalformedError."""
    if len(code) > MAX_CODE:
        raise MalformedError("code that is too long")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in strangers' code
            return ast.parse(code)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise MalformedError("code that does not parse") from error


def _reference(solution: str, entry: str, test: str, run_reference: RunReference) -> dict[str, Any]:
    """Return inputs and outputs, once the reference solution passes its test."""
    recorded = recorded_calls(solution, entry, test, run_reference)
    inputs, outputs = [one.arguments for one in recorded], [one.output for one in recorded]
    return code_reference(inputs, outputs, entry=entry, solution=solution)


def _called(test: str) -> set[str]:
    nodes = [node for node in ast.walk(parse(test)) if isinstance(node, ast.Call)]
    return {node.func.id for node in nodes if isinstance(node.func, ast.Name)}
