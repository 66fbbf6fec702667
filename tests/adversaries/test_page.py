"""docs/verification.md is what the commands write: it knows every adversary there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.page import DOCS, rewrite
from tests.adversaries.kinds import ADVERSARIES

PAGE = DOCS / "verification.md"


def test_every_adversary_is_told_of() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for adversary in ADVERSARIES:
        assert any(line.startswith(f"| {adversary.name} |") for line in lines), adversary.name


def test_a_command_rewrites_its_own_part(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin one -->\nold\n<!-- end one -->\nafter\n")
    rewrite(page, "one", "new \\1")
    assert page.read_text() == "before\n<!-- begin one -->\n\nnew \\1\n\n<!-- end one -->\nafter\n"
    with pytest.raises(ValueError, match="no part 'two'"):
        rewrite(page, "two", "new")
