"""Scores by reasoning-gym's own `score_answer`.

Its package imports all of its datasets at once, and a few need what a component lacks. So each module is imported by
itself, and a dataset is there when its module imports and its default configuration can be made.

Some scorers evaluate the answer. The sandbox holds that in, but an answer that runs could also write its own score.
So they are given two evaluators that only read: Python literals, and arithmetic with the usual functions.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import importlib
import importlib.util
import keyword
import pkgutil
import re
import sys
import types
from typing import Any

import stand_ins
import sympy
import typed_json
from sympy.parsing.sympy_parser import parse_expr

PACKAGES = (
    "algebra algorithmic arc arithmetic code cognition games geometry graphs induction induction.acre logic probability"
)
NUMPY = ("countdown", "knights_knaves", "number_sorting", "survo")
"""Modules that need numpy for making tasks, and none or almost none of it for scoring."""

FUNCTIONS = frozenset(
    (
        *("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan"),
        *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "Si", "Ci", "Ei", "li"),
        *("exp", "log", "ln", "sqrt", "cbrt", "Abs", "abs", "factorial"),
        *("Rational", "Integer", "Float", "Integral"),
    )
)
"""What an answer's expression may call."""

_SAFE = re.compile(r"[0-9A-Za-z_+\-*/^()., \t\n!]*")
_CALL = re.compile(r"([A-Za-z_]\w*)\s*\(")
_NAME = re.compile(r"[A-Za-z_]\w*")


def score(payload: dict[str, Any]) -> dict[str, Any]:
    """Return {"score": float} of `answer` for `entry` of `dataset`, or {"error": name} where the scorer failed.

    payload: dataset, entry (typed JSON, as its dataset made it), answer, and `config`, the fields in which the
    dataset's configuration differs from the default.
    """
    dataset = DATASETS.get(payload["dataset"])
    if dataset is None:
        return {"error": f"no dataset {payload['dataset'][:80]}"}
    if payload.get("config"):
        dataset = copy.copy(dataset)
        dataset.config = dataclasses.replace(dataset.config, **typed_json.decode(payload["config"]))
    try:
        return {"score": float(dataset.score_answer(payload["answer"], typed_json.decode(payload["entry"])))}
    except Exception as error:  # noqa: BLE001
        # A scorer that fails on an answer scores it 0.
        return {"error": type(error).__name__}


def read_literal(text: str) -> Any:
    """Return the value of a Python literal: what `eval` returns for every honest answer."""
    return ast.literal_eval(text.strip())


def read_expression(text: str, *options: Any, **keywords: Any) -> Any:
    """Return sympy's expression of a text that is nothing but arithmetic, names and calls of `FUNCTIONS`.

    Raises ValueError otherwise. Without texts, attributes, brackets and other calls, nothing can be reached.
    """
    safe = _SAFE.fullmatch(text) and "__" not in text and not re.search(r"\.\s*[A-Za-z_]|\)\s*\(", text)
    if not safe or any(keyword.iskeyword(name) for name in _NAME.findall(text)):
        raise ValueError("not an expression")
    if any(name not in FUNCTIONS for name in _CALL.findall(text)):
        raise ValueError("a call of another function")
    return parse_expr(text, *options, **keywords)


class _Sympy(types.ModuleType):
    """sympy, with an evaluator that only reads."""

    parse_expr = staticmethod(read_expression)

    def __getattr__(self, name: str) -> Any:
        return getattr(sympy, name)


def _load() -> tuple[dict[str, Any], dict[str, str]]:
    """Import the datasets one by one. Returns an instance of each, and why the others are missing."""
    # 1. Packages whose own code does not run, so that one module that cannot be imported leaves the others.
    spec = importlib.util.find_spec("reasoning_gym")
    root = spec.submodule_search_locations[0]  # type: ignore[union-attr, index]
    missing: dict[str, str] = {}
    for name in ("", *PACKAGES.split()):
        package = types.ModuleType(f"reasoning_gym.{name}".rstrip("."))
        package.__path__ = [f"{root}/{name.replace('.', '/')}".rstrip("/")]
        sys.modules[package.__name__] = package

    # 2. Their modules. `coaching` first: it and the factory import each other.
    importlib.import_module("reasoning_gym.coaching")
    factory = importlib.import_module("reasoning_gym.factory")
    for name in PACKAGES.split():
        for module in pkgutil.walk_packages(sys.modules[f"reasoning_gym.{name}"].__path__, f"reasoning_gym.{name}."):
            numpy = stand_ins.numpy() if module.name.rpartition(".")[2] in NUMPY else contextlib.nullcontext()
            try:
                with numpy:
                    _guard(importlib.import_module(module.name))
            except Exception as error:  # noqa: BLE001
                missing[module.name] = repr(error)[:200]

    # 3. One instance of each: some read their word lists when they are made.
    datasets: dict[str, Any] = {}
    for name in sorted(factory.DATASETS):
        try:
            datasets[name] = factory.create_dataset(name, seed=0)
        except Exception as error:  # noqa: BLE001
            missing[name] = repr(error)[:200]
    return datasets, missing


def _guard(module: Any) -> None:
    """Give a dataset's module the evaluators that only read."""
    if module.__name__.rpartition(".")[2] in (
        "string_insertion",
        "spiral_matrix",
        "binary_matrix",
        "number_sorting",
        "n_queens",
    ):
        module.eval = read_literal
    for name, value in list(vars(module).items()):
        if value is sympy:
            setattr(module, name, _Sympy("sympy"))
        elif value is parse_expr:
            setattr(module, name, read_expression)


DATASETS, MISSING = _load()
