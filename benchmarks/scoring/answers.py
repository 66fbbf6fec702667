"""Pairs of a reference and an answer with the verdict that is right: what a reward must and must not be given for.

`answers.jsonl` has those that people found, one a line: environment, options, reference, answer, whether it is right.
`made` adds forms of numbers whose value is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from muster.environments.base import ScorerCall
from muster.environments.registry import default_manifest, make_environment
from muster.environments.task import ask

FILE: Final = Path(__file__).with_name("answers.jsonl")
CHOICES: Final = 4
NUMBERS: Final = (2, 7, 12, 48, 144, 1_000, 2_026, 31_415, 1_234_567)


class Pair(NamedTuple):
    """One reference and one answer."""

    environment: str
    options: dict[str, Any]
    gold: str
    answer: str
    right: bool


def found() -> list[Pair]:
    """Return the pairs of the file."""
    return [Pair(*json.loads(line)) for line in FILE.read_text(encoding="utf-8").splitlines()]


def made() -> Iterator[Pair]:
    """Yield whole numbers and fractions in forms that are right, and in others that are nearly so."""
    for n in NUMBERS:
        grouped = f"{n:,}"
        right = [f"{n}.0", grouped, grouped.replace(",", "{,}"), f"x={n}", f"\\frac{{{2 * n}}}{{2}}", f"{n + 1} - 1"]
        right += [f"\\left({n}\\right)", f"{n}^\\circ", f"\\${n}", f"{n}.", f" {n} ", f"${n}$", f"+{n}", f"{3 * n}/3"]
        wrong = [f"{n + 1}", f"{n}.5", f"-{n}", f"{n}x", f"{n}, {n + 1}", f"\\frac{{{n}}}{{3}}", f"{n}0"]
        wrong += [
            f"{n}.0000001",
            f"{n}\\text{{ or }}{n + 1}",
            f"{n}\\sqrt{{2}}",
            f"1/{n}",
            "nan",
            "\\infty",
            "None",
            "",
        ]
        for forms, verdict in ((right, True), (wrong, False)):
            yield from (Pair("math", {}, str(n), f"\\boxed{{{form}}}", verdict) for form in forms)
    for a, b in ((1, 3), (2, 7), (5, 4), (7, 2), (22, 9)):
        gold = f"\\frac{{{a}}}{{{b}}}"
        for form in (f"{a}/{b}", f"\\dfrac{{{a}}}{{{b}}}", f"\\tfrac{{{2 * a}}}{{{2 * b}}}", f"{3 * a}/{3 * b}"):
            yield Pair("math", {}, gold, f"\\boxed{{{form}}}", True)
        for form in (f"{b}/{a}", f"-{a}/{b}", f"{a / b + 1e-7:.12f}", f"{a}/{b}0", str(a)):
            yield Pair("math", {}, gold, f"\\boxed{{{form}}}", False)


def misjudged(pairs: Iterable[Pair], call: ScorerCall) -> list[Pair]:
    """Return the pairs that are scored otherwise than they should be."""
    wrong = []
    for pair in pairs:
        manifest = default_manifest(pair.environment, "0x" + "0" * 64)
        options = {**manifest.options, "thinking": "none", **pair.options}
        reference = {"answer": pair.gold} | ({"choices": CHOICES} if pair.environment == "choice" else {})
        task = replace(ask("?"), reference=reference)
        environment = make_environment(replace(manifest, options=options))
        if (environment.score(task, pair.answer, call).parts != (0,)) != pair.right:
            wrong.append(pair)
    return wrong
