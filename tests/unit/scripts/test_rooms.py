"""The plan of the rooms and the budget: both hold today, and a limit that is exceeded ends lint."""

from __future__ import annotations

import grimp
import pytest

from scripts import rooms


def graph_of(*imports: tuple[str, str]) -> grimp.ImportGraph:
    graph = grimp.ImportGraph()
    for importer, imported in imports:
        graph.add_import(importer=importer, imported=imported)
    return graph


@pytest.fixture(scope="module")
def figures() -> dict[str, rooms.Figure]:
    graph = grimp.build_graph(*rooms.PRODUCTION, exclude_type_checking_imports=True, cache_dir=None)
    return {figure.name: figure for figure in (*rooms.plan_figures(graph), *rooms.budget_figures(graph))}


def test_start_reaches_its_imports_and_their_packages() -> None:
    graph = graph_of(("worker.start", "muster.a"), ("muster.a", "muster.b.c"), ("muster.d", "muster.a"))
    for package in ("worker", "muster", "muster.b"):
        graph.add_module(package)
    assert rooms.reached(graph, {"worker.start"}) == {
        *("worker.start", "worker", "muster.a", "muster", "muster.b.c"),
        "muster.b",
    }


def test_modules_that_lead_back_to_themselves_are_one_circle() -> None:
    graph = graph_of(("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "a"), ("f", "g"), ("g", "f"))
    assert rooms.circles(graph) == {frozenset("abc"), frozenset("fg")}


def test_lines_belong_to_the_room_or_the_program() -> None:
    files = [
        *(("muster/errors.py", 5), ("muster/__main__.py", 1), ("muster/sandbox/guest/scorer.py", 7)),
        *(("muster/sandbox/server.py", 2), ("explorer/feed.py", 3), ("testbed/http.py", 4)),
    ]
    assert rooms.lines_by_package(files) == {"muster/*.py": 6, "muster/sandbox": 9, "explorer": 3, "testbed": 4}


def test_everything_is_within_its_limit(figures: dict[str, rooms.Figure]) -> None:
    assert [str(figure) for figure in figures.values() if not figure.holds] == []


def test_budget_limits_only_what_is_there(figures: dict[str, rooms.Figure]) -> None:
    """An entry of a room that has gone would let another of that name grow unseen."""
    assert rooms.BUDGET.keys() <= figures.keys()


def test_sums_are_those_of_the_packages(figures: dict[str, rooms.Figure]) -> None:
    support = figures["benchmarks"].value + figures["testbed"].value
    production = sum(figures[name].value for name in figures if name.split("/")[0] in rooms.PRODUCTION)
    assert (production, support) == (figures["sum: production"].value, figures["sum: benchmarks and testbed"].value)


@pytest.mark.parametrize("limit", ["MOST_UNUSED", "MOST_ROOMS", "MOST_PACKAGES", "MOST_IMPORTS"])
def test_each_limit_of_the_plan_is_held(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, limit, 0)
    assert rooms.main() == 1


@pytest.mark.parametrize("name", ["worker", "muster/chain", "options", "import circles"])
def test_each_limit_of_the_budget_is_held(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(rooms.BUDGET, name, -1)
    assert rooms.main() == 1
    assert "TOO MUCH" in next(line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{name}: "))


def test_a_package_without_a_limit_ends_lint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(rooms.BUDGET, "worker")
    assert rooms.main() == 1
    assert "no limit: write one into BUDGET" in capsys.readouterr().out
