r"""Fixed completions of the rows in `published_rows`: right, wrong, malformed and on the border, to compare scorers on.

Their forms are in `completions.toml`. The same ones on every machine. A completion of a program also has the bare
program: HumanEval's own scorer takes that.
"""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from benchmarks.scoring.math_pairs import pairs

LEAST: Final = 200
"""Completions of each benchmark."""
FORMS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class FixedCompletion:
    """A completion of one item."""

    item: int
    text: str
    code: str = ""
    """The bare program, where the benchmark is of programs."""


def fixed_completions(name: str, rows: Sequence[dict[str, Any]], items: Sequence[Any]) -> list[FixedCompletion]:
    """Return at least LEAST completions of a benchmark's rows; `items` are what became of them, in order."""
    make = {
        "gsm8k": _numbers,
        "math500": _expressions,
        "aime24": _expressions,
        "gpqa_diamond": _letters,
        "ifeval": _texts,
        "humaneval": _functions,
        "mbpp": _functions,
        "livecodebench": _programs,
    }[name]
    found = list(dict.fromkeys(make(rows, items)))
    assert len(found) >= LEAST, (name, len(found))
    return found


def _numbers(rows: Sequence[dict[str, Any]], items: Sequence[Any]) -> Iterator[FixedCompletion]:
    for i, row in enumerate(rows):
        gold = row["answer"].rpartition("#### ")[2]
        for j, form in enumerate(FORMS["numbers"]):
            yield FixedCompletion(i, form.format(n=gold))
            if j % 2:
                yield FixedCompletion(i, form.format(n=gold.replace(",", "")))
            yield FixedCompletion(i, form.format(n=f"{gold}1"))


def _letters(rows: Sequence[dict[str, Any]], items: Sequence[Any]) -> Iterator[FixedCompletion]:
    for i, item in enumerate(items):
        for j, form in enumerate(FORMS["letters"]):
            for letter in ("ABCD"[j % 4], "ABCD"[(j + i) % 4]):
                choice = item.aids[letter]
                yield FixedCompletion(i, form.format(x=letter, y=letter.lower(), choice=choice, CHOICE=choice.upper()))


def _expressions(rows: Sequence[dict[str, Any]], items: Sequence[Any]) -> Iterator[FixedCompletion]:
    random = Random(1)
    others = [pair[1] for pair in pairs(60, seed=3)]
    for i, row in enumerate(rows):
        gold = str(row["answer"])
        for form in FORMS["expressions"]:
            yield FixedCompletion(i, form.format(a=gold))
            yield FixedCompletion(i, form.format(a=random.choice(others)))
        for form in FORMS["boxed"]:
            yield FixedCompletion(i, form.format(a=gold))


def _texts(rows: Sequence[dict[str, Any]], items: Sequence[Any]) -> Iterator[FixedCompletion]:
    for i in range(len(rows)):
        for text in FORMS["texts"]:
            yield FixedCompletion(i, text)


def _functions(rows: Sequence[dict[str, Any]], items: Sequence[Any]) -> Iterator[FixedCompletion]:
    fences = FORMS["program_fences"]
    for i, row in enumerate(rows):
        if "entry_point" in row:
            solution, entry = row["prompt"] + row["canonical_solution"], row["entry_point"]
            yield FixedCompletion(i, f"```python\n{row['canonical_solution']}\n```", row["canonical_solution"])
        else:
            solution = row["code"]
            entry = solution.rpartition("\ndef ")[2].removeprefix("def ").partition("(")[0]
        names = {"code": solution, "negated": solution.replace("return", "return not"), "entry": entry}
        for j, form in enumerate(FORMS["wrapped"] + FORMS["broken"]):
            code = _filled(form, names)
            yield FixedCompletion(i, _filled(fences[j % len(fences)], {"code": code}), "\n" + code)


def _programs(rows: Sequence[dict[str, Any]], items: Sequence[Any]) -> Iterator[FixedCompletion]:
    for i, row in enumerate(rows):
        name = row["question_id"]
        code, faults = FORMS["solutions"][name], FORMS["method_faults" if row["starter_code"] else "stdin_faults"]
        for fence in FORMS["fences"]:
            yield FixedCompletion(i, _filled(fence, {"code": code}))
        names = {"indented": textwrap.indent(code, "    "), "code": code, "entry": name}
        for fault in faults:
            yield FixedCompletion(i, f"```python\n{_filled(fault, names)}\n```")


def _filled(form: str, names: dict[str, str]) -> str:
    """Fill in a form's names in braces; other braces belong to the program."""
    for name, text in names.items():
        form = form.replace(f"{{{name}}}", text)
    return form
