"""Write settings files. The standard library's `tomllib` reads them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

COMMENT_WIDTH: Final = 118

_ESCAPED: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def to_toml(values: Mapping[str, object], comments: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a TOML file with these settings, by dotted key (section.key); keys without a section come first.

    comments: what stands above a key.
    """
    top: list[str] = []
    sections: dict[str, list[str]] = {}
    for key, value in values.items():
        section, dot, name = key.rpartition(".")
        lines = sections.setdefault(section, []) if dot else top
        if key in comments:
            lines += [f"# {line}" for line in textwrap.wrap(comments[key], COMMENT_WIDTH)]
        lines.append(f"{name} = {toml_value(value)}")
    blocks = ["\n".join(top), *(f"[{section}]\n" + "\n".join(lines) for section, lines in sections.items())]
    return "\n\n".join(block for block in blocks if block) + "\n"


def toml_value(value: object) -> str:
    """Return one value; None, which TOML lacks, as an empty string. Raises TypeError for what TOML cannot hold."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if value is None or isinstance(value, (str, Path)):
        text = "" if value is None else str(value)
        return f'"{"".join(map(_escaped, text))}"'
    raise TypeError(f"{type(value).__name__} has no form in TOML")


def _escaped(letter: str) -> str:
    """Return a letter as it may stand between quotes: TOML takes no control characters."""
    if letter in _ESCAPED:
        return _ESCAPED[letter]
    return f"\\u{ord(letter):04X}" if letter < " " or letter == "\x7f" else letter
