"""Score by an author's own source, `score(task, completion)`, under settings that differ from call to call on request.

The source is a stranger's and so is the completion. The first runs here, in an instance of its own; the second is a
text that nothing here executes: `exec`, `eval` and `compile` are missing, and so are the modules that lead to them.

Settings 0 are those that rewards are computed under. Others change what a pure function cannot see: where objects lie,
the clock, what chance gives, the hashes of texts and the order of sets. The component's own build decides those, so a
source that depends on one of them would score otherwise with another build.
"""

from __future__ import annotations

import ast
import builtins
import gc
import os
import random
import sys
import types
from typing import Any

import virtual

NAME = "<scorer>"

MODULES = (
    "abc array ast base64 binascii bisect calendar cmath collections collections.abc copy csv dataclasses datetime "
    "decimal difflib enum fractions functools graphlib hashlib heapq html io itertools json math numbers operator "
    "pprint random re statistics string struct textwrap typing unicodedata urllib.parse zlib"
)
"""What a source may import."""

MISSING = ("breakpoint", "compile", "eval", "exec", "exit", "input", "open", "quit")
"""Builtins that a source does not have."""

CLOCK_NS = 3_215_851_123_456_789
"""How far the clock is off, by settings: 37 days and some hours, minutes, seconds and parts of one."""

_import = builtins.__import__
_set, _frozenset, _hash, _id = set, frozenset, hash, id


def score(payload: dict[str, Any]) -> dict[str, Any]:
    """Return {"parts": what the source's `score` returned}, or {"error": what it raised and in which line}.

    payload: source, task, completion, and settings where they are not 0.
    """
    settings = payload.get("settings", 0)
    module = types.ModuleType("scorer")
    names = {name: value for name, value in vars(builtins).items() if name not in MISSING}
    names["__import__"] = _limited_import
    module.__dict__["__builtins__"] = names
    sys.modules[module.__name__] = module
    try:
        tree = ast.parse(payload["source"], NAME)
        kept = _unlike(settings, names) if settings else None
        if kept is not None:
            tree = ast.fix_missing_locations(_NamedSets().visit(tree))
        exec(compile(tree, NAME, "exec", dont_inherit=True), module.__dict__)
        parts = module.__dict__["score"](payload["task"], payload["completion"])
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the same on every machine
        return {"error": _message(error)}
    return {"parts": parts} if _plain(parts) else {"error": f"it returned {type(parts).__name__}, no dict of integers"}


def _plain(parts: Any) -> bool:
    """Return whether it is a dict of texts to integers, and nothing that only looks like one."""
    return type(parts) is dict and all(type(key) is str and type(value) is int for key, value in parts.items())


def _message(error: BaseException) -> str:
    """Return an exception's name, its text and the last line of the source that it passed."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, SyntaxError):
        line = error.lineno or 0
    try:
        text = str(error)[:200]
    except BaseException:  # noqa: BLE001 - an exception of the source's own
        text = ""
    return f"{type(error).__name__[:80]} in line {line}: {text}"


def _limited_import(name: str, globals_=None, locals_=None, fromlist=(), level: int = 0) -> Any:
    """Import for the source what is listed; what the listed modules import themselves is here already."""
    if level or name not in MODULES.split():
        raise ImportError(f"a scorer cannot import {name[:80]}")
    return _import(name, globals_, locals_, fromlist, level)


# --- Settings


def _unlike(settings: int, names: dict[str, Any]) -> list[Any]:
    """Change what a pure function cannot see. Returns what has to stay in memory meanwhile."""
    salt = settings * 0x9E3779B97F4A7C15 & 0x7FFFFFFFFFFFFFFF
    virtual.Clock.now += settings * CLOCK_NS
    random._inst.seed(salt)  # pyright: ignore[reportAttributeAccessIssue]
    for _ in range(settings):
        os.urandom(1)
    kept: list[Any] = [bytearray(4093 * settings), [object() for _ in range(997 * settings)]]
    gc.disable()

    def shifted_hash(value: Any) -> int:
        return _hash(value) if _is_fixed(value) else _hash(value) ^ salt

    names["id"] = lambda value: _id(value) ^ salt << 4
    names["hash"] = shifted_hash
    names["set"], names["frozenset"] = UnlikeSet, UnlikeFrozenSet
    return kept


def _is_fixed(value: Any) -> bool:
    """Return whether a value's hash is the same in every build: of numbers and what consists of them."""
    if type(value) is tuple:
        return all(map(_is_fixed, value))
    numeric = value is None or isinstance(value, int | float | complex)
    return numeric or type(value).__module__ in ("decimal", "fractions")


class _NamedSets(ast.NodeTransformer):
    """Write sets in braces as calls of `set`."""

    def visit_Set(self, node: ast.Set) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(_call(ast.List(node.elts, ast.Load())), node)

    def visit_SetComp(self, node: ast.SetComp) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(_call(ast.ListComp(node.elt, node.generators)), node)


def _call(values: ast.expr) -> ast.Call:
    return ast.Call(ast.Name("set", ast.Load()), [values], [])


class _Like(type):
    """Makes plain sets instances of the classes that stand for them."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__mro__[2])


class _OtherOrder:
    """A set that is gone through in another order."""

    def __iter__(self) -> Any:
        return iter(list(super().__iter__())[::-1])  # type: ignore[misc]

    def pop(self) -> Any:
        for value in self:
            self.remove(value)  # type: ignore[attr-defined]
            return value
        raise KeyError("pop from an empty set")


def _of_own_class(name: str) -> Any:
    def method(self: Any, *others: Any) -> Any:
        plain = _frozenset if isinstance(self, _frozenset) else _set
        result = getattr(plain, name)(self, *others)
        return result if result is NotImplemented else type(self)(result)

    return method


class UnlikeSet(_OtherOrder, set, metaclass=_Like):
    pass


class UnlikeFrozenSet(_OtherOrder, frozenset, metaclass=_Like):
    pop = None  # type: ignore[assignment]
    __hash__ = frozenset.__hash__


for _name in ("copy", "union", "intersection", "difference", "symmetric_difference"):
    for _class in (UnlikeSet, UnlikeFrozenSet):
        setattr(_class, _name, _of_own_class(_name))
for _name in ("__and__", "__or__", "__sub__", "__xor__", "__rand__", "__ror__", "__rsub__", "__rxor__"):
    for _class in (UnlikeSet, UnlikeFrozenSet):
        setattr(_class, _name, _of_own_class(_name))
