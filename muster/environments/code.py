"""Programs: right when they give every test's expected output, which they never see.

One call of the scorer runs the program once, in a fresh instance, on one test's input. What comes back is data of a
stranger: it is compared here. So nothing that the program does to its interpreter helps it: there is nothing to find.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from muster.constants import MICRO
from muster.environments.answers import after_thinking, completion_of, last_code_block
from muster.environments.base import Outcome, ScorerCall
from muster.environments.comparing import (
    MAX_INPUT_CHARS,
    MAX_OUTPUT_CHARS,
    measured,
    readable,
    same_lines,
    same_text,
    same_value,
)
from muster.environments.manifest import EnvironmentManifest, Score
from muster.environments.options import THINKING, Between, OneOf, Option, OptionsEnvironment, failed, only, text_of
from muster.environments.task import Task
from muster.errors import MalformedError

MAX_TESTS: Final = 256
COMPARISONS: Final = frozenset({"identical", "tolerance"})
"""What a function's test may say about how its output is compared, one of them at most."""


class Code(OptionsEnvironment):
    """Programming problems. Reference: `{"kind": …, "tests": [{"input": …, "output": …}, …]}`.

    `kind` "stdin": a program reads `input` and prints `output`, both texts. `kind` "function": `entry` names the
    function, `input` is the list of its arguments and `output` what it returns, in the JSON form of
    `muster/sandbox/guest/typed_json.py`. `setup` is code of the task's that runs first; `solution` is a program that
    passes, for checking the task. A function's test may also have `identical` (true): only a value of the output's own
    type is right, `True` and not `1`; or `tolerance`, in the place of the option.

    Option `runner` has one value, "component". It stays because hashes of published manifests cover it.

    Option `tuples`: "lists" compares them as lists, "distinct" as Python does, "outer" takes a returned tuple for a
    list and what is in it as Python does. Option `text`: "words" compares printed lines word by word, "lines" as a
    whole, or number by number where all of a line are numbers. Option `tolerance`: how far a number may be off,
    absolute or relative to the expected one; not with "lines". Option `partial`: score the fraction of tests passed
    instead of all or nothing; then every test runs.
    """

    NAME: ClassVar[str] = "code"
    VERSION: ClassVar[int] = 2
    PARTS: ClassVar[tuple[str, ...]] = ("passed",)
    FUNCTION: ClassVar[str] = "code"
    OPTIONS: ClassVar[Mapping[str, Option]] = {
        "partial": OneOf((False, True)),
        "runner": OneOf(("component",)),
        "text": OneOf(("words", "lines")),
        "thinking": THINKING,
        "tolerance": Between(0, 1, 0),
        "tuples": OneOf(("lists", "distinct", "outer")),
    }

    def __init__(self, manifest: EnvironmentManifest) -> None:
        super().__init__(manifest)
        options = self._options
        self._partial, self._tuples, self._lines = options["partial"], options["tuples"], options["text"]
        self._tolerance = float(options["tolerance"])

    def check(self, task: Task) -> None:
        """Raise MalformedError unless the tests can be run and compared, and doing nothing passes not all of them."""
        reference, name = task.reference, task.id[:80]
        only(reference, ("entry", "kind", "setup", "solution", "tests"), task.id)
        function = text_of(reference, "kind", task.id) == "function"
        if not function and reference["kind"] != "stdin":
            raise MalformedError(f"task {name!r} is of the kind {reference['kind'][:40]!r}, not function or stdin")
        if function and not all(part.isidentifier() for part in text_of(reference, "entry", task.id).split(".")):
            raise MalformedError(f"task {name!r} has an entry that names no function: {reference['entry'][:40]!r}")
        if any(not isinstance(reference.get(key, ""), str) for key in ("setup", "solution")):
            raise MalformedError(f"task {name!r} has a setup or solution that is no text")
        tests = reference.get("tests")
        if not isinstance(tests, list) or not 1 <= len(tests) <= MAX_TESTS:
            raise MalformedError(f"task {name!r} has no list of 1 to {MAX_TESTS} tests")
        for position, test in enumerate(tests):
            if not isinstance(test, dict) or set(test) - (COMPARISONS if function else set()) != {"input", "output"}:
                raise MalformedError(f"test {position} of task {name!r} is not an input and an output")
            if not _is_comparison(test):
                raise MalformedError(f"test {position} of task {name!r} compares in no way that there is")
            if function and not (isinstance(test["input"], list) and measured(test) and readable(test)):
                raise MalformedError(f"test {position} of task {name!r} has values that no function can be given")
            if not function and not all(
                isinstance(test[side], str) and len(test[side]) <= most
                for side, most in (("input", MAX_INPUT_CHARS), ("output", MAX_OUTPUT_CHARS))
            ):
                raise MalformedError(f"test {position} of task {name!r} is not two texts, or one is too long")
        if all(test["output"] is None if function else not test["output"].strip() for test in tests):
            raise MalformedError(f"task {name!r} expects nothing, so a program that does nothing passes")

    def score(self, task: Task, completion: str, call: ScorerCall) -> Score:
        """Run the last block of code on the tests, until one fails; return 1 when none does, else 0."""
        # 1. Find the program.
        text = after_thinking(completion, self._thinking)
        if text is None:
            return failed("the thinking did not end, or ended twice")
        code = last_code_block(text)
        if code is None or not code.strip():
            return failed("no block of Python")

        # 2. Run it once for each test. The expected output stays here.
        reference, fuel, passed, reason = task.reference, 0, 0, ""
        for position, test in enumerate(reference["tests"]):
            payload = {"code": code, "input": test["input"], "kind": reference["kind"]}
            payload |= {key: reference[key] for key in ("entry", "setup") if key in reference}
            outcome = call(payload)
            fuel += outcome.fuel
            if self._passes(outcome, test, reference["kind"]):
                passed += 1
                continue
            reason = reason or f"test {position}: {_reason(outcome)}"
            if not self._partial:
                break

        # 3. All or nothing, or the fraction rounded down.
        tests = len(reference["tests"])
        if passed == tests:
            return Score((MICRO,), fuel)
        return Score((MICRO * passed // tests if self._partial else 0,), fuel, reason)

    def reference_completion(self, task: Task) -> str | None:
        """Return the reference's solution as a block of code; None where it has none."""
        solution = task.reference.get("solution")
        return completion_of(f"```python\n{solution}\n```\n", self._thinking) if solution else None

    def _passes(self, outcome: Outcome, test: Mapping[str, Any], kind: str) -> bool:
        expected = test["output"]
        match kind, outcome.value:
            case "stdin", {"text": str(text)}:
                if self._lines == "lines":
                    return same_lines(text, expected)
                return same_text(text, expected, self._tolerance)
            case "function", {"value": value}:
                if self._tuples == "outer" and isinstance(value, dict) and isinstance(value.get("$tuple"), list):
                    value = value["$tuple"]
                if "identical" in test and type(value) is not type(expected):
                    return False
                tolerance = float(test.get("tolerance", self._tolerance))
                return measured(value) and same_value(value, expected, tolerance, self._tuples != "lists")
        return False


def _is_comparison(test: Mapping[str, Any]) -> bool:
    """Return whether what a test says about its comparison, if anything, can be followed."""
    match {key: test[key] for key in COMPARISONS & set(test)}:
        case {"identical": True, **rest} if not rest:
            return test["output"] is None or isinstance(test["output"], bool)
        case {"tolerance": int() | float() as tolerance, **rest} if not rest:
            return not isinstance(tolerance, bool) and 0 <= tolerance <= 1
        case found:
            return not found


def _reason(outcome: Outcome) -> str:
    match outcome.value:
        case {"error": str(error)}:
            return error[:100]
        case None:
            return f"stopped: {outcome.stopped}"[:100]
    return "another output"
