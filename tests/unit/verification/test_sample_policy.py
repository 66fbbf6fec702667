"""The exact chances that looks leave to a cheater."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from muster.console import main
from muster.verification.sample_policy import detection, detection_over, false_rows
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


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MUSTER_VALIDATOR__NEWCOMER_COMMITMENTS", "2")
    monkeypatch.setattr("sys.argv", ["muster", "validator", "policy", "--json", "--commitments", "3", "--seen", "0.5"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    document = json.loads(capsys.readouterr().out)
    assert (document["rows"], document["sample_minimum"], document["newcomer_commitments"]) == (128, 16, 2)
    found = {(row["node"], row["false_rows"]): row for row in document["detection"]}
    assert len(found) == 9
    known, new = found["known", 1], found["new", 1]
    assert (known["rows_replayed"], known["caught_in_one"]) == (16, pytest.approx(1 / 16))
    assert known["caught_in_a_day"] == pytest.approx(1 - (15 / 16) ** 3)
    assert (new["rows_replayed"], new["caught_in_one"]) == (64, pytest.approx(1 / 4))
    assert new["caught_in_a_day"] == pytest.approx(1 - (3 / 4) ** 2 * (15 / 16)), "new only twice"


def test_the_command_prints_that_of_a_run_with_traps(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["muster", "validator", "policy", "--json", "--traps", "--commitments", "1"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    found = {row["node"]: row["rows_replayed"] for row in json.loads(capsys.readouterr().out)["detection"]}
    assert found == {"known": 12, "new": 24, "rejected before": 48}
