"""What a reward for a puzzle of reasoning-gym asks besides a full score: answers that pay there without solving.

Each was found by trying. The published scorer takes them, and a trained model finds them within hours.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

NO_VALUES: Final = frozenset("nan inf infinity none null undefined true false n/a zoo oo".split())  # noqa: SIM905
"""Answers that are no value, in small letters and without sign and brackets."""

UNGUARDED: Final[Mapping[str, str]] = {
    "propositional_logic": "a premise that is joined with itself counts as a conclusion",
}
"""Datasets that no reward is given for, and why: nothing tells their cheap answers from work."""

_UNEVALUATED: Final = re.compile(r"\b(?:Integral|Derivative|Limit|Sum|Product|integrate|diff|limit|summation)\s*\(")
_NO_NUMBER: Final = re.compile(r"\b(?:nan|inf|infinity|zoo|oo)[ij]?\b", re.IGNORECASE)
_EXPONENT: Final = re.compile(r"\d\.?[eE][+-]?\d")
_NUMBER: Final = re.compile(r"\d+")
_NUMBERS_OF: Final = {"countdown": ("numbers", False), "puzzle24": ("cards", True)}
"""By dataset: the metadata that holds the numbers to use, and whether all of them must be used."""


def unsolved(dataset: str, entry: Mapping[str, Any], answer: str) -> str:
    """Return why an answer earns nothing whatever its score; "" where the score decides. One pass over the answer."""
    known, metadata = entry.get("answer"), entry.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    if answer == known:
        return ""
    bare = answer.strip().strip("()[]+-.$ ").lower()
    if bare in NO_VALUES and not (isinstance(known, str) and bare == known.strip("()[]+-.$ ").lower()):
        return "no value"
    if _UNEVALUATED.search(answer):
        return "it is not worked out"
    for pattern, why in ((_EXPONENT, "a number with an exponent"), (_NO_NUMBER, "what is no number")):
        if pattern.search(answer) and not (isinstance(known, str) and pattern.search(known)):
            return why
    if dataset in _NUMBERS_OF:
        name, all_of_them = _NUMBERS_OF[dataset]
        given, used = Counter(_whole_numbers(metadata.get(name))), Counter(map(int, _NUMBER.findall(answer[:4096])))
        if used - given or (all_of_them and given - used):
            return "other numbers than those that are given"
    if dataset == "coin_flip" and not _is_near(answer, known):  # its scorer pays for the first digits
        return "another probability"
    return ""


def _whole_numbers(value: Any) -> list[int]:
    return [one for one in value if type(one) is int] if isinstance(value, list) else []


def _is_near(answer: str, known: Any) -> bool:
    """Return whether a decimal or a fraction is within a thousandth of a decimal."""
    above, slash, below = answer[:64].partition("/")
    try:
        ours, theirs = float(known), float(above) / (float(below) if slash else 1.0)
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        return False
    return abs(ours - theirs) <= abs(ours) / 1000
