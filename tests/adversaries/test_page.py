"""docs/understand/verification.md is what the commands write: it knows every adversary and every limit there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.calibrate import WORDS, plot_path
from benchmarks.report import DOCS, rewrite, small
from muster.verification.profiles import PROFILES, STATISTICS, Profile
from testbed.adversaries.kinds import ADVERSARIES

PAGE = DOCS / "understand" / "verification.md"


def test_page_lists_every_adversary() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for adversary in ADVERSARIES:
        assert any(line.startswith(f"| {adversary.name} |") for line in lines), adversary.name


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_the_limits_in_force_are_those_measured_and_far_enough_out(profile: Profile) -> None:
    """Honest work is never rejected, and the limit that accuses is twice as far out as the worst of it."""
    _, part = PAGE.read_text(encoding="utf-8").split(f"### {profile.name}\n", 1)
    for statistic in STATISTICS:
        line = next(line for line in part.splitlines() if line.startswith(f"| {WORDS[statistic]} |"))
        *_, worst, rejects, accuses, _margin = (cell.strip() for cell in line.strip("|").split("|"))
        limit = getattr(profile, statistic)
        assert (rejects, accuses) == (small(limit.reject), small(limit.accuse))
        assert float(worst) < limit.reject < limit.accuse
        assert limit.accuse >= 2 * float(worst)
    assert plot_path(profile).is_file()


def test_a_command_rewrites_its_own_part(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin one -->\nold\n<!-- end one -->\nafter\n")
    rewrite(page, "one", "new \\1")
    assert page.read_text() == "before\n<!-- begin one -->\n\nnew \\1\n\n<!-- end one -->\nafter\n"
    with pytest.raises(ValueError, match="no part 'two'"):
        rewrite(page, "two", "new")
