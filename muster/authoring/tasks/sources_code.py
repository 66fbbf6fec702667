"""HumanEval and MBPP: functions to write, with tests in the style of `assert f(2) == 3`.

Such a test runs beside the answer, which could change what `assert` or `==` mean. So it is turned into what goes in and
what comes out, by the reference solution, in the sandbox, so that the expected output never meets the answer. A
reference that fails its own test is left out. HumanEval's tests are recorded call by call, with how each result is
compared: what they forgive is rounding, and in HumanEval/32 which root is found. Of MBPP's `assert f(2) == 3` the left
side is what an answer computes and the right side what is expected.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from muster.authoring.tasks.formats import text_of
from muster.authoring.tasks.rows import Row
from muster.authoring.tasks.sources_synthetic import code_reference
from muster.environments.base import ScorerCall
from muster.environments.code import MAX_TESTS
from muster.environments.comparing import same_value
from muster.errors import MalformedError

RunReference = Callable[[str, str, list[list[Any]]], list[Any]]
"""(code, name of its function, arguments of each call) → what each call returns, both as typed JSON.

Raises MalformedError when the code fails. It must run in a sandbox: the code is a stranger's."""

MAX_CODE: Final = 200_000
UNRUNNABLE: Final = "its reference needs a module that the sandbox lacks, such as numpy, or another language"

EQUAL, IDENTICAL, ROUNDED = "equal", "identical", "rounded"
"""How a test compares what a call returns: by `==` or as a truth, by `is`, or otherwise: within bounds, or as part of a
computation."""


TOLERANCE: Final = 1e-6
"""What HumanEval's tests forgive of a number that they do not compare by `==`."""
COMPARED: Final[Mapping[str, Mapping[str, Any]]] = {
    EQUAL: {},
    IDENTICAL: {"identical": True},
    ROUNDED: {"tolerance": TOLERANCE},
}
"""What a test of the environment says for each way in which HumanEval's compare."""


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


def humaneval_of(row: Row, run_reference: RunReference) -> tuple[str, dict[str, Any]]:
    """Return the function's beginning, and the reference, of a row of HumanEval. Raises MalformedError."""
    prompt, entry = text_of(row, "prompt", MAX_CODE), text_of(row, "entry_point", 200)
    solution = prompt + text_of(row, "canonical_solution", MAX_CODE)
    recorded = recorded_calls(solution, entry, text_of(row, "test", MAX_CODE), run_reference)
    inputs, outputs = [one.arguments for one in recorded], [one.output for one in recorded]
    reference = code_reference(inputs, outputs, entry=entry, solution=solution)
    reference["setup"] = prompt
    for one, call in zip(reference["tests"], recorded, strict=True):
        one |= COMPARED[call.compared]
    return prompt, reference


MBPP_OPTIONAL: Final = ("text", "prompt", "test_setup_code", "test_imports")

_ANSWERING: Final = """
def tested_(index):
    names = dict(globals())
    exec(SETUP_, names)
    return eval(SIDES_[index], names)
"""


def mbpp_of(row: Row, run_reference: RunReference) -> tuple[str, list[str], dict[str, Any]]:
    """Return the question, its tests and the reference of a row of MBPP. Raises MalformedError."""
    # 1. What is asked.
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
    return question.strip(), tests, reference


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
