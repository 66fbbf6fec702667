"""What the benchmark of the language scenario makes of the demos' summaries."""

from __future__ import annotations

from typing import Any

from benchmarks.demo import DemoRun, language_figures


def run(gain: float, half: float, minutes: float, *problems: str, seed: int = 0, **changes: Any) -> DemoRun:
    comparison = {"before": 0.1, "after": 0.1 + gain, "gain": gain, "low": gain - half, "high": gain + half}
    part = {"name": "sums", "tasks": 48, **comparison}
    summary = {
        "seed": seed,
        "comparison": comparison | {"tasks": 48, "samples": 16, "step": 12, "parts": [part]},
        "slashes": [{"node": "cheater", "kind": "sampling_mismatch"}],
        **changes,
    }
    cpu = {"worker": 90 * minutes, "trainer": 30 * minutes}
    return DemoRun(60 * minutes, cpu, [0.0, 9.0, 2.04], summary, list(problems))


def test_the_gain_is_the_least_lower_end_over_the_seeds() -> None:
    gain, minutes, convicted = language_figures([run(0.3, 0.05, 30.0), run(0.25, 0.0625, 40.0, seed=1)])
    assert (gain["name"], gain["ratio"], gain["target"], gain["holds"], gain["runs"]) == (
        "language_gain",
        0.1875,
        0.15,
        True,
        2,
    )
    assert (minutes["name"], minutes["ratio"], minutes["holds"]) == ("language_minutes", 40.0, True)
    assert (convicted["name"], convicted["ratio"], convicted["holds"]) == ("language_convicted", 1.0, True)
    assert gain["each"][1] == {  # pyright: ignore[reportIndexIssue]
        "seed": 1,
        "before": 0.1,
        "after": 0.35,
        "gain": 0.25,
        "low": 0.1875,
        "high": 0.3125,
        "tasks": 48,
        "samples": 16,
        "step": 12,
        "parts": [{"name": "sums", "before": 0.1, "after": 0.35, "gain": 0.25, "low": 0.1875, "high": 0.3125}],
        "minutes": 40.0,
        "processor_minutes": 80.0,
        "load": [0.0, 2.0],
        "convicted": ["cheater: sampling_mismatch"],
        "problems": [],
    }


def test_one_seed_that_falls_short_is_enough_to_miss() -> None:
    slashed = "worker-1 is honest and was slashed"
    gain, minutes, convicted = language_figures(
        [run(0.3, 0.05, 46.0), run(0.2, 0.06, 30.0, slashes=[]), run(0.3, 0.05, 30.0, slashed)]
    )
    assert (gain["ratio"], gain["holds"]) == (0.14, False)
    assert (minutes["ratio"], minutes["holds"]) == (46.0, False)
    assert (convicted["ratio"], convicted["holds"]) == (0.3333, False)
