"""docs/verification.md is what the commands write: it knows every adversary and every limit there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.calibrate import STATISTICS, WORDS, plot_path
from benchmarks.page import DOCS, rewrite, small
from muster.profiles import PROFILES, Profile
from tests.adversaries.kinds import ADVERSARIES

PAGE = DOCS / "verification.md"


def test_every_adversary_is_told_of() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for adversary in ADVERSARIES:
        assert any(line.startswith(f"| {adversary.name} |") for line in lines), adversary.name


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_the_limits_on_the_page_are_those_in_force(profile: Profile) -> None:
    _, part = PAGE.read_text(encoding="utf-8").split(f"### {profile.name}\n", 1)
    for statistic in STATISTICS:
        line = next(line for line in part.splitlines() if line.startswith(f"| {WORDS[statistic]} |"))
        limit = getattr(profile, statistic)
        assert [cell.strip() for cell in line.split("|")][-4:-2] == [small(limit.reject), small(limit.accuse)]
    assert plot_path(profile).is_file()


def test_a_command_rewrites_its_own_part(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin one -->\nold\n<!-- end one -->\nafter\n")
    rewrite(page, "one", "new \\1")
    assert page.read_text() == "before\n<!-- begin one -->\n\nnew \\1\n\n<!-- end one -->\nafter\n"
    with pytest.raises(ValueError, match="no part 'two'"):
        rewrite(page, "two", "new")
