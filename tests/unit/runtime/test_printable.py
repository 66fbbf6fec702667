"""Strangers' text on a terminal."""

from __future__ import annotations

import pytest

from muster.runtime.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x9b", "\\x1b[2J\\x9b"),
        ("a\r\n\tb", "a\\r\\n\\tb"),
        ("\u202e\u2066\u200b\ufeff", "\\u202e\\u2066\\u200b\\ufeff"),
        ("\u2028\xa0\xad", "\\u2028\\xa0\\xad"),
        ("\U000e0041\ud800\ue000", "\\U000e0041\\ud800\\ue000"),
        ("é 漢字 🙂 a\\x1b", "é 漢字 🙂 a\\x1b"),
    ],
)
def test_unprintable_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_some_letters_may_stay() -> None:
    assert printable("a\nb\r", kept="\n") == "a\nb\\r"
