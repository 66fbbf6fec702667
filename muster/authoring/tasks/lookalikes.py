"""Make one text of those that look alike: with Latin letters for others of their look, without unseen characters.

NFKC joins widths and ligatures, but not these. The letters are those of Unicode's confusables (UTS 39)
in scripts that most fonts have.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_ALIKE: Final = {
    # Cyrillic
    **dict(
        zip("АВЕКМНОРСТУХЅІЈԚԜҮаеорсухѕіјԁԛԝһкмтвнґгпүӏ", "ABEKMHOPCTYXSIJQWYaeopcyxsijdqwhkmtbhrrnyl", strict=True)
    ),
    # Greek
    **dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧαβγεηικνορτυχωϲϳ", "ABEZHIKMNOPTYXabyenikvoptuxwcj", strict=True)),
    # Armenian, Cherokee, Lisu, and Latin letters of other alphabets
    **dict(zip("ՕՍՏօոսհցքզ", "OUSonuhgqq", strict=True)),
    **dict(zip("ᎪᏴᏟᎠᎬᏀᎻᎥᎫᏦᏞᎷᏢᎡᏚᎢᏙᎳᏃ", "ABCDEGHiJKLMPRSTVWZ", strict=True)),
    **dict(zip("ꓮꓐꓚꓓꓰꓝꓖꓧꓲꓙꓗꓡꓟꓠꓳꓑꓣꓢꓔꓴꓦꓪꓫꓬꓜ", "ABCDEFGHIJKLMNOPRSTUVWXYZ", strict=True)),
    **dict(zip("ɑɡıȷʏɩʋ", "agijyiv", strict=True)),
    # Marks
    **dict.fromkeys("‐‑‒–—―−﹣", "-"),
    **dict.fromkeys("‘’‚‛′ʼ`´", "'"),
    **dict.fromkeys("“”„‟″", '"'),
    **dict.fromkeys("⁄∕", "/"),
}

_UNSEEN: Final = (
    *(0x00AD, 0x034F, 0x061C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180E, 0x2800, 0x3164, 0xFEFF, 0xFFA0),
    *(*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), *range(0xFE00, 0xFE10)),
    *(*range(0xFFF9, 0xFFFC), *range(0x1D173, 0x1D17B), *range(0xE0000, 0xE0200)),
)
"""Characters of no width: joiners, directions, fillers, variation selectors, tags."""

_TABLE: Final = str.maketrans(_ALIKE) | dict.fromkeys(_UNSEEN)


def plain_letters(text: str) -> str:
    """Return a text in NFKC with Latin letters for those that look like them, and without what takes no width."""
    return unicodedata.normalize("NFKC", text).translate(_TABLE)
