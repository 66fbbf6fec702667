"""Figures of an evaluation: pass@k, instructions one by one."""

from __future__ import annotations

from typing import Any

import pytest

from muster.authoring.benchmarks.catalog import BENCHMARKS
from muster.authoring.benchmarks.summary import summarize, units_of
from muster.constants import MICRO


def record(*scores: int, units: int = 1) -> dict[str, Any]:
    samples = [
        {
            "tokens": 10,
            "finished": i == 0,
            "scores": {"strict": score, "flexible": 0, "loose": MICRO},
            "reasons": {"flexible": "stopped: fuel"},
        }
        for i, score in enumerate(scores)
    ]
    return {"id": "x", "units": units, "samples": samples}


def test_pass_at_k_and_lengths() -> None:
    records = [
        record(MICRO, MICRO, 0, 0),
        record(0, MICRO, 0, 0),
        record(MICRO, 0, 0, 0),
    ]
    summary = summarize(BENCHMARKS["gsm8k"], records, 4, (1, 4))
    figures = {(one["rule"], one["measure"]): one["value"] for one in summary["figures"]}
    assert figures == {
        ("strict", "pass@1"): pytest.approx(4 / 12),
        ("strict", "pass@4"): 1.0,
        ("flexible", "pass@1"): 0.0,
        ("flexible", "pass@4"): 0.0,
    }
    assert (summary["items"], summary["mean_tokens"], summary["cut_off"]) == (3, 10.0, 0.75)
    assert summary["stopped"] == {"strict": 0, "flexible": 12}
    assert all(one["low"] <= one["value"] <= one["high"] for one in summary["figures"])


def test_instructions_are_counted_one_by_one() -> None:
    records = [record(MICRO // 3, units=3), record(MICRO, units=1), record(2 * MICRO // 3, units=3)]
    summary = summarize(BENCHMARKS["ifeval"], records, 1, (1,))
    figures = {(one["rule"], one["measure"]): one["value"] for one in summary["figures"]}
    assert figures[("strict", "pass@1")] == pytest.approx(1 / 3)
    assert figures[("strict", "units")] == pytest.approx(4 / 7)
    assert figures[("loose", "units")] == 1.0


def test_a_share_gives_its_count_back() -> None:
    for units in range(1, 17):
        assert [units_of(MICRO * count // units, units) for count in range(units + 1)] == list(range(units + 1))
