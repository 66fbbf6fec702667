"""Finds the answer in a completion: what follows the thinking, the last box, number or code block.

Every function is one pass over the text without regular expressions, returns None where there is nothing to find, and
is total: any text that Python can hold is allowed, lone surrogates included. Every answer has a bounded length. Letters
and digits are ASCII's: what else is a letter depends on the Unicode version of a machine's Python.
"""

from __future__ import annotations

from typing import Final, Literal

Thinking = Literal["tags", "none"]

THINK_END: Final = "</think>"
"""What ends the thinking. The prompt opens it, so a completion is `thinking</think>answer`."""

MAX_ANSWER_CHARS: Final = 256
"""Of an exact answer, a number. Changing this changes rewards."""
MAX_BOX_CHARS: Final = 4096
"""Of a boxed answer. Changing this changes rewards."""
MAX_TEXT_CHARS: Final = 1 << 18
"""Of a whole answer and of a code block: the most that is given to a component. Changing this changes rewards."""

_BOX: Final = "\\boxed{"
_SPACED_BOX: Final = "\\boxed {"
_FENCE: Final = "```"
_PYTHON: Final = ("python", "python3", "py")
_DIGITS: Final = "0123456789"
LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ALPHANUMERIC: Final = frozenset(_DIGITS + LETTERS + LETTERS.lower())


def after_thinking(completion: str, thinking: Thinking) -> str | None:
    """Return the part of the completion that answers.

    With "tags" it is what follows the only `</think>`; None when the thinking was never ended or was ended twice.
    With "none" it is the whole completion.
    """
    if thinking == "none":
        return completion
    _, mark, answer = completion.partition(THINK_END)
    return answer if mark and THINK_END not in answer else None


def split_thinking(completion: str, thinking: Thinking) -> tuple[str | None, str]:
    """Return a completion's thinking and what follows it, for people to read; nothing is left out but the mark.

    With "tags" all of it is thinking where that never ended. With "none" there is no thinking: it is None.
    """
    if thinking == "none":
        return None, completion
    thought, _, answer = completion.partition(THINK_END)
    return thought, answer


def exact_answer(completion: str, thinking: Thinking) -> str | None:
    """Return the answer without surrounding spaces and newlines; None when it is empty or over `MAX_ANSWER_CHARS`."""
    answer = after_thinking(completion, thinking)
    if answer is None or len(answer) > MAX_ANSWER_CHARS:
        return None
    return answer.strip(" \n") or None


def completion_of(answer: str, thinking: Thinking) -> str:
    """Return a completion that gives an answer without any thinking."""
    return f"{THINK_END}{answer}" if thinking == "tags" else answer


def last_box(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}`, trimmed.

    Its braces must balance, not counting those after a backslash. None when the last box is never closed, is empty or
    longer than `MAX_BOX_CHARS`: an earlier box is not tried.
    """
    start = max(text.rfind(box) + len(box) if box in text else -1 for box in (_BOX, _SPACED_BOX))
    if start < 0:
        return None
    depth, escaped = 1, False
    for position in range(start, min(len(text), start + MAX_BOX_CHARS + 1)):
        character = text[position]
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[start:position].strip() or None
    return None


def balanced(text: str) -> bool:
    """Return whether `last_box` finds exactly this text in a box."""
    return last_box(f"{_BOX}{text}}}") == text


def last_number(text: str) -> str | None:
    """Return the last number in ASCII digits: optional sign, thousands separated by commas, decimals after a point.

    Commas are removed, and a power of two whole numbers is worked out. An exponent of anything else, such as a unit, is
    no number of its own: the one before it counts. None where the last number is part of something else: a fraction,
    digits in another base or with an exponent behind an e, or commas that separate no thousands.
    """
    end = len(text)
    for _ in range(_MOST_EXPONENTS):
        # 1. The number ends at the last digit, and goes back over digits, commas and one point.
        end = max(text.rfind(digit, 0, end) for digit in _DIGITS) + 1
        near = text[max(0, end - _NEAR_CHARS) : end]
        start = _number_start(near)
        body = _plain_number(near[start:])
        if not end or body is None:
            return None

        # 2. What stands before it says whether it is a number of its own.
        before = near[:start]
        if before[-1:] in tuple("eE") and before[-2:-1] in tuple(_DIGITS):
            return None
        bare = before.rstrip(_LOOSE)
        signed = bare[-1:] in tuple(_MINUS)
        inner = bare[:-1].rstrip(_LOOSE) if signed else bare
        is_bold = (
            inner.endswith("**") and inner[-3:-2].strip() in ("", "*", "(", ":") and " " not in before[len(inner) :]
        )
        if inner.endswith(("^", "**")) and not is_bold:
            base = inner.rstrip("^*").rstrip(" {(")
            if base[-1:] in (*_DIGITS, ")", "}"):
                return _power(base, body) if base[-1] in _DIGITS and not signed else None
        elif inner.endswith("_"):
            if inner.rstrip(" _").endswith(tuple(_DIGITS)):
                return None
        elif inner.endswith("/") and inner.rstrip(" /").endswith((*_DIGITS, ")", "}")):
            return None
        else:
            return f"-{body}" if signed and _is_sign(bare[:-1]) else body
        end -= len(near) - len(inner)
    return None


_MOST_EXPONENTS: Final = 64
"""Numbers that are passed over, as those of a polynomial would be."""
_NEAR_CHARS: Final = MAX_ANSWER_CHARS + 64
"""What is looked at of the text before a number's end."""
_LOOSE: Final = " {$\\\u20ac\u00a3\u00a5"
"""What may stand between a number and its sign or exponent's mark."""
_MINUS: Final = "-\u2212\u2013\u2014"


def _number_start(text: str) -> int:
    """Return where the number begins that a text ends with."""
    start, point = len(text), False
    while start > 0:
        character = text[start - 1]
        if character == "." and not point:
            point = True
        elif character not in _DIGITS and character != ",":
            break
        start -= 1
    return start


def _plain_number(written: str) -> str | None:
    """Return digits and a point without commas; None where these separate no thousands, or there are too many."""
    whole, point, decimals = written.lstrip(",").partition(".")
    first, *groups = whole.split(",")
    grouped = 1 <= len(first) <= 3 and all(len(group) == 3 for group in groups)
    if len(written) > MAX_ANSWER_CHARS or (groups and not grouped) or "," in decimals:
        return None
    return f"{first or '0'}{''.join(groups)}{point}{decimals}"


def _is_sign(before: str) -> bool:
    """Return whether a minus behind this text is a sign, and subtracts from nothing."""
    if before[-1:] == " ":
        *_, last = before.rstrip(" ").rpartition(" ")
        return not (len(last) == 1 and last.isalpha()) and last[-1:] not in (*_DIGITS, *")]}")
    return before[-1:] not in (*_ALPHANUMERIC, *")]}")


def _power(base: str, exponent: str) -> str | None:
    """Return a power of the whole number that a text ends with; None of another, and of more than MAX_ANSWER_CHARS."""
    start = _number_start(base)
    before, digits = base[:start].rstrip(_LOOSE), _plain_number(base[start:])
    if digits is None or not (digits.isdigit() and exponent.isdigit()) or before.endswith(("^", "*", "/", "_")):
        return None
    if len(exponent) > 4 or len(digits) * int(exponent) > 2 * MAX_ANSWER_CHARS:
        return None
    sign = "-" if before[-1:] in tuple(_MINUS) and _is_sign(before[:-1]) else ""
    found = f"{sign}{int(digits) ** int(exponent)}"
    return found if len(found) <= MAX_ANSWER_CHARS else None


def last_code_block(text: str) -> str | None:
    """Return the last closed block between lines of three backticks that is Python's, or else that names no language.

    A line that begins with three backticks opens a block, also inside another one; a line of nothing else closes it.
    What a program prints is often shown in a block without a language, behind the program's.
    """
    found: str | None = None
    opened, kind, best = -1, 0, 0
    position = 0
    while position <= len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        if text.startswith(_FENCE, position) or text[position : position + 4].lstrip(" \t").startswith("`"):
            line = text[position:end].strip() if end - position <= MAX_ANSWER_CHARS else ""
            if line == _FENCE and opened >= 0:
                if kind >= max(best, 1) and position - opened <= MAX_TEXT_CHARS:
                    found, best = text[opened:position], kind
                opened = -1
            elif line.startswith(_FENCE) and "`" not in line[3:]:
                language = line[3:].strip().lower()
                opened, kind = end + 1, 2 if language in _PYTHON else 1 if not language else 0
        position = end + 1
    return found
