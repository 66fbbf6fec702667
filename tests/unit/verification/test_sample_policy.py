"""The exact chances that looks leave to a cheater."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from muster.console import main
from muster.verification.sample_policy import detection, detection_over, false_rows, seen
from testbed.adversaries.pipeline import rows_needed


def test_detection_is_the_share_of_samples_that_show_a_lie() -> None:
    """Counted over every sample of 3 out of 8 rows, of which 2 lie."""
    samples = list(combinations(range(8), 3))
    assert detection(8, 2, 3) == pytest.approx(sum(min(s) < 2 for s in samples) / len(samples), abs=1e-15)
    half = Fraction(0)
    for sample in samples:
        half += 1 - Fraction(1, 2) ** sum(row < 2 for row in sample)
    assert detection(8, 2, 3, 0.5) == pytest.approx(float(half / len(samples)), abs=1e-15)


@pytest.mark.parametrize(
    ("positions", "lies", "sample", "per_row", "expected"),
    [
        (128, 128, 16, 1.0, 1.0),
        (128, 1, 16, 1.0, 16 / 128),
        (128, 13, 128, 1.0, 1.0),
        (128, 0, 16, 1.0, 0.0),
        (128, 13, 0, 1.0, 0.0),
        (128, 128, 16, 0.25, 1 - 0.75**16),
        (128, 13, 16, 1.0, 1 - math.comb(115, 16) / math.comb(128, 16)),
        (2, 1, 1, 0.5, 0.25),
    ],
)
def test_exact_values(positions: int, lies: int, sample: int, per_row: float, expected: float) -> None:
    assert detection(positions, lies, sample, per_row) == pytest.approx(expected, abs=1e-14)


def test_detection_agrees_with_drawing() -> None:
    random, tries = Random(3), 20_000
    seen = sum(any(row < 13 and random.random() < 0.6 for row in random.sample(range(128), 16)) for _ in range(tries))
    assert seen / tries == pytest.approx(detection(128, 13, 16, 0.6), abs=0.015)


def test_invalid_counts_are_refused() -> None:
    for lies, sample in ((129, 1), (1, 129), (-1, 1), (1, -1)):
        with pytest.raises(ValueError, match="among 128 rows"):
            detection(128, lies, sample)


def test_a_day_and_the_rows_that_suffice() -> None:
    assert detection_over([0.125] * 24) == pytest.approx(1 - 0.875**24)
    assert detection_over([0.5, 0.25]) == pytest.approx(0.625)
    assert detection_over([]) == 0
    assert [rows_needed(p) for p in (1.0, 0.99, 0.5, 0.1, 0.0)] == [1, 1, 7, 44, None]
    assert [false_rows(128, share) for share in (1, 0.1, 0.01, 0.0001)] == [128, 13, 1, 1]


def test_several_looks_see_what_their_different_rows_show() -> None:
    """Of 128 rows, twelve by each of two looks, four of them shared: 4 + 120 + 8 own ones that may coincide."""
    one, two = (seen(128, 1, shared=4, own=8, looks=looks) for looks in (1, 2))
    assert one == pytest.approx(12 / 128)
    assert two == pytest.approx(4 / 128 + 124 / 128 * (1 - (116 / 124) ** 2))
    assert seen(128, 1, shared=8, own=16, looks=4) == pytest.approx(8 / 128 + 120 / 128 * (1 - (104 / 120) ** 4))
    assert seen(128, 13, shared=4, own=8, looks=1) == pytest.approx(detection(128, 13, 12))
    assert seen(10, 10, shared=2, own=0, looks=5, per_row=0.5) == pytest.approx(0.75), "all see the same two rows"


def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    monkeypatch.setattr("sys.argv", ["muster", "validator", "policy", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    return capsys.readouterr().out


def test_the_command_prints_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    document = json.loads(printed(capsys, monkeypatch, "--json", "--commitments", "3", "--seen", "0.5"))
    assert (document["rows"], document["look_rows"], document["accepts"], document["shared_rows"]) == (128, 12, 2, 4)
    chances = {row["false_rows"]: row for row in document["chances"]}
    assert list(chances) == [1, 6, 13]
    assert chances[1]["one_look"] == pytest.approx(12 / 128 / 2)
    assert chances[13]["in_a_day"] == pytest.approx(1 - (1 - chances[13]["all_looks"]) ** 3)
    few = json.loads(printed(capsys, monkeypatch, "--json", "--rows", "8", "--accepts", "1"))
    assert (few["look_rows"], few["shared_rows"]) == (8, 1)
    assert [row["one_look"] for row in few["chances"]] == [1.0, 1.0, 1.0]


def test_the_command_says_what_is_seen_now_and_was_before(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = printed(capsys, monkeypatch).splitlines()
    assert [line.split() for line in lines] == [
        ["false", "rows", "one", "look", "all", "looks", "in", "a", "day", "before"],
        ["1", "9.38%", "15.22%", "98.10%", "47.11%"],
        ["6", "45.29%", "63.65%", "100.00%", "97.99%"],
        ["13", "74.01%", "89.58%", "100.00%", "99.98%"],
    ]
