"""LiveCodeBench: programs that read and print, and methods of a class, for contests by date.

Its scorer is followed where that decides: the imports before a program, the function that a program becomes (its
variables are no globals), input whose lines come without their ends and end in StopIteration, exits that do not count.
"""

from __future__ import annotations

import ast
from datetime import date
from typing import Any, Final

from muster.authoring.benchmarks.definitions import Benchmark, BenchmarkItem, HubFiles, Rule
from muster.authoring.benchmarks.pickled_text import read_tests
from muster.authoring.benchmarks.programs import FENCE, fenced
from muster.authoring.tasks.formats import text_of
from muster.authoring.tasks.rows import Row
from muster.authoring.tasks.sources_code import RunReference, parse
from muster.authoring.tasks.sources_synthetic import code_reference, read_json
from muster.errors import MalformedError

_STAR: Final = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json"),
)

IMPORTS: Final = "\n".join(
    (
        *(f"from {name} import *" for name in (*_STAR, "builtins", "typing")),
        f"import {', '.join(_STAR)}",
        *("sys.setrecursionlimit(50_000)", "sys.set_int_max_str_digits(50_000)", ""),
    )
)
"""What stands before every program."""

FUEL: Final = 100_000_000_000
"""Of one test: what takes some four seconds natively. Its own scorer gives six."""

INPUT: Final = """
def given_():
    import builtins
    text = sys.stdin.read()
    lines = iter(text.split("\\n"))
    sys.stdin = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
    sys.stdin.readline = lambda *_: next(lines)
    sys.stdin.readlines = lambda *_: text.split("\\n")
    sys.stdin.read = lambda *_: text
    builtins.open = lambda *_, **__: io.StringIO(text)


given_()
"""
"""How a program finds its input."""

CALL: Final = """
try:
    program_()
except SystemExit:
    pass
"""

MAX_VALUES: Final = 10_000_000
"""In what the functions of one problem are given and return: an empty list takes 64 bytes of memory."""

FORM_PROGRAM: Final = "Write a program that reads standard input and prints to standard output."
FORM_STARTER: Final = "Complete this code:"


def _item(row: Row, number: int, _: RunReference) -> BenchmarkItem:
    # 1. The tests, public and private.
    tests = [test for column in ("public_test_cases", "private_test_cases") for test in _tests_of(row[column])]
    metadata = row["metadata"]
    details = read_json(metadata, "metadata") if isinstance(metadata, str) else metadata
    entry = details.get("func_name") if isinstance(details, dict) else None
    inputs: list[Any] = [_text_in(test, "input") for test in tests]
    outputs: list[Any] = [_text_in(test, "output") for test in tests]
    if entry:
        if sum(text.count(mark) for text in (*inputs, *outputs) for mark in "[{,\n") > MAX_VALUES:
            raise MalformedError(f"the inputs and outputs of its tests hold more than {MAX_VALUES} values")
        inputs = [[read_json(line, "an input") for line in one.split("\n")] for one in inputs]
        outputs = [read_json(one, "an output") for one in outputs]
    reference = code_reference(inputs, outputs, entry=str(entry or ""))
    reference["setup"] = IMPORTS if entry else IMPORTS + INPUT

    # 2. What is asked: to complete the starter code, or to write a program.
    starter = row["starter_code"]
    starter = starter if isinstance(starter, str) and starter.strip() else ""
    form = f"{FORM_STARTER}\n\n{fenced(starter)}" if starter else FORM_PROGRAM
    name = row.get("question_id")
    return BenchmarkItem(
        f"livecodebench/{name if isinstance(name, int | str) and str(name) else number}",
        text_of(row, "question_content"),
        reference,
        {"form": form.strip()},
        {"kind": reference["kind"]},
    )


def published_program(text: str, item: BenchmarkItem) -> str | None:
    """Return the lines between the last two that hold a fence; None where there are not two."""
    lines = text.split("\n")
    fences = [i for i, line in enumerate(lines) if FENCE in line]
    if len(fences) < 2:
        return None
    code = "\n".join(lines[fences[-2] + 1 : fences[-1]])
    return fenced(as_function(code) if item.aids["kind"] == "stdin" else code)


def as_function(code: str) -> str:
    """Return a program whose statements, but for its imports, stand in a function that is called.

    So does what a last `if __name__ == "__main__"` holds. Code that does not parse stays as it is, and fails.
    """
    try:
        body = parse(code).body
        if body and isinstance(body[-1], ast.If) and ast.unparse(body[-1].test) == "__name__ == '__main__'":
            body = [*body[:-1], *body[-1].body]
        imports = [one for one in body if isinstance(one, ast.Import | ast.ImportFrom)]
        rest = [one for one in body if one not in imports]
        function = ast.parse("def program_():\n    pass").body[0]
        assert isinstance(function, ast.FunctionDef)
        function.body = rest
        return "\n".join((*map(ast.unparse, imports), ast.unparse(function), CALL))
    except (MalformedError, RecursionError):
        return code


def contest_day(row: Row) -> date:
    """Return the day of a row's contest. Raises MalformedError."""
    try:
        return date.fromisoformat(str(row["contest_date"])[:10])
    except ValueError as error:
        raise MalformedError("contest_date is no date") from error


def _tests_of(value: object) -> list[dict[str, Any]]:
    if isinstance(value, str):
        return read_tests(value) if value.strip() else []
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):
        return value
    raise MalformedError("its tests are no list of objects")


def _text_in(test: dict[str, Any], key: str) -> str:
    value = test.get(key)
    if not isinstance(value, str):
        raise MalformedError("a test whose input or output is no text")
    return value


LIVECODEBENCH: Final = Benchmark(
    "livecodebench",
    (
        *("question_content", "contest_date", "starter_code"),
        *("public_test_cases", "private_test_cases", "metadata"),
    ),
    _item,
    (Rule("passed", "code", {"text": "lines", "tuples": "outer"}, published_program, fuel=FUEL),),
    "{question}\n\n{form}\n\nAnswer with the whole program in one block of Python.",
    10,
    0.2,
    2000,
    HubFiles("livecodebench/code_generation_lite", ("test.jsonl", *(f"test{i}.jsonl" for i in range(2, 7)))),
    ("question_id",),
    (1, 5),
    dated=True,
    size=1055,
)
