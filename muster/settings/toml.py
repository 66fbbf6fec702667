"""Write settings files. The standard library's `tomllib` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def to_toml(values: Mapping[str, object]) -> str:
    """Return a TOML file with these settings, by dotted key (section.key); keys without a section come first."""
    top = [f"{key} = {toml_value(value)}" for key, value in values.items() if "." not in key]
    sections: dict[str, list[str]] = {}
    for key, value in values.items():
        section, dot, name = key.partition(".")
        if dot:
            sections.setdefault(section, []).append(f"{name} = {toml_value(value)}")
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
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    raise TypeError(f"{type(value).__name__} has no form in TOML")
