"""Whether two mathematical answers are equal, by math-verify. Fuel bounds it, so its own time-outs are off."""

from __future__ import annotations

import importlib
import logging
import pkgutil
from typing import Any

import stand_ins  # noqa: F401: sympy looks for ctypes
import sympy
from math_verify import parse, verify

SKIPPED = ("tests", "benchmarks", "plotting", "conftest", "testing", "interactive", "galgebra")


def _import_all(package: Any) -> list[tuple[str, str]]:
    """Import every submodule, for nothing can be imported later; return those that cannot be imported at all.

    Without this, sympy answers wrongly and silently: it imports parts of itself when they are needed.
    """
    missing = []
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not any(part in SKIPPED for part in module.name.split(".")):
            try:
                importlib.import_module(module.name)
            except Exception as error:  # noqa: BLE001, PERF203: optional dependencies
                missing.append((module.name, repr(error)[:100]))
    return missing


MISSING = _import_all(sympy)
logging.disable(logging.CRITICAL)


def equal(payload: dict[str, Any]) -> dict[str, Any]:
    """Return {"equal": …} for `gold` and `answer`; each `*_format` is "latex" (put in a box) or "text" (as it is).

    Equal texts are equal, also where math-verify cannot read them. Otherwise both are parsed with its published
    defaults (LaTeX, then plain expressions, then the first match as a text) and verified, strictly, to six decimals.
    """
    gold, answer = payload["gold"].strip(), payload["answer"].strip()
    if gold and gold == answer:
        return {"equal": True}
    left = parse(_wrapped(gold, payload["gold_format"]), parsing_timeout=None)
    right = parse(_wrapped(answer, payload["answer_format"]), parsing_timeout=None)
    return {"equal": bool(verify(left, right, timeout_seconds=None))}


def _wrapped(text: str, form: str) -> str:
    return f"\\boxed{{{text}}}" if form == "latex" else text
