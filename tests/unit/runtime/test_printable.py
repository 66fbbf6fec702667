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


@pytest.mark.parametrize(
    "text",
    [
        "می\u200cروم",
        "क्\u200dष",
        "র\u200d\u09cdয শ්\u200dරී کتاب\u200cها",
        "東京\u3000大阪",
        "❤️\u200d🔥 👁️\u200d🗨️ 🏴\u200d☠️ 🧑🏿\u200d🤝\u200d🧑🏻 🐦\u200d⬛ ⛓️\u200d💥 🏳️\u200d⚧️",
        "👨\u200d👩\u200d👧 🧑🏽\u200d⚕️ 🏳️\u200d🌈 🙂\u200d↔️",
        "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    ],
)
def test_what_scripts_and_emoji_need_stays(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pay\u200dpal", "pay\\u200dpal"),
        ("\u200cم\u200c", "\\u200cم\\u200c"),
        ("a\u200cم", "a\\u200cم"),
        ("1\u200c2 ١\u200c٢ ∑\u200d∑", "1\\u200c2 ١\\u200c٢ ∑\\u200d∑"),
        ("م\u200d👧", "م\\u200d👧"),
        ("👩\u200d\u200d👧", "👩\\u200d\\u200d👧"),
        ("🏴" + "\U000e0061" * 9, "🏴" + "\\U000e0061" * 9),
        ("🏴\U000e0067\U000e0062!", "🏴\\U000e0067\\U000e0062!"),
    ],
)
def test_joiners_and_tags_elsewhere_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_some_letters_may_stay() -> None:
    assert printable("a\nb\r", kept="\n") == "a\nb\\r"
