"""Show text from elsewhere on a terminal: nothing in it may steer the terminal or look like what it is not."""

from __future__ import annotations

import unicodedata


def printable(text: str, kept: str = "") -> str:
    r"""Return text with every letter that is not printed as an escape: ANSI, line ends, turns of the writing direction.

    `kept`: letters that stay as they are, such as "\n".
    """
    return "".join(letter if _is_plain(letter) or letter in kept else _escape(letter) for letter in text)


def _is_plain(letter: str) -> bool:
    return letter == " " or unicodedata.category(letter)[0] not in "CZ"


def _escape(letter: str) -> str:
    code = ord(letter)
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(letter)
    return short or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
