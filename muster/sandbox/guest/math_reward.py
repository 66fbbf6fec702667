"""Whether an answer is worth a reward: stricter than math-verify where that can be gamed, kinder where it reads badly.

Numbers are compared exactly. What math-verify holds equal still counts only if it is no hedge, has the same unit and
base where both name one, and, of numbers, the same value to one part in 10¹²: math-verify rounds to six decimals.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

import math_verify  # pyright: ignore[reportMissingImports]
import sympy

MOST_DIGITS = 400
"""Of a number that is compared exactly."""
RELATIVE = sympy.Rational(1, 10**12)
HEDGE = re.compile(r"\bor\b|\bmaybe\b|\?|\bperhaps\b|\bapprox", re.IGNORECASE)
BASE = re.compile(r"\d\s*_\s*\{?(?:\\text\{)?\s*(\w+)")
SCALES = {"dozen": 12, "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
CHANGING = re.compile(rf"\b(?:{'|'.join(SCALES)}|squared|cubed|times|plus|minus|negative|over|divided|percent)\b")
"""Words that make another value of the number beside them."""
SCALED = re.compile(rf"(.+?)\s*(?:\\text\s*\{{\s*({'|'.join(SCALES)})\s*\}}|({'|'.join(SCALES)}))$")
PERCENT = re.compile(r"\\text\s*\{\s*percent\s*\}|\bpercent\b")
UNIT = re.compile(
    rf"(?<=[\d}}\s])(?!(?:\\text\s*\{{\s*)?{CHANGING.pattern})(?:\\(?:text|mathrm|rm|mbox)\s*\{{\s*([A-Za-z]{{1,12}})\s*\}}"
    r"|([A-Za-z]{3,12}|[ckm]?m|[kmc]?g|[mc]?[lL]|in|ft|yd|mi|lb|oz|hr?|s|Hz|[NJWVAKCF]))(?:\s*\^\s*\{?([23])\}?)?\s*$"
)
SPACES = re.compile(r"(?<!\\)\\[,;:! ]|\\(?:left|right|displaystyle|q?quad)(?![A-Za-z])|~")
GROUPED = re.compile(r"(?<![\d.])\d{1,3}(?:(?:,|\{,\}|\\,)\d{3})+(?![\d])")
DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)")
POWER = re.compile(r"(?:\\times|\\cdot|\*|×|·)\s*10\s*(?:\^|\*\*)\s*\{?\s*([+-]?\d{1,3})\s*\}?$")
REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\s*\{(\d{1,9})\}")
FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}$|([^/]*)/([^/]*)$")
MIXED = re.compile(
    r"([+-]?)(\d+)(?:\s+|\s*(?=\\[dt]?frac))(\d+\s*/\s*\d+|\\[dt]?frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\})$"
)
WORDS = re.compile(r"(?<!\\)\b(?!(?:sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|pi|arcsin|arccos|arctan)\b)[A-Za-z]{2,}")
STATED = re.compile(r".*(?:\bis\b|\bare\b|\bequals\b|:|=)", re.DOTALL | re.IGNORECASE)
SIGN = r"\s*(<=?|>=?|[≤≥]|\\[lg](?:eq?(?:slant)?|t)(?![A-Za-z]))\s*"
BOUNDS = re.compile(rf"\s*(?:([^<>≤≥]+?){SIGN})?([A-Za-df-z])(?:{SIGN}([^<>≤≥]+))?\s*")
OPEN = (None, "<", ">", r"\lt", r"\gt")
OR = re.compile(r",?\s*\\(?:text(?:rm)?|mathrm)\s*\{\s*,?\s*or\s*\}|\bor\b|\\(?:lor|vee)(?![A-Za-z])")
NAMED = re.compile(r"\s*(?:\\?[A-Za-z]+(?:_\{?\w+\}?)?|[A-Za-z]\(\w\))\s*=")
"""What may stand before an answer: the name of what was looked for."""


def equal(gold: str, answer: str, published: Callable[[str, str], bool], *, is_text: bool) -> bool:
    """Return whether an answer earns the reward. `published` is math-verify's verdict on a gold and an answer.

    is_text: whether the answer is a whole text, of which a part is what counts.
    """
    if is_text:
        answer = _stated(answer)
    gold, answer = intervals(clean(gold)), intervals(clean(answer))
    # 1. No hedges, no equation but of a name, and not another base or unit.
    is_other = "=" in answer and "=" not in gold and not NAMED.match(answer)
    if not answer or is_other or (HEDGE.search(answer) and not HEDGE.search(gold)):
        return False
    for pattern in (BASE, UNIT):
        ours, theirs = (_named(pattern, text) for text in (gold, answer))
        if theirs and (ours or pattern is BASE) and ours != theirs:
            return False
    # 2. Numbers exactly.
    bare = [PERCENT.sub("%", _without_unit(text)) for text in (gold, answer)]
    shares = [text.endswith("%") for text in bare]
    ours, theirs = (number(text.rstrip("%").rstrip("\\ ")) for text in bare)
    if ours is not None and theirs is not None:
        scale = [Fraction(1, 100) if share else 1 for share in shares]
        return ours * scale[0] == theirs * scale[1] or (shares[0] and not shares[1] and ours == theirs)
    if CHANGING.search(answer) and not CHANGING.search(gold):
        return False
    # 3. The rest by math-verify, whose numbers must be near.
    return (published(gold, answer) or published(*bare)) and _is_near(gold, answer)


def clean(text: str) -> str:
    """Return an expression without marks of emphasis, spaces of LaTeX, commas between thousands and a full stop."""
    text = text.strip()
    text = text.strip("*") if text.startswith("**") else text
    text = text.replace("−", "-").replace("–", "-").strip().strip("$").strip()
    text = GROUPED.sub(lambda found: re.sub(r"\D", "", found[0]), text)
    text = SPACES.sub(" ", text).strip()
    return text[:-1].rstrip() if text.endswith(".") else text


def intervals(text: str) -> str:
    """Return inequalities of one letter, with "or" between them, as a union of intervals; another text as it is."""
    found = [_interval(part) for part in OR.split(text)]
    names = {name for name, _ in found}
    return r"\cup".join(interval for _, interval in found) if len(names) == 1 and "" not in names else text


def _interval(text: str) -> tuple[str, str]:
    """Return the letter of an inequality, as x < 1 or 1 < x ≤ 2, and its interval; "" for another text."""
    found = BOUNDS.fullmatch(text)
    low, left, letter, right, high = found.groups() if found else [""] * 5
    falls = {sign.lstrip("\\")[0] in ">≥g" for sign in (left, right) if sign}
    if len(falls) != 1:
        return "", text
    if falls == {True}:
        low, left, right, high = high, right, left, low
    opening, closing = "(" if left in OPEN else "[", ")" if right in OPEN else "]"
    return letter, opening + (low or r"-\infty") + "," + (high or r"\infty") + closing


def number(text: str) -> Fraction | None:
    """Return the value of a decimal, a fraction or a mixed number, with a power of ten or a word such as million."""
    text = text.strip()
    if len(text) > MOST_DIGITS:
        return None
    if found := MIXED.fullmatch(text):
        part = number(found[3])
        return None if part is None else (Fraction(int(found[2])) + part) * (-1 if found[1] == "-" else 1)
    if found := POWER.search(text):
        left = number(text[: found.start()])
        return None if left is None else left * Fraction(10) ** int(found[1])
    if found := SCALED.fullmatch(text):
        left = number(found[1])
        return None if left is None else left * SCALES[found[2] or found[3]]
    sign, body = (-1, text[1:].lstrip()) if text.startswith("-") else (1, text)
    if DECIMAL.fullmatch(body.replace(" ", "")) and " " not in body:
        return sign * Fraction(body)
    if found := REPEATING.fullmatch(body):
        whole, first, again = found.groups()
        rest = Fraction(int(again), 10 ** len(again) - 1)
        return sign * (int(whole or 0) + (int(first or 0) + rest) / 10 ** len(first))
    if found := FRACTION.fullmatch(body):
        above, below = number(found[1] or found[3] or ""), number(found[2] or found[4] or "")
        return None if above is None or not below else sign * above / below
    return None


def _stated(text: str) -> str:
    """Return what a text says to be the answer; all of it where it is an expression by itself."""
    text = text.strip().strip("*").strip().lstrip("= ")
    if not WORDS.search(text):
        return text
    *_, last = [line for line in text.splitlines() if line.strip()] or [""]
    rest = STATED.sub("", last).strip(" *.")
    return rest if rest and not WORDS.search(_without_unit(rest)) else text


def _named(pattern: re.Pattern[str], text: str) -> str:
    """Return the base or unit that a text names, with its exponent; "" where it names none."""
    found = pattern.search(text)
    return "^".join(filter(None, found.groups())) if found else ""


def _without_unit(text: str) -> str:
    found = UNIT.search(text)
    return text[: found.start()].rstrip() if found and number(text[: found.start()]) is not None else text


def _is_near(gold: str, answer: str) -> bool:
    """Return whether two answers differ by rounding alone, as far as they are numbers."""
    ours, theirs = (math_verify.parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (gold, answer))
    pairs = [one for found in (ours, theirs) for one in found[:1]]
    if len(pairs) < 2 or not all(isinstance(one, sympy.Expr) and one.is_number for one in pairs):
        return True
    left, right = (one.evalf(40) for one in pairs)
    size = max(abs(left), abs(right))
    return bool(size == 0 or abs(left - right) <= RELATIVE * size)
