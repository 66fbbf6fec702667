"""Compare what programs print and return with what is expected: a stranger's data, bounded before it is looked at."""

from __future__ import annotations

import operator
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from hashlib import sha256
from typing import Any, Final

MAX_OUTPUT_CHARS: Final = 1 << 20
"""Of one expected output; the component stops programs that print more bytes."""
MAX_INPUT_CHARS: Final = 7 << 20
"""Of one input: what a call takes holds twice as many, for each end of a line is two."""
MAX_DEPTH: Final = 64
MAX_NODES: Final = 1_000_000
"""Of a value that a function returns. Deeper or larger ones are wrong."""
MAX_NUMBER_CHARS: Final = 64


def same_lines(text: str, expected: str) -> bool:
    """Return whether two outputs have equal lines, or lines of numbers alone whose values are equal.

    White space at the ends of lines and of the whole text does not count. LiveCodeBench compares so.
    """
    ours, theirs = expected.strip().split("\n"), text.strip().split("\n")
    return len(ours) == len(theirs) and all(
        our_line.strip() == their_line.strip() or _same_numbers(our_line, their_line)
        for our_line, their_line in zip(ours, theirs, strict=True)
    )


def _same_numbers(expected: str, line: str) -> bool:
    ours, theirs = expected.split(), line.split()
    try:
        return len(ours) == len(theirs) and all(map(operator.eq, map(Decimal, ours), map(Decimal, theirs)))
    except InvalidOperation:
        return False


def same_text(text: str, expected: str, tolerance: float) -> bool:
    """Return whether two outputs have the same words in the same lines.

    White space at the ends of lines and of the whole text does not count, more than one space counts as one, and
    words that are decimal numbers are equal when their values are, or within the tolerance.
    """
    ours, theirs = expected.strip().split("\n"), text.strip().split("\n")
    if len(ours) != len(theirs):
        return False
    for our_line, their_line in zip(ours, theirs, strict=True):
        if our_line == their_line:
            continue
        our_words, their_words = our_line.split(), their_line.split()
        if len(our_words) != len(their_words):
            return False
        for our_word, their_word in zip(our_words, their_words, strict=True):
            if our_word != their_word and not _same_word(our_word, their_word, tolerance):
                return False
    return True


def _same_word(expected: str, word: str, tolerance: float) -> bool:
    ours, theirs = _decimal(expected), _decimal(word)
    if ours is None or theirs is None:
        return False
    return ours == theirs or (tolerance > 0 and _close(float(ours), float(theirs), tolerance))


def _decimal(word: str) -> Decimal | None:
    if len(word) > MAX_NUMBER_CHARS or not word.isascii() or "_" in word:
        return None
    try:
        number = Decimal(word)
    except InvalidOperation:
        return None
    return number if number.is_finite() and abs(number.adjusted()) <= 300 else None


def _close(expected: float, value: float, tolerance: float) -> bool:
    return abs(expected - value) <= tolerance * max(1.0, abs(expected))


def same_value(value: Any, expected: Any, tolerance: float, distinct: bool) -> bool:
    """Return whether a returned value equals the expected one, both as typed JSON within `MAX_DEPTH`.

    As in Python: numbers by value whatever their type (True is 1), mappings and sets without order. Two NaN are equal.
    """
    number, other = _number(expected), _number(value)
    if number is not None:
        return other is not None and (other == number or _near(number, other, tolerance))
    if expected is None or isinstance(expected, str):
        return type(value) is type(expected) and value == expected
    our_tag, our_body = _shape(expected, distinct)
    tag, body = _shape(value, distinct)
    if our_tag != tag:
        return False
    match tag:
        case "list" | "$tuple" | "$complex":
            return len(body) == len(our_body) and all(
                same_value(one, other, tolerance, distinct) for one, other in zip(body, our_body, strict=True)
            )
        case "dict":
            ours, theirs = _pairs(our_body, distinct), _pairs(body, distinct)
            return ours.keys() == theirs.keys() and all(
                same_value(theirs[key], ours[key], tolerance, distinct) for key in ours
            )
        case "$set" | "$frozenset":
            return {_key(one, distinct) for one in body} == {_key(one, distinct) for one in our_body}
    return body == our_body


def _number(value: Any) -> float | None:
    """Return a number, an integer of more than 63 bits included; None for what is no number."""
    if isinstance(value, dict) and len(value) == 1 and isinstance(text := value.get("$int"), str):
        with suppress(ValueError):
            return int(text, 16)
    return value if isinstance(value, bool | int | float) else None


def _near(expected: float, value: float, tolerance: float) -> bool:
    if tolerance <= 0 or (isinstance(expected, int) and isinstance(value, int)):
        return False
    try:
        return _close(float(expected), float(value), tolerance)
    except OverflowError:  # an integer beyond all floats
        return False


def _shape(value: Any, distinct: bool) -> tuple[str, Any]:
    """Return a value's tag and body: untagged lists and mappings have tags of their own."""
    if isinstance(value, list):
        return "list", value
    if not isinstance(value, dict):
        return "plain", value
    if len(value) != 1 or not next(iter(value)).startswith("$"):
        return "dict", value
    ((tag, body),) = value.items()
    if tag in ("$tuple", "$set", "$frozenset", "$complex", "$dict") and not isinstance(body, list):
        return "malformed", None
    match tag:
        case "$tuple" if not distinct:
            return "list", body
        case "$frozenset":
            return "$set", body
        case "$dict":
            whole = all(isinstance(pair, list) and len(pair) == 2 for pair in body)
            return ("dict", body) if whole else ("malformed", None)
    return tag, body


def _pairs(body: Any, distinct: bool) -> dict[bytes, Any]:
    """Return a mapping's values under the digests of their keys, of either of its forms."""
    if isinstance(body, dict):
        return {_key(key, distinct): value for key, value in body.items()}
    return {_key(key, distinct): value for key, value in body}


def _key(value: Any, distinct: bool) -> bytes:
    """Return one digest for all forms of a value: what Python holds equal as an element or key has the same one.

    A collection's digest is made from those of its members, so that each nested value is read once.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool | int):
        value = {"$int": hex(value)}
    tag, body = _shape(value, distinct)
    match tag:
        case "list" | "$tuple" | "$complex":
            members = [_key(one, distinct) for one in body]
        case "$set":
            members = sorted({_key(one, distinct) for one in body})
        case "dict":
            members = sorted(key + _key(one, distinct) for key, one in _pairs(body, distinct).items())
        case _:
            return sha256(repr((tag, body if isinstance(body, str | float) else None)).encode()).digest()
    return sha256(b"".join((tag.encode(), *members))).digest()


def measured(value: Any) -> bool:
    """Return whether a JSON value is within `MAX_DEPTH` and `MAX_NODES`, and has only numbers that a float can hold."""
    level, nodes = [value], 0
    for _ in range(2 * MAX_DEPTH):
        nodes += len(level)
        if nodes > MAX_NODES:
            return False
        below: list[Any] = []
        for one in level:
            if isinstance(one, list):
                below += one
            elif isinstance(one, dict):
                below += one.values()
            elif isinstance(one, int | float) and not abs(one) < 1 << 1023:
                return False
        if not below:
            return True
        level = below
    return False


def readable(value: Any) -> bool:
    """Return whether every tagged value in a task's test has a body that can be read back."""
    if isinstance(value, list):
        return all(readable(one) for one in value)
    if not isinstance(value, dict):
        return True
    tag, body = _shape(value, distinct=True)
    try:
        match tag:
            case "dict" if isinstance(body, list):
                return readable(body)
            case "dict":
                return all(readable(one) for one in body.values())
            case "$tuple" | "$set" | "$frozenset":
                return readable(body)
            case "$complex":
                return len(body) == 2 and readable(body)
            case "$int":
                return len(body) <= MAX_OUTPUT_CHARS and hex(int(body, 16)) == body
            case "$float":
                return body in ("nan", "inf", "-inf")
            case "$bytes":
                return bytes.fromhex(body).hex() == body
    except (TypeError, ValueError):
        return False
    return False
