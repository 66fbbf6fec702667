"""The build of the component: packages lose their docstrings, and the files that they are links of do not."""

from __future__ import annotations

from pathlib import Path

from scripts.build_component import strip

SOURCE = '"""Of the module."""\n\n\ndef f():\n    "Of the function."\n    return "kept"\n'
STRIPPED = '""\n\n\ndef f():\n    ""\n    return "kept"\n'


def test_strip_empties_docstrings_and_leaves_linked_files_alone(tmp_path: Path) -> None:
    cached, installed = tmp_path / "cached.py", tmp_path / "installed.py"
    cached.write_text(SOURCE)
    installed.hardlink_to(cached)
    strip(installed)
    assert installed.read_text() == STRIPPED
    assert cached.read_text() == SOURCE
