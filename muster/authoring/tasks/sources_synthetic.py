"""The format of SYNTHETIC-1, SYNTHETIC-2 and INTELLECT-2: a prompt, and JSON with what verifies an answer to it."""

from __future__ import annotations

from typing import Any, Final

from pydantic_core import from_json

from muster.authoring.tasks.formats import Format, level_of, make_task, text_of
from muster.authoring.tasks.rows import Row
from muster.environments.task import Task
from muster.errors import MalformedError

MAX_TESTS: Final = 1_000


def _synthetic(row: Row) -> tuple[str, Task]:
    question = text_of(row, "prompt")
    kind = text_of(row, "task_type", 200)
    info = _object(row["verification_info"], "verification_info")
    rates = [row[name] for name in sorted(row) if name.startswith("solve_rate")]
    options: dict[str, Any] = {"name": row["problem_id"], "level": level_of(rates)}
    if "test_cases" in info:
        return "code", make_task("synthetic", question, _tests(info), **options)
    answer = info.get("ground_truth")
    if isinstance(answer, (int, float)) and not isinstance(answer, bool):
        answer = str(answer)
    if "code" in kind or not isinstance(answer, str) or not answer.strip():
        raise MalformedError(f"nothing verifies {kind[:40]}: neither a ground_truth nor test_cases")
    return "math", make_task("synthetic", question, {"answer": answer.strip()}, **options)


def _tests(info: dict[str, Any]) -> dict[str, Any]:
    """Return the reference of a code task: calls of one function, or what goes in and comes out as text."""
    if info.get("language", "python") not in ("python", "python3"):
        raise MalformedError("not in Python")
    cases = info["test_cases"]
    if isinstance(cases, str):
        cases = read_json(cases, "test_cases")
    if isinstance(cases, dict):  # of columns
        entry, inputs, outputs = cases.get("fn_name"), cases.get("inputs"), cases.get("outputs")
    elif isinstance(cases, list) and cases and all(isinstance(case, dict) for case in cases):
        entries = {str(case.get("fn_name") or "") for case in cases}
        if len(entries) > 1:
            raise MalformedError("tests of several functions")
        entry = entries.pop()
        inputs = [case.get("input") for case in cases]
        outputs = [case.get("output") for case in cases]
    else:
        raise MalformedError("test_cases is no list of tests")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise MalformedError("inputs and outputs of the tests do not pair")
    if not 1 <= len(inputs) <= MAX_TESTS:
        raise MalformedError(f"{len(inputs)} tests; 1 to {MAX_TESTS} can be used")
    return code_reference(inputs, outputs, entry=entry if isinstance(entry, str) else "")


def code_reference(inputs: list[Any], outputs: list[Any], *, entry: str = "", solution: str = "") -> dict[str, Any]:
    """Return the reference of a code task.

    With `entry` each input is the list of a call's arguments and each output what it returns; without it both are what
    goes through stdin and stdout.
    """
    if not entry and not all(isinstance(one, str) for one in (*inputs, *outputs)):
        raise MalformedError("a test whose input or output is no text")
    if entry and not all(isinstance(one, list) for one in inputs):
        raise MalformedError("a test whose input is no list of arguments")
    if entry:
        inputs = [_ordered(one) for one in inputs]
    tests = [{"input": given, "output": wanted} for given, wanted in zip(inputs, outputs, strict=True)]
    reference: dict[str, Any] = {"kind": "function", "entry": entry} if entry else {"kind": "stdin"}
    return reference | {"tests": tests} | ({"solution": solution} if solution else {})


def _ordered(value: Any) -> Any:
    """Return a typed value whose mappings keep their order: a task's own form sorts keys, and programs may notice."""
    if isinstance(value, list):
        return [_ordered(one) for one in value]
    if not isinstance(value, dict):
        return value
    pairs = {key: _ordered(one) for key, one in value.items()}
    if list(pairs) == sorted(pairs):
        return pairs
    return {"$dict": [[key, one] for key, one in pairs.items()]}


def _object(value: object, what: str) -> dict[str, Any]:
    parsed = read_json(value, what) if isinstance(value, str) else value
    if not isinstance(parsed, dict):
        raise MalformedError(f"{what} is no JSON object")
    return parsed


def read_json(text: str, what: str) -> Any:
    """Return the value of a text of JSON. Raises MalformedError."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise MalformedError(f"{what} is no JSON") from error


FORMATS: Final = (
    Format(
        "synthetic",
        ("problem_id", "task_type", "prompt", "verification_info"),
        _synthetic,
        ("solve_rate*",),
        ("math", "code"),
    ),
)
