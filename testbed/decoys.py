"""A user's folder in which files are called like our modules."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PACKAGES: Final = ("orchestrator", "worker", "muster")
FILES: Final = ("trainer.py", "validator.py", "adversary.py")
MARK: Final = "imported"


def place_decoys(folder: Path) -> None:
    """Write packages and files that leave a mark in the folder, and fail, when they are imported."""
    source = f"import pathlib\npathlib.Path({str(folder / MARK)!r}).write_text(__name__)\nraise SystemExit(99)\n"
    for name in PACKAGES:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(source)
    for name in FILES:
        (folder / name).write_text(source)


def was_imported(folder: Path) -> bool:
    return (folder / MARK).exists()
