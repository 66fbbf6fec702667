"""Show text from elsewhere on a terminal: nothing in it may steer the terminal or look like what it is not."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

BLANKS: Final = " \u1680\u3000"
"""Blanks that scripts write."""
_JOINING: Final = (
    "\u0600-\u0dff\u0f00-\u109f\u1780-\u18af\u1b00-\u1b7f\ua980-\ua9df\U00010d00-\U00010d3f\U0001e900-\U0001e95f"
)
"""Blocks of scripts whose letters join, from Arabic and Devanagari to Adlam."""
_EMOJI: Final = "\u2194-\u21aa\u2300-\u23ff\u25a0-\u27bf\u2b05-\u2b55\U0001f000-\U0001faff"
_JOINED: Final = re.compile(
    f"(?<=[{_JOINING}])(?<!\\d)[\u200c\u200d](?=[{_JOINING}])(?!\\d)"
    f"|(?:(?<=[{_EMOJI}])|(?<=[{_EMOJI}]\ufe0f))[\u200c\u200d](?=[{_EMOJI}])"
    "|(?<=\U0001f3f4)[\U000e0020-\U000e007e]{1,6}\U000e007f"
)
"""Joiners without which words of these scripts and joined emoji read otherwise, and the region of a black flag."""


def printable(text: str, kept: str = "") -> str:
    r"""Return text with every letter that is not printed as an escape: ANSI, line ends, turns of the writing direction.

    Joiners stay between letters of scripts that join and between emoji, and tags behind a flag: elsewhere they make
    names that look alike. `kept`: letters that stay as they are, such as "\n".
    """
    kept += BLANKS
    joined = {place for found in _JOINED.finditer(text) for place in range(*found.span())}
    return "".join(
        letter if letter in kept or place in joined or unicodedata.category(letter)[0] not in "CZ" else _escape(letter)
        for place, letter in enumerate(text)
    )


def _escape(letter: str) -> str:
    code = ord(letter)
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(letter)
    return short or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
