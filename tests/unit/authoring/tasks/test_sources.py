"""Importing: each published format, and rows that are poisoned in every way known."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.authoring.tasks import rows
from muster.authoring.tasks.rows import BadRow, read_rows
from muster.authoring.tasks.sources import (
    EXAMPLES,
    ImportReport,
    format_of,
    import_tasks,
    mapped_format,
    require_licence,
)
from muster.authoring.tasks.sources_code import (
    UNRUNNABLE,
    RecordedCall,
    RunReference,
    humaneval_of,
    mbpp_of,
    recorded_calls,
    run_in_sandbox,
)
from muster.environments.registry import default_manifest, make_environment
from muster.environments.task import ChatMessage, Task
from muster.errors import ConfigError, MalformedError, UsageError
from muster.sandbox.client import Sandbox
from muster.sandbox.component import local_component
from muster.sandbox.scorer import ScorerManifest
from testbed.suite.examples import up_to


def write_lines(path: Path, some: Iterable[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in some))
    return path


def take(name: str, path: Path) -> tuple[list[tuple[str, Task]], ImportReport]:
    report = ImportReport()
    return [*import_tasks(format_of(name), path, report)], report


def reasons(convert: Callable[[dict[str, Any], RunReference], object], bad: Any, run: RunReference) -> Counter[str]:
    """Return why rows are refused, each counted."""
    found = Counter[str]()
    for row in bad:
        with pytest.raises(MalformedError) as refusal:
            convert(row, run)
        found[str(refusal.value)] += 1
    return found


# --- Formats


def test_gsm8k(tmp_path: Path) -> None:
    row = {"question": "How many?", "answer": "6 * 200 = <<6*200=1200>>1200\n#### 1,200 "}
    tasks, report = take("gsm8k", write_lines(tmp_path / "f", [row, row | {"answer": "no mark"}]))
    ((environment, task),) = tasks
    assert (environment, task.text, task.reference) == ("math", "How many?", {"answer": "1200"})
    assert task.id == "gsm8k/ba352e24c64c7137"
    assert (report.rows, report.taken, dict(report.left_out)) == (2, 1, {"no answer after ####": 1})
    assert report.examples == [(2, "no answer after ####")]


def test_deepscaler_and_numina(tmp_path: Path) -> None:
    row = {"problem": "1+1?", "answer": " $2$ ", "solution": "..."}
    ((_, task),), _ = take("deepscaler", write_lines(tmp_path / "d", [row]))
    assert (task.text, task.reference) == ("1+1?", {"answer": "$2$"})
    good = row | {"question_type": "math-word-problem", "problem_is_valid": "Yes", "solution_is_valid": "Yes"}
    bad = [
        {"question_type": "proof"},
        {"problem_is_valid": "No"},
        {"solution_is_valid": "Incomplete"},
        {"answer": "proof"},
    ]
    tasks, report = take("numina", write_lines(tmp_path / "n", [good, *(good | one for one in bad)]))
    assert [task.reference for _, task in tasks] == [{"answer": "$2$"}]
    assert sum(report.left_out.values()) == 4


def synthetic(info: object, kind: str = "verifiable_math", **more: object) -> dict[str, object]:
    return {"problem_id": "p1", "task_type": kind, "prompt": "Why?", "verification_info": info, **more}


def test_synthetic(tmp_path: Path) -> None:
    cases = [{"type": "stdin_stdout", "input": "1\n", "output": "2\n"}]
    calls = [{"type": "function_call", "fn_name": "f", "input": [1], "output": 2}]
    rows_ = [
        synthetic(json.dumps({"ground_truth": "42"}), solve_rate_qwen=0.25, solve_rate_other=None),
        synthetic(json.dumps({"language": "python", "test_cases": cases}), "verifiable_code"),
        synthetic({"test_cases": json.dumps({"fn_name": "f", "inputs": [[1]], "outputs": [2]})}, "prime_rl_code"),
        synthetic({"test_cases": calls}, "code"),
        synthetic({"ground_truth": 7}),
    ]
    tasks, report = take("synthetic", write_lines(tmp_path / "f", rows_))
    tests = {"kind": "function", "entry": "f", "tests": [{"input": [1], "output": 2}]}
    assert [(environment, task.reference) for environment, task in tasks] == [
        ("math", {"answer": "42"}),
        ("code", {"kind": "stdin", "tests": [{"input": "1\n", "output": "2\n"}]}),
        ("code", tests),
        ("code", tests),
        ("math", {"answer": "7"}),
    ]
    assert (tasks[0][1].id, tasks[0][1].level, tasks[1][1].level) == ("synthetic/p1", 75, 0)
    assert not report.left_out


@pytest.mark.parametrize(
    "info",
    [
        "{",
        "[]",
        "null",
        3,
        None,
        {},
        {"ground_truth": ""},
        {"ground_truth": True},
        {"ground_truth": ["1"]},
        {"test_cases": []},
        {"test_cases": "["},
        {"test_cases": [1]},
        {"test_cases": [{"input": 1, "output": "2"}]},
        {"test_cases": [{"fn_name": "f", "input": 1, "output": 2}]},
        {"test_cases": [{"fn_name": "f", "input": [], "output": 2}, {"fn_name": "g", "input": [], "output": 2}]},
        {"test_cases": {"inputs": ["1"], "outputs": []}},
        {"test_cases": [{"input": "", "output": ""}], "language": "brainfuck"},
        '{"ground_truth": "\\ud800"}',
        "[" * 100_000,
    ],
)
def test_synthetic_rows_that_nothing_verifies_are_left_out(info: object, tmp_path: Path) -> None:
    tasks, report = take("synthetic", write_lines(tmp_path / "f", [synthetic(info)]))
    assert (tasks, report.taken, sum(report.left_out.values())) == ([], 0, 1)


@pytest.fixture(scope="module")
def run() -> Iterator[RunReference]:
    with Sandbox() as sandbox:
        scorer = ScorerManifest(local_component().hash, "code")
        yield run_in_sandbox(lambda payload: sandbox.call(scorer, payload))


FACTORIAL = 'def fact(n):\n    """Factorial."""\n'
BODY = "    return 1 if n < 2 else n * fact(n - 1)\n"


def humaneval(test: str, body: str = BODY) -> dict[str, Any]:
    return {
        "task_id": "HumanEval/0",
        "prompt": FACTORIAL,
        "canonical_solution": body,
        "test": test,
        "entry_point": "fact",
    }


def test_humaneval_tests_become_what_goes_in_and_comes_out(run: RunReference) -> None:
    test = (
        "METADATA = {}\ndef check(candidate):\n    assert candidate(3) == 6\n    assert candidate(3) == 6, 'again'\n"
        "    for n in range(2):\n        assert candidate(n) == fact(n)\n    assert abs(candidate(True) - 1.0) < 1e-6\n"
    )
    bad = [
        humaneval(test, "    return 6\n"),
        humaneval("(" * 5000),
        humaneval("def check(candidate):\n    pass\n"),
        humaneval("def check(candidate):\n    while True: pass\n"),
    ]
    prompt, reference = humaneval_of(humaneval(test), run)
    assert prompt == FACTORIAL
    assert reference == {
        "kind": "function",
        "entry": "fact",
        "setup": FACTORIAL,
        "tests": [
            {"input": [3], "output": 6},
            {"input": [0], "output": 1},
            {"input": [1], "output": 1},
            {"input": [True], "output": 1, "tolerance": 1e-6},
        ],
        "solution": FACTORIAL + BODY,
    }
    make_environment(default_manifest("code", local_component().hash)).check(Task("x", (), reference))
    assert reasons(humaneval_of, bad, run) == {
        "the reference solution fails: AssertionError": 1,
        "code that does not parse": 1,
        "its tests never call it": 1,
        "the reference solution is stopped: fuel": 1,
    }


def test_arguments_are_written_down_as_they_were_before_the_call(run: RunReference) -> None:
    solution = "def last(xs, seen):\n    seen.add(xs[-1])\n    return xs, xs.pop()\n"
    test = "assert last([(1,), 2], set()) == ([(1,)], 2)"
    call = RecordedCall([[{"$tuple": [1]}, 2], {"$set": []}], {"$tuple": [[{"$tuple": [1]}], 2]}, "equal")
    assert recorded_calls(solution, "last", test, run) == [call]


def test_a_call_says_how_the_test_compares_its_result(run: RunReference) -> None:
    test = """
def check(given):
    assert given(1) == 1 and True
    assert given(2) == 2
    assert given(True) is True
    assert given(4)
    assert not given(0), "why"
    assert abs(given(6) - 6) < 1e-6
    seven = given(7)
    assert seven == 7
    assert f(8) == len("12345678")
    assert given(2) == 2
"""
    calls = recorded_calls("def f(x):\n    return x\n", "f", test, run)
    assert [(*call.arguments, call.output, call.compared) for call in calls] == [
        (1, 1, "rounded"),
        (2, 2, "equal"),
        (True, True, "identical"),
        (4, 4, "equal"),
        (0, 0, "equal"),
        (6, 6, "rounded"),
        (7, 7, "rounded"),
        (8, 8, "equal"),
    ]


def test_the_order_of_a_mapping_given_to_a_function_stays(run: RunReference) -> None:
    row = {
        "task_id": 1,
        "prompt": "def first(m):\n",
        "canonical_solution": "    return next(iter(m))\n",
        "test": "assert first({'b': {'d': 1, 'c': 2}, 'a': 2}) == 'b'\nassert first({'a': 1, 'b': 2}) == 'a'",
        "entry_point": "first",
    }
    task = Task("x", (ChatMessage("user", "?"),), humaneval_of(row, run)[1])
    assert [test["input"] for test in Task.from_line(task.to_line()).reference["tests"]] == [
        [{"$dict": [["b", {"$dict": [["d", 1], ["c", 2]]}], ["a", 2]]}],
        [{"a": 1, "b": 2}],
    ]


def test_mbpp_tests_are_what_an_answer_computes_and_what_is_expected(run: RunReference) -> None:
    mbpp = {
        "task_id": 11,
        "text": "Factorial.",
        "code": FACTORIAL + BODY,
        "test_list": ["assert fact(2) == 2", "assert {fact(1), fact(3)} == {6, 1}"],
        "test_setup_code": "import math",
    }
    bad = [
        {"test_list": ["assert other(1) == 3"]},
        {"test_list": ["assert fact(2) == 3"]},
        {"test_list": ["assert fact(2)"]},
        {"test_setup_code": "import nothing"},
        {"text": ""},
    ]
    question, tests, reference = mbpp_of(mbpp, run)
    assert (question, tests) == ("Factorial.", mbpp["test_list"])
    assert [test["input"] for test in reference["tests"]] == [[0], [1]]
    assert [test["output"] for test in reference["tests"]] == [2, {"$set": [1, 6]}]
    assert "6, 1" not in reference["setup"]
    make_environment(default_manifest("code", local_component().hash)).check(Task("x", (), reference))
    assert reasons(mbpp_of, [mbpp | one for one in bad], run) == {
        "the reference solution fails: NameError": 1,
        "the reference solution fails its test": 1,
        "a test is not one assertion that two values are equal": 1,
        UNRUNNABLE: 1,
        "neither text nor prompt is a text": 1,
    }


def test_every_row_whose_reference_the_sandbox_cannot_run_is_named(tmp_path: Path, run: RunReference) -> None:
    solutions = [
        "import numpy as np\ndef f(): return np.zeros(1)",
        "import math\ndef f(): return math.pi",
        "#include <stdio.h>\nint main() { return 0; }",
        *["from numpy.linalg import norm"] * EXAMPLES,
        "try:\n    import numpy\nexcept ImportError:\n    numpy = None",
    ]
    path = write_lines(tmp_path / "f", [{"q": f"Task {i}", "s": one} for i, one in enumerate(solutions)])
    report = ImportReport()
    source = mapped_format("code", {"prompt": "q", "solution": "s"}, run_reference=run)
    assert [task.text for _, task in import_tasks(source, path, report)] == ["Task 1", "Task 6"]
    assert dict(report.left_out) == {UNRUNNABLE: 2 + EXAMPLES}
    assert report.examples == [(number, UNRUNNABLE) for number in (1, 3, 4, 5, 6)]


def test_a_source_that_is_not_known_is_refused() -> None:
    with pytest.raises(UsageError, match="no source 'poetry'"):
        format_of("poetry")


def test_mapped_columns(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "f",
        [
            {"q": "Why?", "sol": "so", "n": 3, "who": "me", "sys": "Be brief."},
            {"q": "Why not?", "sol": "", "n": 3, "who": "me", "sys": "Be brief."},
            {"q": "Who?", "sol": "I", "n": "3", "who": "me", "sys": "Be brief."},
        ],
    )
    fields = {"prompt": "q", "answer": "sol", "level": "n", "id": "who", "system": "sys"}
    report = ImportReport()
    ((environment, task),) = import_tasks(mapped_format("math", fields, "mine"), path, report)
    assert (environment, task.id, task.level, task.reference) == ("math", "mine/me", 3, {"answer": "so"})
    assert [(message.role, message.content) for message in task.messages] == [("system", "Be brief."), ("user", "Why?")]
    assert dict(report.left_out) == {"a part of its reference is empty": 1, "its level is no whole number": 1}
    for wrong in ({"prompt": "q"}, {"answer": "sol"}, {}):
        with pytest.raises(UsageError):
            mapped_format("math", wrong)


def test_a_licence_must_be_given() -> None:
    assert require_licence(" MIT ") == "MIT"
    for nothing in (None, "", "  "):
        with pytest.raises(UsageError, match="no licence"):
            require_licence(nothing)


# --- Files and rows


def test_a_missing_column_names_those_that_are_there(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "f", [{"problem": "1", "solution": "2"}])
    table = tmp_path / "t"
    pq.write_table(pa.table({"problem": ["1"], "solution": ["2"]}), table)
    for path in (lines, table):
        with pytest.raises(ConfigError, match="no column question, answer; there are: problem, solution"):
            take("gsm8k", path)
    with pytest.raises(ConfigError, match="there is no file"):
        take("gsm8k", tmp_path / "absent")


def test_poisoned_lines_are_counted_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_ROW_BYTES", 1000)
    good = b'{"question": "a?", "answer": "#### 1"}'
    lines = [
        b"\xef\xbb\xbf" + good,
        b"{",
        b"[]",
        b"",
        b'{"question": "half \\ud800 a pair", "answer": "#### 1"}',
        b'{"question": "\xff", "answer": "#### 1"}',
        b'{"question": 3, "answer": "#### 1"}',
        b'{"question": null, "answer": "#### 1"}',
        b'{"answer": "#### 1"}',
        b'{"question": "' + b"x" * 5000 + b'", "answer": "#### 1"}',
        b"[" * 900,
        b'{"question": "a?", "answer": "####"}',
        good.replace(b"a?", b"b?"),
    ]
    path = tmp_path / "f"
    path.write_bytes(b"\n".join(lines))
    tasks, report = take("gsm8k", path)
    assert [task.text for _, task in tasks] == ["a?", "b?"]
    assert (report.rows, report.taken, sum(report.left_out.values())) == (12, 2, 10)
    assert [number for number, _ in report.examples] == [2, 3, 5, 6, 7, 8, 9, 10, 11, 12]
    assert dict(report.examples)[9] == "without question"
    assert dict(report.examples)[10] == "longer than 1000 bytes"


def test_poisoned_cells_of_parquet_are_counted_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_ROW_BYTES", 1000)
    cells = [b"a?", b"\xff", None, b"x" * 5000, b"b?"]
    offsets = pa.array([0, *(sum(len(one or b"") for one in cells[: i + 1]) for i in range(len(cells)))], pa.int32())
    mask = pa.array([one is not None for one in cells])
    column = pa.StringArray.from_buffers(
        len(cells), offsets.buffers()[1], pa.py_buffer(b"".join(one or b"" for one in cells)), mask.buffers()[1]
    )
    pq.write_table(pa.table({"question": column, "answer": ["#### 1"] * 5, "other": [1] * 5}), tmp_path / "f")
    tasks, report = take("gsm8k", tmp_path / "f")
    assert [task.text for _, task in tasks] == ["a?", "b?"]
    assert [number for number, _ in report.examples] == [2, 3, 4]
    assert "no Unicode" in report.examples[0][1]
    assert report.examples[2][1] == "a cell of 5000 bytes; at most 1000"


def test_columns_of_other_types_leave_rows_out(tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": [1, 2], "answer": [["#### 1"], []]}), tmp_path / "f")
    tasks, report = take("gsm8k", tmp_path / "f")
    assert (tasks, report.rows, sum(report.left_out.values())) == ([], 2, 2)


def test_files_with_too_many_rows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.authoring.tasks.rows.MAX_ROWS", 4)
    path = write_lines(tmp_path / "f", [{"question": "a?", "answer": "#### 1"}] * 5)
    with pytest.raises(MalformedError, match="more than 4 rows"):
        list(import_tasks(format_of("gsm8k"), path, ImportReport()))


@given(st.binary(max_size=200))
@settings(max_examples=up_to(60))
def test_any_bytes_are_rows_or_a_clear_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    for start in (b"", b"PAR1"):
        path = tmp_path_factory.mktemp("any") / "f"
        path.write_bytes(start + data)
        try:
            found = [row for _, row in read_rows(path, ("question",))]
        except (ConfigError, MalformedError):
            continue
        assert all(isinstance(row, BadRow) or set(row) == {"question"} for row in found)
