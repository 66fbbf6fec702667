"""The gas check: what counts as a regression, and that the committed snapshot is within the limits."""

from __future__ import annotations

import json

from benchmarks.gas import SNAPSHOT, TARGETS, regressions, snapshot


def test_three_percent_more_is_a_regression() -> None:
    before = snapshot({"commit": [1_000, 1_000, 1_010], "claim": [500]})
    assert before == {"claim": {"median": 500, "max": 500}, "commit": {"median": 1_000, "max": 1_010}}
    assert regressions(snapshot({"commit": [1_030, 1_030, 1_040], "claim": [1]}), before) == []
    (found,) = regressions(snapshot({"commit": [1_000, 1_000, 1_041], "claim": [500]}), before)
    assert found == "commit, max: 1,041 gas, 3.1% more than 1,010"
    found = regressions(snapshot({"commit": [1_000, 1_000, 1_010], "claim": [516]}), before)[0]
    assert found.startswith("claim, max: 516 gas")


def test_new_and_lost_operations_are_reported() -> None:
    now, before = snapshot({"claim": [1]}), snapshot({"commit": [1]})
    assert regressions(now, before) == ["claim is not in the snapshot", "commit is measured no more"]


def test_the_committed_snapshot_is_within_the_limits() -> None:
    kept = json.loads(SNAPSHOT.read_text())
    for target in TARGETS:
        value = kept[target.operation]["max" if target.worst else "median"]
        assert value <= max(target.limit, target.ceiling), target.name
