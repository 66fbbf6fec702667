"""Figures say what their targets speak of, and things measured in turn are measured in turn."""

from __future__ import annotations

import json

import pytest

from benchmarks.report import MISSED, alternate, document, figure, line, none, relative, show, slower


def test_less_is_better_by_the_ratio_of_medians() -> None:
    figure = slower("build", [2.0, 9.0, 1.0], peer=[10.0, 11.0, 12.0], target=5.0, unit="s")
    assert (figure["ours"], figure["ours_range"], figure["peer"], figure["peer_range"]) == (2, [1, 9], 11, [10, 12])
    assert (figure["ratio"], figure["holds"], figure["limit"]) == (5.5, True, None)
    assert not slower("build", [2.0], limit=[9.9], target=5.0, unit="s")["holds"]
    assert line(figure) == f"{'build':24} ours 2.0 s  peer 11.0  ratio 5.5 (target 5.0)"
    with pytest.raises(ValueError, match="nothing"):
        slower("build", [2.0], target=5.0, unit="s")


def test_a_target_is_reached_or_not_exceeded() -> None:
    assert figure("share", [1.0], ratio=1.0, target=1.0, unit="")["holds"]
    assert not figure("share", [0.99], ratio=0.99, target=1.0, unit="")["holds"]
    assert figure("memory", [127.0], ratio=127.0, target=128, unit="MiB", at_most=True)["holds"]
    assert not figure("memory", [129.0], ratio=129.0, target=128, unit="MiB", at_most=True)["holds"]


def test_the_ratio_is_the_median_of_ours_or_what_is_made_of_it() -> None:
    assert figure("rate", [3.0, 1.0, 8.0], target=3, unit="")["ratio"] == 3.0
    assert figure("rate", [3.0, 1.0, 8.0], ratio=max, target=3, unit="", at_most=True)["holds"] is False
    assert figure("rate", 2.0, target=3, unit="")["runs"] == 1


def test_ours_over_a_yardstick_is_by_medians() -> None:
    memory = relative("memory", [3.0, 9.0, 1.0], peer=[4.0, 4.0, 90.0], target=0.8, unit="MiB", at_most=True)
    assert (memory["ratio"], memory["holds"], memory["peer"]) == (0.75, True, 4.0)
    assert relative("wait", 9.0, limit=3.0, target=2.0, unit="s", at_most=True)["holds"] is False


def test_forbidden_findings_are_counted_and_listed() -> None:
    found = none("escapes", ["one", "other"], kinds=7)
    assert (found["ratio"], found["holds"], found["found"], found["kinds"]) == (2.0, False, ["one", "other"], 7)
    assert (none("rejected", 0, "rows")["holds"], "found" in none("rejected", 0, "rows")) == (True, False)


def test_numbers_keep_four_digits_and_what_is_before_the_point() -> None:
    made = figure("speed", [0.000123456, 123456.7, 3.0], ratio=1.23456, target=1, unit="s", tokens=7)
    assert (made["ours"], made["ours_range"], made["ratio"]) == (3.0, [0.0001235, 123457], 1.235)
    assert (made["runs"], made["tokens"]) == (3, 7)


def test_a_missed_target_is_the_program_s_status(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = (slower(name, [2.0] * 3, limit=[limit], target=5.0, unit="s") for name, limit in (("a", 11), ("b", 9)))
    assert show([good], as_json=False) == 0
    assert "ratio 5.5 (target 5.0)" in capsys.readouterr().out
    assert show([good, bad], as_json=True, about=["4 GiB"]) == MISSED
    read = json.loads(capsys.readouterr().out)
    assert (read["runs"], [one["name"] for one in read["figures"]]) == (3, ["a", "b"])
    assert read["machine"].endswith("4 GiB")


def test_runs_alternate() -> None:
    seen: list[str] = []

    def noted(name: str, seconds: float) -> float:
        seen.append(name)
        return seconds

    assert alternate(2, lambda: noted("ours", 1.0), lambda: noted("peer", 2.0)) == [[1, 1], [2, 2]]
    assert seen == ["ours", "peer"] * 2


def test_the_document_has_the_form_of_all_benchmarks() -> None:
    figure = slower("build", [2.0], peer=[11.0], target=5.0, unit="s")
    read = json.loads(document([figure], machine="here"))
    assert read.keys() == {"machine", "runs", "figures"}
    assert {"name", "ours", "peer", "limit", "ratio", "target", "holds", "unit"} <= read["figures"][0].keys()
