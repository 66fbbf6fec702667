"""Finds the answer in a completion: what follows the thinking, the last box, number, code block or letter.

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
"""Of an exact answer, a number, a letter. Changing this changes rewards."""
MAX_BOX_CHARS: Final = 4096
"""Of a boxed answer. Changing this changes rewards."""
MAX_TEXT_CHARS: Final = 1 << 18
"""Of a whole answer and of a code block: the most that is given to a component. Changing this changes rewards."""

_BOX: Final = "\\boxed{"
_FENCE: Final = "```"
_PYTHON: Final = ("", "python", "python3", "py")
_DIGITS: Final = "0123456789"
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ALPHANUMERIC: Final = frozenset(_DIGITS + _LETTERS + _LETTERS.lower())
_WORD: Final = _ALPHANUMERIC | {"_"}


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
    start = text.rfind(_BOX)
    if start < 0:
        return None
    start += len(_BOX)
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

    The commas are removed. A hyphen is a sign unless a letter, a digit or a closing bracket stands before it.
    """
    # 1. The number ends at the last digit of the text.
    end = max(text.rfind(digit) for digit in _DIGITS) + 1
    if end == 0:
        return None

    # 2. It goes back over digits, commas, and the one point that has digits after it.
    start, point = end, False
    while start > 0 and end - start <= MAX_ANSWER_CHARS:
        character = text[start - 1]
        if character == "." and not point:
            point = True
        elif character not in _DIGITS and character != ",":
            break
        start -= 1
    if end - start > MAX_ANSWER_CHARS:
        return None
    body = text[start:end].lstrip(",").replace(",", "")
    if body.startswith("."):
        body = f"0{body}"

    # 3. A sign counts where it is no subtraction.
    if start > 0 and text[start - 1] in "-\u2212":
        before = text[start - 2] if start > 1 else " "
        if before not in _ALPHANUMERIC and before not in ")]}":
            body = f"-{body}"
    return body


def last_code_block(text: str) -> str | None:
    """Return the last closed block between lines of three backticks that is Python's or names no language.

    A line that begins with three backticks opens a block, also inside another one; a line of nothing else closes it.
    """
    found: str | None = None
    opened, python = -1, False
    position = 0
    while position <= len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        if text.startswith(_FENCE, position) or text[position : position + 4].lstrip(" \t").startswith("`"):
            line = text[position:end].strip() if end - position <= MAX_ANSWER_CHARS else ""
            if line == _FENCE and opened >= 0:
                if python and position - opened <= MAX_TEXT_CHARS:
                    found = text[opened:position]
                opened = -1
            elif line.startswith(_FENCE) and "`" not in line[3:]:
                opened, python = end + 1, line[3:].strip().lower() in _PYTHON
        position = end + 1
    return found


def last_letter(text: str, choices: int) -> str | None:
    """Return the last capital letter that stands alone and is one of the first `choices` of the alphabet.

    Alone: neither a letter, a digit nor an underscore is next to it, nor an apostrophe after it. A letter in a box
    is taken first.
    """
    letters = _LETTERS[:choices]
    box = last_box(text)
    if box is not None and box.strip("().") in tuple(letters):
        return box.strip("().")
    for position in range(len(text) - 1, -1, -1):
        if text[position] in letters:
            before = text[position - 1] if position else " "
            after = text[position + 1] if position + 1 < len(text) else " "
            if before not in _WORD and after not in _WORD and after not in "'\u2019":
                return text[position]
    return None
