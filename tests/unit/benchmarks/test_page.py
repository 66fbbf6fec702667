"""The figures of benchmarks/page.py say what was measured."""

from __future__ import annotations

import pytest

from benchmarks.page import PageFindings, PageLoad, finding_figures, load_figures
from benchmarks.page_cost import Cost, cost_figure
from benchmarks.page_newcomer import Newcomer, newcomer_figures


def test_a_load_takes_until_its_charts_are_drawn() -> None:
    loads = [PageLoad(0.4, 0.7, 200 * 1024, 14), PageLoad(0.9, 0.6, 210 * 1024, 15), PageLoad(0.4, 1.4, 190 * 1024, 14)]
    seconds, sizes = load_figures(loads)
    assert (seconds["ours"], seconds["ours_range"]) == (0.9, [0.7, 1.4])
    assert (seconds["ratio"], seconds["holds"], seconds["runs"]) == (0.9, True, 3)
    assert (sizes["ours"], sizes["ratio"], sizes["holds"]) == (200.0, 210.0, True)
    slow, _ = load_figures([PageLoad(0.4, 1.1)])
    assert (slow["ratio"], slow["holds"]) == (1.1, False)


def test_one_finding_misses_the_target() -> None:
    pages = PageFindings(pages=126, axe=[], overflow=["/join: wide"], checks=["/: two elements named a"])
    axe, overflow, checks = finding_figures(pages)
    assert (axe["name"], axe["ratio"], axe["holds"], axe["pages"]) == ("axe", 0, True, 126)
    assert (overflow["name"], overflow["ratio"], overflow["holds"]) == ("overflow", 1, False)
    assert (checks["ratio"], checks["holds"], checks["found"]) == (1, False, ["/: two elements named a"])


def counted(p99: float, refused: int = 0) -> dict[str, float]:
    return {"p99": p99, "answers": 1000, "refused": refused}


@pytest.mark.parametrize(("watched", "holds"), [(0.011, True), (0.013, False)])
def test_the_cost_is_what_watchers_add(watched: float, holds: bool) -> None:
    cost = Cost(16, 500)
    cost.without = [counted(0.010), counted(0.010), counted(0.900)]
    cost.watched = [counted(watched), counted(watched, refused=2), counted(0.001)]
    cost.seen = [{"messages": 5000, "lost": 1}] * 3
    found = cost_figure("page_cost", cost)
    assert found["ratio"] == pytest.approx(watched / 0.010)
    assert found["holds"] is holds
    assert (found["refused"], found["lost"], found["messages"]) == (2, 3, [5000] * 3)


def test_a_newcomer_takes_from_its_command_to_its_first_accepted_work() -> None:
    made = [Newcomer("muster up http://x", 60.0 + more, {"ready": 1.0}, 0) for more in (12.0, 31.0, 18.0)]
    minutes, commands, edits = newcomer_figures(made, None)
    assert (minutes["name"], minutes["ratio"], minutes["holds"]) == ("join_minutes", 1.3, True)
    assert (commands["ratio"], edits["holds"]) == (1, True)
    assert newcomer_figures(made, 120.0)[1]["ratio"] == 3.3
