"""Records of an evaluation go on where a crash left them."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.authoring.benchmarks.journal import RecordFile
from muster.authoring.benchmarks.scoring import ScoredCompletion
from muster.constants import MICRO
from muster.errors import ConfigError, MalformedError

SCORED = ScoredCompletion("text \u2028 \U0001f600", 3, True, {"strict": MICRO}, {}, {})
IDENTITY = {"benchmark": "gsm8k", "sampling": {"samples": 1}}


def test_records_go_on_where_a_crash_left_them(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    with RecordFile(path, IDENTITY) as records:
        assert records.count == 0
        for i in range(3):
            records.add(f"x/{i}", 1, [SCORED])
        expected, whole = records.sha256(), path.read_bytes()
    for cut in (1, 20, len(whole.splitlines(keepends=True)[-1])):
        path.write_bytes(whole[:-cut])
        with RecordFile(path, IDENTITY) as records:
            assert records.count == 2
            assert [one["id"] for one in records.records()] == ["x/0", "x/1"]
            records.add("x/2", 1, [SCORED])
            assert records.sha256() == expected
            assert [one["samples"][0]["text"] for one in records.records()] == [SCORED.text] * 3
    path.write_bytes(whole[:10])  # killed within the first line
    with RecordFile(path, IDENTITY) as records:
        assert records.count == 0


def test_records_of_another_evaluation_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    with RecordFile(path, IDENTITY), pytest.raises(ConfigError, match="in use by another process"):
        RecordFile(path, IDENTITY)
    with pytest.raises(ConfigError, match="another evaluation: sampling differ"):
        RecordFile(path, {**IDENTITY, "sampling": {"samples": 2}})
    with pytest.raises(ConfigError, match="another evaluation: prompt differ"):
        RecordFile(path, {**IDENTITY, "prompt": "other"})
    for junk in (b"[]\n", b'{"identity": 7}\n', b"junk\n"):
        path.write_bytes(junk)
        with pytest.raises(MalformedError, match="no file of records"):
            RecordFile(path, IDENTITY)
        assert path.read_bytes() == junk
