"""Figures say what their targets speak of, and things measured in turn are measured in turn."""

from __future__ import annotations

import json

import pytest

from benchmarks.report import alternate, document, line, slower


def test_less_is_better_by_the_ratio_of_medians() -> None:
    figure = slower("build", [2.0, 9.0, 1.0], peer=[10.0, 11.0, 12.0], target=5.0, unit="s")
    assert (figure["ours"], figure["ours_range"], figure["peer"], figure["peer_range"]) == (2, [1, 9], 11, [10, 12])
    assert (figure["ratio"], figure["holds"], figure["limit"]) == (5.5, True, None)
    assert not slower("build", [2.0], limit=[9.9], target=5.0, unit="s")["holds"]
    assert line(figure) == f"{'build':24} ours 2.0 s  peer 11.0  ratio 5.5 (target 5.0)"
    with pytest.raises(ValueError, match="nothing"):
        slower("build", [2.0], target=5.0, unit="s")


def test_runs_alternate() -> None:
    seen: list[str] = []

    def noted(name: str, seconds: float) -> float:
        seen.append(name)
        return seconds

    assert alternate(2, lambda: noted("ours", 1.0), lambda: noted("peer", 2.0)) == [[1, 1], [2, 2]]
    assert seen == ["ours", "peer"] * 2


def test_the_document_has_the_form_of_all_benchmarks() -> None:
    figure = slower("build", [2.0], peer=[11.0], target=5.0, unit="s")
    read = json.loads(document([figure], runs=1, machine="here"))
    assert read.keys() == {"machine", "runs", "figures"}
    assert {"name", "ours", "peer", "limit", "ratio", "target", "holds", "unit"} <= read["figures"][0].keys()
