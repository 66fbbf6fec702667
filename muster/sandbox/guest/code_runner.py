"""Runs a stranger's program once, on one input, in an instance of its own. Holds no expected output.

Whatever the program does to this interpreter, it can only change what comes out of it, which is its answer anyway.
What it may import has to be imported here: the component has no files.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import importlib.util
import io
import os
import sys
import threading
import types
from typing import Any

import typed_json
from virtual import MAX_RECURSION, refuse

MAX_OUTPUT = 1 << 20
"""Bytes of standard output."""

MODULES = (
    "_strptime abc array ast base64 binascii bisect builtins calendar cmath collections collections.abc contextlib "
    "copy csv dataclasses datetime decimal difflib enum errno fractions functools gc graphlib hashlib heapq hmac html "
    "io inspect itertools json keyword locale logging math numbers operator os os.path pickle pprint queue random re "
    "reprlib secrets shutil signal statistics string struct sys textwrap threading time timeit tokenize traceback "
    "types typing unicodedata urllib.parse uuid warnings weakref zlib zoneinfo"
)
"""What programs of the published sets import."""

_SET_LIMIT = sys.setrecursionlimit
MISSING = []
for _name in MODULES.split():
    try:
        importlib.import_module(_name)
    except Exception as error:  # noqa: BLE001
        MISSING.append((_name, repr(error)))


def _caches_in_python() -> Any:
    """Return what functools makes caches of where it has no code in C: recursion through it takes no stack."""
    spec = importlib.util.find_spec("functools")
    module = importlib.util.module_from_spec(spec)
    in_c, sys.modules["_functools"] = sys.modules["_functools"], None
    spec.loader.exec_module(module)
    sys.modules["_functools"] = in_c
    return module._lru_cache_wrapper


CACHES_IN_PYTHON = _caches_in_python()


class _Output(io.BytesIO):
    """Standard output, up to `MAX_OUTPUT` bytes. It cannot be closed."""

    flooded = False

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > MAX_OUTPUT:
            self.flooded = True
            raise OSError("too much output")
        return super().write(data)

    def close(self) -> None:
        pass


def run(payload: dict[str, Any]) -> dict[str, Any]:
    """Run `code` on `input`: return {"value": …} of a function, {"text": …} of a program, or {"error": name}.

    payload: kind ("function" or "stdin"), code, input (a list of arguments as typed JSON, or a text), entry and setup.
    What recurses too deep is run once more with caches in Python, which are slower.
    """
    found = _run(payload)
    if found == {"error": "RecursionError"}:
        functools._lru_cache_wrapper = CACHES_IN_PYTHON
        return _run(payload, frames=2)  # a cache takes one of its own
    return found


def _run(payload: dict[str, Any], frames: int = 1) -> dict[str, Any]:
    """Run it once; `frames` of the interpreter count as one call of the program's."""
    # 1. What the program finds: its input, two outputs, and nothing that a component lacks.
    output, errors = _Output(), _Output()
    function = payload["kind"] == "function"
    _attach(b"" if function else payload["input"].encode("utf-8", "replace"), output, errors, frames)
    module = types.ModuleType("solution" if function else "__main__")
    sys.modules[module.__name__] = module

    # 2. Run it.
    try:
        for part in (payload.get("setup") or "", payload["code"]):
            exec(compile(part, "<solution>", "exec", dont_inherit=True), module.__dict__)
        if function:
            called = _find(module.__dict__, payload["entry"])
            value = called(*[typed_json.decode(one) for one in payload["input"]])
            return {"value": typed_json.encode(value)}
    except SystemExit as stop:
        if function or stop.code not in (None, 0):
            return {"error": "SystemExit"}
    except BaseException as error:  # noqa: BLE001
        return {"error": str(type(error).__name__)[:100]}

    # 3. Read what it printed.
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    if output.flooded:
        return {"error": "too much output"}
    return {"text": output.getvalue().decode("utf-8", "replace")}


def _find(names: dict[str, Any], entry: str) -> Any:
    """Return the callable of that name: a method of the class `Solution`, a function, or a method of another class."""
    first, *rest = entry.split(".")
    if not rest and hasattr(names.get("Solution"), first):  # a function of that name may be its helper
        return getattr(names["Solution"](), first)
    found = names[first]
    for name in rest:
        found = getattr(found() if isinstance(found, type) else found, name)
    return found


def _attach(text: bytes, output: _Output, errors: _Output, frames: int) -> None:
    """Put streams in the place of files, and stand-ins in the place of what a component cannot do."""
    sys.stdin = io.TextIOWrapper(io.BytesIO(text), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(output, encoding="utf-8", newline="\n", write_through=True)
    sys.stderr = io.TextIOWrapper(errors, encoding="utf-8", errors="backslashreplace", write_through=True)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.argv = ["solution.py"]
    stdin, open_file, descriptors = sys.stdin, builtins.open, {1: output, 2: errors}

    def open_stdin(file: Any, *options: Any, **keywords: Any) -> Any:
        if file in (0, "/dev/stdin"):
            return stdin.buffer if options and "b" in options[0] else stdin
        return open_file(file, *options, **keywords)

    def leave(code: Any = None) -> None:
        raise SystemExit(code)

    builtins.open = open_stdin
    builtins.exit = builtins.quit = leave  # pyright: ignore[reportAttributeAccessIssue]
    os.read = lambda descriptor, size: stdin.buffer.read(size)
    os.write = lambda descriptor, data: descriptors[descriptor].write(data) if descriptor in descriptors else refuse()
    os.fstat = lambda descriptor: os.stat_result((0o100444, 0, 0, 1, 0, 0, len(text), 0, 0, 0))
    sys.setrecursionlimit = lambda limit: _SET_LIMIT(min(frames * limit, MAX_RECURSION))
    sys.setrecursionlimit(1_000)

    # Programs start one thread for its larger stack: it runs at once, in this one.
    threading.stack_size = lambda size=0: 0
    threading.Thread.start = lambda self: self.run()
    threading.Thread.join = lambda self, timeout=None: None
    threading.Thread.is_alive = lambda self: False
