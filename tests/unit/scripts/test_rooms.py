"""The plan of the rooms: it holds today, and a limit that is exceeded ends lint."""

from __future__ import annotations

import grimp
import pytest

from scripts import rooms


def test_start_reaches_its_imports_and_their_packages() -> None:
    graph = grimp.ImportGraph()
    for module in ("worker.start", "muster.a", "muster.b.c", "muster.d"):
        graph.add_module(module)
    for package in ("worker", "muster", "muster.b"):
        graph.add_module(package)
    graph.add_import(importer="worker.start", imported="muster.a")
    graph.add_import(importer="muster.a", imported="muster.b.c")
    graph.add_import(importer="muster.d", imported="muster.a")
    assert rooms.reached(graph, {"worker.start"}) == {
        *("worker.start", "worker", "muster.a", "muster", "muster.b.c"),
        "muster.b",
    }


@pytest.mark.parametrize("limit", ["MOST_UNUSED", "MOST_ROOMS", "MOST_PACKAGES", "MOST_IMPORTS"])
def test_each_limit_is_held(limit: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert rooms.main() == 0, capsys.readouterr().out
    monkeypatch.setattr(rooms, limit, 0)
    assert rooms.main() == 1
