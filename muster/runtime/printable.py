"""Show text from elsewhere on a terminal: nothing in it may steer the terminal or look like what it is not."""

from __future__ import annotations

import unicodedata
from typing import Final

BLANKS: Final = " \u1680\u3000"
"""Blanks that scripts write."""
JOINERS: Final = "\u200c\u200d"
"""Zero width non-joiner and joiner: without them Persian and Indic words and joined emoji read otherwise."""
SCRIPTS_THAT_JOIN: Final = (
    *("ARABIC", "SYRIAC", "NKO", "MONGOLIAN", "MANDAIC", "ADLAM", "HANIFI"),
    *("DEVANAGARI", "BENGALI", "GURMUKHI", "GUJARATI", "ORIYA", "TAMIL", "TELUGU", "KANNADA", "MALAYALAM", "SINHALA"),
    *("MYANMAR", "KHMER", "TIBETAN", "BALINESE", "JAVANESE", "THAANA"),
)
"""First words of the names of their letters."""
MARKS: Final = ("Mn", "Mc", "Sk")
"""Categories of what stands on a letter: vowel signs, viramas, variation selectors, tones of skin."""
FLAG: Final = "\U0001f3f4"
TAGS: Final = "".join(map(chr, range(0xE0020, 0xE0080)))
"""Behind a black flag they make it a region's."""
EMOJI_ARROWS: Final = "\u2194\u2195"
"""Emoji that Unicode calls mathematical."""


def printable(text: str, kept: str = "") -> str:
    r"""Return text with every letter that is not printed as an escape: ANSI, line ends, turns of the writing direction.

    Joiners stay between letters of scripts that join and between emoji, and tags behind a flag: elsewhere they make
    names that look alike. `kept`: letters that stay as they are, such as "\n".
    """
    return "".join(
        letter if _is_plain(letter) or letter in kept or _joins(text, place) else _escape(letter)
        for place, letter in enumerate(text)
    )


def _is_plain(letter: str) -> bool:
    return letter in BLANKS or unicodedata.category(letter)[0] not in "CZ"


def _joins(text: str, place: int) -> bool:
    """Return whether a letter that has no form of its own changes that of its neighbours."""
    if text[place] in TAGS:
        return text[max(0, place - 7) : place].rstrip(TAGS).endswith(FLAG)
    kinds = {_kind(_bare(text[max(0, place - 4) : place])), _kind(text[place + 1 : place + 2])}
    return text[place] in JOINERS and len(kinds) == 1 and "" not in kinds


def _bare(before: str) -> str:
    """Return the last letter of a text, without the marks on it."""
    return next((letter for letter in reversed(before) if unicodedata.category(letter) not in MARKS), "")


def _kind(letter: str) -> str:
    """Return the script of a letter that joins, or "emoji"; empty for others."""
    if letter and (unicodedata.category(letter) == "So" or letter in EMOJI_ARROWS):
        return "emoji"
    script = unicodedata.name(letter, "").partition(" ")[0] if letter else ""
    return script if script in SCRIPTS_THAT_JOIN and unicodedata.category(letter).startswith("L") else ""


def _escape(letter: str) -> str:
    code = ord(letter)
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(letter)
    return short or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
