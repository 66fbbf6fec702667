"""Whether two mathematical answers are equal, by math-verify. Fuel bounds it, so its own time-outs are off.

`stand_ins` comes before sympy, which looks for ctypes.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
from typing import Any

import antlr4  # pyright: ignore[reportMissingImports]
import latex2sympy2_extended  # pyright: ignore[reportMissingImports]
import math_reward
import math_verify  # pyright: ignore[reportMissingImports]
import stand_ins  # noqa: F401
import sympy

SKIPPED = (
    "tests benchmarks plotting conftest testing interactive galgebra physics codegen crypto liealgebras categories "
    "diffgeom autolev fortran holonomic stats metric tasks"
)
"""Parts of packages that no answer leads to; they would fill a component, whose snapshot has 128 MiB at most."""


def _import_all(package: Any) -> list[tuple[str, str]]:
    """Import every submodule, for nothing can be imported later; return those that cannot be imported at all.

    Without this they answer wrongly and silently: sympy and antlr import parts of themselves when they need them.
    """
    missing = []
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not any(part in SKIPPED.split() for part in module.name.split(".")):
            try:
                importlib.import_module(module.name)
            except Exception as error:  # noqa: BLE001
                missing.append((module.name, repr(error)[:100]))
    return missing


MISSING = [one for package in (sympy, antlr4, latex2sympy2_extended, math_verify) for one in _import_all(package)]
logging.disable(logging.CRITICAL)


def equal(payload: dict[str, Any]) -> dict[str, Any]:
    """Return {"equal": …} for `gold` and `answer`; each `*_format` is "latex" (put in a box) or "text" (as it is).

    A "latex" answer whose text is the reference's is equal, also where math-verify cannot read it. A "text" has to hold
    an answer that math-verify finds. Both are parsed with its published defaults (LaTeX, then plain expressions, then
    the first match as a text) and verified, strictly, to six decimals. With `scoring` "reward" the rules are those of
    `math_reward`, which asks the same verdict.
    """
    gold, answer = payload["gold"].strip(), payload["answer"].strip()
    if gold and gold == answer and payload["answer_format"] == "latex":
        return {"equal": True}
    if payload.get("scoring") == "reward" and payload["gold_format"] == "latex":

        def bare(ours: str, theirs: str) -> bool:
            return _verified(f"\\boxed{{{ours}}}", f"\\boxed{{{theirs}}}")

        return {"equal": math_reward.equal(gold, answer, bare, is_text=payload["answer_format"] == "text")}
    return {"equal": _verified(_wrapped(gold, payload["gold_format"]), _wrapped(answer, payload["answer_format"]))}


def _verified(gold: str, answer: str) -> bool:
    left, right = (math_verify.parse(text, parsing_timeout=None) for text in (gold, answer))
    return bool(math_verify.verify(left, right, timeout_seconds=None))


def _wrapped(text: str, form: str) -> str:
    return f"\\boxed{{{text}}}" if form == "latex" else text


WARM_UP = (
    *(("\\frac{1}{2}", "0.5"), ("x^2+2x+1", "(x+1)^2"), ("x^2-7x+12", "(x-4)(x-9)"), ("2\\sqrt{5}", "\\sqrt{11}")),
    *(("\\{1,2\\}", "\\{2,5,1\\}"), ("(1,2)", "(1, 3)"), ("[0,1)", "(-\\infty,3]\\cup[4,\\infty)"), ("50\\%", "1/2")),
    *(
        ("x=3", "y=2x+1"),
        ("\\pi r^2", "\\frac{\\pi}{3}"),
        ("\\sqrt{8}", "\\frac{\\sqrt{3}}{2}"),
        ("-\\frac{3}{4}", "-0.7"),
    ),
    *(
        ("1,000", "10^{3}"),
        ("3+4i", "e^{2}"),
        ("\\log_2 8", "5!"),
        ("90^\\circ", "\\text{Monday}"),
        ("7/9", "2 \\cdot 3"),
    ),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}1\\\\3\\end{pmatrix}"),
)
"""Answers of the usual shapes, and others that they are compared with."""


def _warm_up() -> None:
    """Fill the caches of regular expressions, of the parser and of sympy: each call begins with what is here."""
    for gold, other in WARM_UP:
        for form in ("latex", "text"):
            for answer in (other, "\\sin(x)"):
                equal({"gold": gold, "answer": answer, "gold_format": form, "answer_format": form})


_warm_up()
