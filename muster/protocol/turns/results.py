"""What of a tool's output becomes tokens: cut by rule, valid Unicode, and unable to spell a token of the template."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from muster.protocol.prompts import UNKNOWN

MARKUP: Final = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Escaped also where a tokenizer has no token for it: in templates it stands around calls, results and thinking."""

_HALVES: Final = re.compile("[\ud800-\udfff]")


def cut(text: str, limit: int) -> str:
    """Return at most `limit` characters, the first and the last ones, and no half surrogate pairs.

    A notice stands where some were cut: an error's words are at the end.
    """
    if (more := len(text) - limit) > 0:
        half = limit // 2
        text = f"{text[: limit - half]}\n[{more} characters were cut here]\n{text[len(text) - half :]}"
    return _HALVES.sub(UNKNOWN, text)


def escape_pattern(tokens: Iterable[str]) -> re.Pattern[str]:
    """Return what finds these tokens and MARKUP in a text: the longest one at each place."""
    texts = sorted({*tokens, *MARKUP}, key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, texts)))


def escape(text: str, pattern: re.Pattern[str]) -> str:
    """Put a space behind the first character of each token that the text spells: `< |im_end|>` ends no turn."""
    return pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
