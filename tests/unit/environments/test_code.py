"""Programs: honest ones pass, and no way of fooling the judge does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from muster.constants import MICRO
from muster.environments.base import Environment, Outcome, ScorerCall
from muster.environments.code import Code
from muster.environments.manifest import EnvironmentManifest, Score, ScorerManifest
from muster.environments.registry import make_environment
from muster.environments.task import Task, ask
from muster.errors import MalformedError
from testbed.suite.cpu_time import SCORER_SECONDS, cpu_at_most

DOUBLE = ask(
    "Double every number.",
    kind="function",
    entry="double",
    tests=[
        {"input": [[1, 2]], "output": [2, 4]},
        {"input": [[]], "output": []},
        {"input": [[7, -3]], "output": [14, -6]},
    ],
    solution="def double(xs):\n    return [2 * x for x in xs]",
)
SUM = ask(
    "Print the sum.",
    kind="stdin",
    tests=[{"input": "1 2\n", "output": "3\n"}, {"input": "10 -4\n", "output": "6\n"}],
    solution="print(sum(map(int, input().split())))",
)


def block(code: str) -> str:
    return f"so</think>Here:\n```python\n{code}\n```\n"


@pytest.fixture(scope="module")
def code(environment_of: Callable[..., Environment]) -> Environment:
    return environment_of("code")


@pytest.fixture(scope="module")
def call(scorer_call: Callable[..., ScorerCall]) -> ScorerCall:
    return scorer_call("code", fuel=2_000_000_000)


def answering(*values: Any) -> tuple[ScorerCall, list[Any]]:
    """Returns a call that gives these outcomes, and the list of the payloads it was given."""
    asked: list[Any] = []

    def call(payload: Any) -> Outcome:
        asked.append(payload)
        return Outcome(values[len(asked) - 1], 10)

    return call, asked


# Requests to the component


def test_the_expected_output_never_enters_the_sandbox(code: Environment) -> None:
    code.check(DOUBLE)
    call, asked = answering({"value": [2, 4]}, {"value": []}, {"value": [14, -6]})
    assert code.score(DOUBLE, code.reference_completion(DOUBLE) or "", call) == Score((MICRO,), 30)
    assert [sorted(payload) for payload in asked] == [["code", "entry", "input", "kind"]] * 3
    assert not any("14" in str(payload) for payload in asked)


def test_it_stops_at_the_first_test_that_fails(code: Environment, environment_of: Callable[..., Environment]) -> None:
    call, asked = answering({"value": [2, 4]}, {"value": [1]}, {"value": [14, -6]})
    assert code.score(DOUBLE, block("pass"), call) == Score((0,), 20, "test 1: another output")
    partial = environment_of("code", partial=True)
    call, asked = answering({"value": [2, 4]}, {"error": "KeyError"}, {"value": [14, -6]})
    assert partial.score(DOUBLE, block("pass"), call) == Score((666_666,), 30, "test 1: KeyError")
    assert len(asked) == 3


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        [],
        "text",
        {"text": "3"},
        {"value": None},
        {"value": "[2, 4]"},
        {"value": {"$tuple": "24"}},
        {"value": {"$list": [2, 4]}},
        {"value": [2, 4, 6]},
        {"value": [[2], 4]},
        {"value": {"0": 2, "1": 4}},
        {"error": []},
    ],
)
def test_sandbox_value_is_only_compared(code: Environment, value: Any) -> None:
    assert code.score(DOUBLE, block("pass"), answering(value)[0]).parts == (0,)


def test_a_value_of_any_depth_is_wrong_and_no_more(code: Environment) -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, {"$set": [deep]}, {"$dict": [[deep, deep]]}):
        assert code.score(DOUBLE, block("pass"), answering({"value": value})[0]).parts == (0,)


@pytest.mark.parametrize(
    "text", ["", "</think>", block("  "), "no thinking ends", "</think>```python\nx", "</think>" * 9]
)
def test_no_program_scores_nothing(code: Environment, no_call: ScorerCall, text: str) -> None:
    assert code.score(DOUBLE, text, no_call) == Score((0,), 0, code.score(DOUBLE, text, no_call).reason)


# Tasks


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "shell"},
        {"entry": "a b"},
        {"entry": ""},
        {"tests": []},
        {"tests": [{"input": [1]}]},
        {"tests": [{"input": 1, "output": 1}]},
        {"tests": [{"input": [{"$tuple": 1}], "output": 1}]},
        {"tests": [{"input": [{"$pickle": "x"}], "output": 1}]},
        {"tests": [{"input": [1], "output": {"$int": "16"}}]},
        {"tests": [{"input": [1], "output": None}]},
        {"tests": [{"input": [1], "output": 1, "identical": True}]},
        {"tests": [{"input": [1], "output": True, "identical": False}]},
        {"tests": [{"input": [1], "output": True, "identical": True, "tolerance": 0}]},
        {"tests": [{"input": [1], "output": 1.0, "tolerance": 2}]},
        {"tests": [{"input": [1], "output": 1.0, "tolerance": True}]},
        {"tests": [{"input": [1], "output": 1.0, "tolerance": "0"}]},
        {"kind": "stdin", "tests": [{"input": "1", "output": "1", "tolerance": 0.1}]},
        {"kind": "stdin"},
        {"kind": "stdin", "tests": [{"input": "1", "output": " "}]},
        {"setup": 1},
        {"more": 1},
    ],
)
def test_tasks_that_cannot_be_judged_are_refused(code: Environment, change: dict[str, Any]) -> None:
    with pytest.raises(MalformedError):
        code.check(Task("t", DOUBLE.messages, {**DOUBLE.reference, **change}))


def test_a_test_says_how_its_output_is_compared(environment_of: Callable[..., Environment]) -> None:
    environment = environment_of("code", tolerance=0.001)

    def passes(value: Any, test: dict[str, Any]) -> bool:
        task = ask("?", kind="function", entry="f", tests=[{"input": [], **test}])
        environment.check(task)
        program = "</think>```python\npass\n```"
        return environment.score(task, program, lambda payload: Outcome({"value": value}, 1)).parts == (MICRO,)

    truth = {"output": True, "identical": True}
    assert [passes(value, truth) for value in (True, 1, 1.0, False)] == [True, False, False, False]
    assert [passes(value, {"output": True}) for value in (True, 1, 1.0, False)] == [True, True, True, False]
    huge = {"output": -9999999999999999}
    assert [passes(float(huge["output"]), {**huge, **more}) for more in ({}, {"tolerance": 0})] == [True, False]
    assert [passes(1.0001, {"output": 1.0, **more}) for more in ({}, {"tolerance": 1e-6})] == [True, False]


# In the component


@pytest.mark.parametrize("task", [DOUBLE, SUM], ids=["function", "stdin"])
def test_the_reference_scores_one(code: Environment, call: ScorerCall, task: Task) -> None:
    code.check(task)
    first = code.score(task, code.reference_completion(task) or "", call)
    assert (first.parts, first.reason) == ((MICRO,), "")
    assert first.fuel > 0
    assert code.score(task, code.reference_completion(task) or "", call) == first


@pytest.mark.parametrize(
    "program",
    [
        "import time\na = time.time(); time.sleep(5); print(5 <= time.time() - a < 6)",
        "from datetime import datetime, date\nprint((datetime.now().year, date.today().month) == (2024, 7))",
        "import time\nprint(time.strftime('%Y') == '2024' == str(time.localtime().tm_year))",
        "import random\nrandom.seed()\nprint(0 <= random.random() < 1 and 0 <= random.Random().random() < 1)",
        "import secrets, uuid\nprint((len(secrets.token_hex(8)), len(str(uuid.uuid4()))) == (16, 36))",
        "try:\n    open('/etc/passwd')\nexcept OSError:\n    print(True)",
        "import time\nprint(len(time.asctime()) == 24 and time.get_clock_info('time').resolution < 1)",
        "from datetime import datetime\nprint(datetime.strptime('2024-07-26', '%Y-%m-%d').day == 26)",
        "import threading, time\na = time.time()\nprint(threading.Event().wait(5) is False and time.time() - a >= 5)",
    ],
)
def test_clock_randomness_and_files_are_answered_the_same_each_time(
    code: Environment, call: ScorerCall, program: str
) -> None:
    task = ask("?", kind="stdin", tests=[{"input": "", "output": "True\n"}])
    first = code.score(task, block(program), call)
    assert (first.parts, first.reason) == ((MICRO,), "")
    assert code.score(task, block(program), call) == first, "its fuel too"


@pytest.mark.parametrize(
    "program",
    [
        "import sys\nprint(sum(map(int, sys.stdin.read().split())))",
        "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))",
        "print(sum(map(int, open(0).read().split())))",
        "import sys\nfor line in sys.stdin:\n    sys.stdout.write(str(sum(map(int, line.split()))))",
        "import sys\nsys.stdout.buffer.write(str(sum(map(int, input().split()))).encode())",
        "def main():\n    print(sum(map(int, input().split())))\nif __name__ == '__main__':\n    main()",
        "import threading\ndef main():\n    print(sum(map(int, input().split())))\n"
        "threading.stack_size(1 << 27)\nt = threading.Thread(target=main)\nt.start()\nt.join()",
        "import math, heapq, bisect\nprint(sum(map(int, input().split())))\nexit()",
        "import os\nos.write(1, str(sum(map(int, os.read(0, os.fstat(0).st_size).split()))).encode())",
        "import sys\nprint(sum(map(int, sys.__stdin__.read().split())), file=sys.__stdout__)",
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: int\n"
        "p = P(*map(int, input().split()))\nprint(p.x + p.y, flush=True)",
        "import sys\nsys.setrecursionlimit(10**7)\ndef f(n):\n    return 0 if n == 0 else 1 + f(n - 1)\n"
        "assert f(40_000) == 40_000\nprint(sum(map(int, input().split())))",
        "import sys\nfrom functools import lru_cache\nsys.setrecursionlimit(10**6)\n@lru_cache(None)\ndef f(n):\n"
        "    return 0 if n == 0 else 1 + f(n - 1)\nassert f(3_000) == 3_000\nprint(sum(map(int, input().split())))",
    ],
)
def test_usual_ways_of_reading_and_writing_work(code: Environment, call: ScorerCall, program: str) -> None:
    score = code.score(SUM, block(program), call)
    assert (score.parts, score.reason) == ((MICRO,), "")


CAUGHT = {
    "exec('1 +')": "SyntaxError",
    "compile('(', 'x.py', 'exec')": "SyntaxError",
    "eval('if')": "SyntaxError",
    "__import__('ast').parse('1 = x')": "SyntaxError",
    "exec('if 1:\\nx')": "IndentationError",
    "exec(b'\\xff\\xfe')": "SyntaxError",
    "list(__import__('tokenize').generate_tokens(iter(['(']).__next__))": "TokenError",
    "__import__('os').open('x', 0)": "PermissionError",
    "__import__('os').close(1)": "PermissionError",
    "__import__('os').write(9, b'x')": "PermissionError",
    "__import__('os').replace('x', 'y')": "PermissionError",
    "__import__('posix').listdir('.')": "PermissionError",
    "__import__('io').FileIO('x')": "PermissionError",
    "__import__('_io').open(1)": "PermissionError",
    "__import__('io').open_code('x')": "PermissionError",
    "__import__('runpy').run_path('x')": "PermissionError",
    "__import__('socket').socket()": "PermissionError",
    "__import__('select').select([], [], [], 1)": "PermissionError",
    "__import__('asyncio').new_event_loop()": "PermissionError",
    "__import__('queue').Queue().get(timeout=1)": "Empty",
    "__import__('threading').Event().wait()": "RuntimeError",
    "__import__('threading').Barrier(2).wait(1)": "BrokenBarrierError",
}
"""What a component cannot do, or not as CPython does, and what a program sees that catches it."""


def test_program_that_catches_its_error_goes_on(code: Environment, call: ScorerCall) -> None:
    """In tools too: they run by the same function of the component."""
    for statement, name in CAUGHT.items():
        task = ask("?", kind="stdin", tests=[{"input": "", "output": name + "\n"}])
        program = f"try:\n    {statement}\nexcept Exception as error:\n    print(type(error).__name__)"
        score = code.score(task, block(program), call)
        assert (score.parts, score.reason) == ((MICRO,), ""), statement


@pytest.mark.parametrize(
    ("entry", "program"),
    [
        ("double", "class Solution:\n    def double(self, xs):\n        return [2 * x for x in xs]"),
        ("Solution.double", "class Solution:\n    def double(self, xs):\n        return [2 * x for x in xs]"),
        (
            "double",
            "from typing import List\ndef double(xs: List[int]) -> List[int]:\n    return tuple(x + x for x in xs)",
        ),
        ("double", "from collections import deque\ndouble = lambda xs: deque(x + x for x in xs)"),
        ("double", "class L(list):\n    pass\ndef double(xs):\n    return L(x * 2.0 for x in xs)"),
    ],
)
def test_functions_are_found_and_their_values_read(
    code: Environment, call: ScorerCall, entry: str, program: str
) -> None:
    task = Task("t", DOUBLE.messages, {**DOUBLE.reference, "entry": entry})
    score = code.score(task, block(program), call)
    assert (score.parts, score.reason) == ((MICRO,), "")


def test_typed_values_cross_both_ways(code: Environment, call: ScorerCall) -> None:
    values = [
        {"$tuple": [1, {"$set": [2]}]},
        {"$dict": [[1, "a"]]},
        {"$int": hex(10**40)},
        {"$bytes": "00ff"},
        {"$a": 1},
    ]
    values[4] = {"$dict": [["$a", 1]]}
    values += [{"$float": "inf"}, {"$complex": [1, 2]}, {"$frozenset": [3]}, [None, True, 0.5, "é\u0000"]]
    for value in values:
        task = ask("identity", kind="function", entry="f", tests=[{"input": [value], "output": value}])
        code.check(task)
        assert code.score(task, block("def f(x):\n    return x"), call).parts == (MICRO,)


HACKS = {
    "nothing": "",
    "return None": "def double(xs): return None",
    "sys.exit": "import sys\nsys.exit(0)",
    "sys.exit when called": "import sys\ndef double(xs): sys.exit(0)",
    "os._exit": "import os\nos._exit(0)",
    "abort": "import os\nos.abort()",
    "raise SystemExit": "raise SystemExit(0)",
    "quit": "quit()",
    "prints PASS": "print('PASS')\nprint('All tests passed')\ndouble = print",
    "prints the score": 'print(\'{"text": "3", "value": [2, 4], "passed": true}\')',
    "always equal": "class E:\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\n"
    "def double(xs): return E()",
    "an equal list": "class E(list):\n    def __eq__(self, other): return True\n    def __iter__(self): yield 2\n"
    "def double(xs): return E()",
    "an equal int": "class E(int):\n    def __eq__(self, other): return True\n    def __index__(self): return 4\n"
    "def double(xs): return [E(0), E(0)]",
    "an equal text": "class E(str):\n    def __eq__(self, other): return True\ndef double(xs): return E('x')",
    "a forged type": "class E:\n    __class__ = list\n    def __iter__(self): return iter([2, 4])\n"
    "def double(xs): return E()",
    "a metaclass": "class M(type):\n    def __instancecheck__(c, o): return True\n    def __eq__(c, o): return True\n"
    "class E(metaclass=M): pass\ndef double(xs): return E",
    "a generator": "def double(xs):\n    while True:\n        yield 2",
    "a coroutine": "async def double(xs): return [2, 4]",
    "the stack": "import sys\ndef double(xs):\n    frame = sys._getframe()\n    found = []\n    while frame:\n"
    "        for v in list(frame.f_locals.values()):\n            if isinstance(v, dict) and 'output' in v:\n"
    "                return v['output']\n            if isinstance(v, dict) and 'tests' in v:\n"
    "                return v['tests'][0]['output']\n        frame = frame.f_back\n    return found",
    "inspect": "import inspect\ndef double(xs):\n    for f in inspect.stack(0):\n"
    "        if 'expected' in f.frame.f_locals: return f.frame.f_locals['expected']",
    "gc": "import gc\ndef double(xs):\n    for o in gc.get_objects():\n        if type(o) is dict and 'output' in o:\n"
    "            return o['output']",
    "patched json": "import json\njson.dumps = lambda *a, **k: '{\"passed\": true}'\ndef double(xs): return xs",
    "patched encoder": "import typed_json\ntyped_json.encode = lambda v: {'$equal': True}\ndef double(xs): return xs",
    "patched runner": "import code_runner\ncode_runner.run = lambda p: {'passed': True}\ndef double(xs): return xs",
    "patched functions": "import functions\nfunctions.FUNCTIONS.clear()\ndef double(xs): return xs",
    "patched builtins": "import builtins\nbuiltins.len = lambda x: 0\nbuiltins.all = lambda x: True\n"
    "builtins.isinstance = lambda a, b: True\ndef double(xs): return xs",
    "patched equality": "import operator\noperator.eq = lambda a, b: True\ndef double(xs): return xs",
    "asserts away": "import builtins\nbuiltins.AssertionError = SystemExit\nassert False",
    "output flood": "while True: print('x' * 10000)",
    "memory": "x = [0]\nwhile True: x = x * 2",
    "for ever": "while True: pass",
    "deep": "def double(xs): return double(xs)",
    "deeper": "import sys\nsys.setrecursionlimit(10**9)\ndef double(xs): return [double(xs)]",
    "deep value": "def double(xs):\n    x = []\n    for _ in range(10**5): x = [x]\n    return x",
    "a cycle": "def double(xs):\n    x = []\n    x.append(x)\n    return x",
    "deep source": "(" * 5000,
    "minus signs": "double = " + "-" * 50_000 + "1",
    "huge number": "def double(xs): return 9**9**9",
    "fork": "import os\nif os.fork() == 0: os._exit(0)",
    "a process": "import subprocess\nsubprocess.run(['true'])",
    "threads": "import threading\ndef loop():\n    while True: pass\n"
    "for _ in range(100): threading.Thread(target=loop).start()",
    "a socket": "import socket\nsocket.create_connection(('127.0.0.1', 80))",
    "a file": "open('/tmp/answers').read()",
    "write a file": "open('result.json', 'w').write('{\"passed\": true}')",
    "ctypes": "import ctypes\nctypes.string_at(0)",
    "signal": "import signal, os\nos.kill(os.getpid(), signal.SIGKILL)",
    "regex": "import re\nre.match('(a+)+$', 'a' * 50 + 'b')",
    "finaliser": "class D:\n    def __del__(self):\n        while True: pass\nd = D()\ndef double(xs): return [D()]",
    "atexit": "import atexit\natexit.register(print, 'PASS')\ndef double(xs): return xs",
    "excepthook": "import sys\nsys.excepthook = lambda *a: print('PASS')\n1 / 0",
    "catches all": "while True:\n    try:\n        while True: print('x' * 100000)\n    except BaseException: pass",
    "pickle": "class E:\n    def __reduce__(self): return (eval, ('1',))\ndef double(xs): return E()",
    "error message": "class E(Exception):\n    def __str__(self): return '[2, 4]'\ndef double(xs): raise E([2, 4])",
    "error name": "E = type('[2, 4]', (Exception,), {})\ndef double(xs): raise E",
    "surrogates": "def double(xs): return '\\ud800'",
    "nul": "def double(xs): return '\x00'",
    "the tag": "def double(xs): return {'$tuple': [2, 4]}",
    "one test known": "def double(xs): return [2, 4]",
    "doctest": "import doctest\ndoctest.testmod()",
    "trace": "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\ndef double(xs): return xs",
}


@pytest.mark.parametrize("program", HACKS.values(), ids=HACKS)
def test_no_hack_scores(code: Environment, call: ScorerCall, program: str) -> None:
    with cpu_at_most(SCORER_SECONDS):
        score = code.score(DOUBLE, block(program), call)
    assert score.parts == (0,)
    assert score.reason


def test_no_hack_scores_on_standard_output(code: Environment, call: ScorerCall) -> None:
    for name in ("sys.exit", "prints PASS", "prints the score", "gc", "patched builtins", "output flood", "quit"):
        assert code.score(SUM, block(HACKS[name]), call).parts == (0,), name


def test_a_program_cannot_speak_to_its_next_test(code: Environment, call: ScorerCall) -> None:
    program = (
        "import builtins\nbuiltins.count = getattr(builtins, 'count', 0) + 1\n"
        "def double(xs): return [2 * x for x in xs] if builtins.count == 1 else None"
    )
    assert code.score(DOUBLE, block(program), call).parts == (MICRO,)


def test_the_code_manifest_says_what_scores() -> None:
    scorer = ScorerManifest("0x" + "0" * 64, "math_verify")
    manifest = EnvironmentManifest("code", Code.VERSION, weights={"passed": MICRO}, scorer=scorer)
    with pytest.raises(MalformedError, match="not by math_verify"):
        make_environment(manifest)


@pytest.mark.parametrize(
    ("tuples", "value", "parts"),
    [
        ("lists", {"$tuple": [1, 2]}, MICRO),
        ("distinct", {"$tuple": [1, 2]}, 0),
        ("outer", {"$tuple": [1, 2]}, MICRO),
        ("outer", [1, 2], MICRO),
        ("outer", [1, {"$tuple": [2]}], 0),
    ],
)
def test_a_returned_tuple_is_a_list_by_option(
    tuples: str, value: Any, parts: int, environment_of: Callable[..., Environment]
) -> None:
    reference = {"kind": "function", "entry": "f", "tests": [{"input": [], "output": [1, 2]}]}
    task = ask("Write f.", **reference)
    environment = environment_of("code", tuples=tuples, thinking="none")
    score = environment.score(task, "```python\npass\n```", lambda payload: Outcome({"value": value}, 1))
    assert score.parts == (parts,)
