"""Calls of `python` after one that ends its interpreter, at the default budgets, in two processes on two processors.

Each conversation begins with a call that is endless, exits, raises, is huge or is forbidden, and goes on with
`sum(range(10**5))` three times. One process makes it as a worker does, another checks it as a validator does, and one
of the two runs native code without AVX-512.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
from wasmtime import Config
from wasmtime.component import Component

from benchmarks import report
from muster.environments.tools.manifest import TurnsManifest
from muster.protocol.turns.conversation import Conversation, TurnRules, conversation_error, turn_rules
from muster.sandbox import runtime
from muster.sandbox.client import Sandbox
from muster.sandbox.component import compiled, local_component, unpack
from muster.sandbox.scorer import ScorerManifest
from testbed.samples.chat_templates import FAMILIES, family_tokenizer

FAMILY: Final = "Qwen2.5"
SUM: Final = "sum(range(10**5))"
ROOM: Final = 1 << 16
FIRST: Final = {
    "endless": (
        "while True: pass",
        "x = 0\nwhile True: x += {n}",
        "import itertools\nfor i in itertools.count({n}): pass",
        "import time\nwhile True: time.sleep({n})",
        "list(iter(lambda: {n}, None))",
        "def f():\n    while True: yield {n}\nsum(f())",
        "import re\nre.match('(a+)+$', 'a' * 40 + 'b' * {n})",
        "9 ** 9 ** {n} ** 2",
    ),
    "exiting": (
        "import sys\nsys.exit({n})",
        "exit()",
        "quit({n})",
        "raise SystemExit('{n}')",
        "import os\nos._exit({n})",
        "import os\nos.abort()",
        "import signal\nsignal.raise_signal(signal.SIGKILL)",
        "import sys\nsys.stdout.close()\nsys.exit({n})",
    ),
    "raising": (
        "{n} / 0",
        "[][{n}]",
        "raise KeyError({n})",
        "def",
        "undefined_{n}",
        "f = lambda k: f(k + {n})\nf(0)",
        "exec('{n} +')",
        "class E(Exception):\n    def __str__(self): raise ValueError({n})\nraise E",
    ),
    "huge": (
        "x = 'a' * ({n} * 10**9)",
        "x = []\nwhile True: x.append('a' * 10**6)",
        "print('a' * ({n} * 2 * 10**6))",
        "x = list(range({n} * 10**8))",
        "x = bytearray({n} * 10**8)\nlen(x)",
        "x = 2 ** ({n} * 10**7)\nx",
        "while True: print('a' * {n} * 10**4)",
        "x = [0]\nwhile True: x = x * 2",
    ),
    "forbidden": (
        "open('/etc/passwd')",
        "import os\nos.system('ls')",
        "import socket\nsocket.create_connection(('127.0.0.1', {n}))",
        "import subprocess\nsubprocess.run(['true'])",
        "import numpy",
        "import os\nos.close({n})",
        "import threading\nthreading.Event().wait()",
        "import sys\nsys.__stdin__.read()\nimport os\nos.write({n} + 5, b'a')",
    ),
}


def python_after(options: Any) -> list[report.Figure]:
    found = report.apart(work, options.conversations)
    about = {"conversations": found["conversations"], "by_kind": found["right"], "wrong": found["wrong"][:20]}
    share = sum(found["right"].values()) / found["conversations"]
    return [report.figure("python_after", share, target=1.0, unit="of conversations right and equal", **about)]


def work(conversations: int) -> dict[str, Any]:
    """Return how many conversations of each kind were right and checked as made, and what went wrong."""
    wrong: list[str] = []
    right = dict.fromkeys(FIRST, 0)
    with tempfile.TemporaryDirectory() as folder, Sandbox() as new, Sandbox(cache=without_avx512(Path(folder))) as old:
        rules = [rules_by(sandbox) for sandbox in (new, old)]
        for number in range(conversations):
            kind = list(FIRST)[number % len(FIRST)]
            code = Random(number).choice(FIRST[kind]).format(n=1 + number % 7)
            makes, checks = rules[:: 1 if number % 2 else -1]
            error = fault(makes, checks, code)
            right[kind] += not error
            wrong += [f"{number}: {code!r}: {error}"] if error else []
    return {"conversations": conversations, "right": right, "wrong": wrong}


def fault(makes: TurnRules, checks: TurnRules, code: str) -> str:
    """Return what is wrong with a conversation, empty if nothing is."""
    talk = Conversation(makes, [], ROOM)
    encode = makes.template.tokenizer
    for codes in ((code, SUM), (SUM,), (SUM,), ()):
        calls = [json.dumps({"name": "python", "arguments": {"code": one}}) for one in codes]
        text = "".join(f"<tool_call>\n{one}\n</tool_call>" for one in calls) or "Done."
        talk.add([*encode(text, add_special_tokens=False)["input_ids"], makes.template.end])
        talk.go_on()
    given = "".join(makes.template.decode(span) for span in talk.spans[1::2])
    if (sums := given.count("<tool_response>\n4999950000\n\n</tool_response>")) != 3:
        return f"{sums} sums of 3 are right: {given[:300]!r}"
    error, unsure = conversation_error(checks, np.array(talk.tokens), talk.ends.tolist(), talk.fuel, ROOM)
    return error or ("unsure" if unsure else "")


def rules_by(sandbox: Sandbox) -> TurnRules:
    tokenizer = family_tokenizer(FAMILY)
    stops = frozenset(int(tokenizer.convert_tokens_to_ids(text)) for text in FAMILIES[FAMILY].ends)
    manifest = TurnsManifest(("python",), sandbox=ScorerManifest(local_component().hash, "code"))
    return turn_rules(tokenizer, manifest, stops, thinks=False, sandbox=sandbox.call)


def without_avx512(folder: Path) -> Path:
    """Compile the component for a processor with SSE2 alone into a folder; return it."""
    folder.chmod(0o700)
    name = compiled(local_component()).name
    with plain_target():
        code = Component(runtime.make_engine(), unpack(local_component().path.read_bytes())).serialize()
    (folder / name).write_bytes(bytes(code))
    return folder


@contextmanager
def plain_target() -> Iterator[None]:
    """Let engines of this process compile for the plainest processor of this kind."""

    class Plain(Config):
        def __init__(self) -> None:
            super().__init__()
            self.target = "x86_64-unknown-linux-gnu"

    before, runtime.Config = runtime.Config, Plain
    try:
        yield
    finally:
        runtime.Config = before
