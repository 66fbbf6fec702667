"""Records of an evaluation go on where a crash left them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from muster.authoring.evaluation.records import RecordFile
from muster.clients.evaluation import TaskResult, read_result
from muster.errors import ConfigError, MalformedError, StorageError

TEXT = "text \u2028 \U0001f600"
IDENTITY = {"benchmark": "gsm8k", "sampling": {"samples": 1}}


def test_records_go_on_where_a_crash_left_them(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    with RecordFile(path, IDENTITY) as records:
        assert records.count == 0
        for i in range(3):
            records.add({"id": f"x/{i}", "text": TEXT})
        expected, whole = records.sha256(), path.read_bytes()
    for cut in (1, 20, len(whole.splitlines(keepends=True)[-1])):
        path.write_bytes(whole[:-cut])
        with RecordFile(path, IDENTITY) as records:
            assert records.count == 2
            assert [one["id"] for one in records.records()] == ["x/0", "x/1"]
            records.add({"id": "x/2", "text": TEXT})
            assert records.sha256() == expected
            assert [one["text"] for one in records.records()] == [TEXT] * 3
    path.write_bytes(whole[:10])  # killed within the first line
    with RecordFile(path, IDENTITY) as records:
        assert records.count == 0


def test_records_of_another_evaluation_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    with RecordFile(path, {"benchmark": "another"}), pytest.raises(ConfigError, match="in use by another process"):
        RecordFile(path, IDENTITY)
    with RecordFile(path, IDENTITY) as records:  # nothing was recorded yet
        records.add({"id": "x/0"})
    with pytest.raises(ConfigError, match="another evaluation: sampling differ"):
        RecordFile(path, {**IDENTITY, "sampling": {"samples": 2}})
    with pytest.raises(ConfigError, match="another evaluation: prompt differ"):
        RecordFile(path, {**IDENTITY, "prompt": "other"})
    for junk in (b"[]\n", b'{"identity": 7}\n', b"junk\n"):
        path.write_bytes(junk)
        with pytest.raises(MalformedError, match="no file of records"):
            RecordFile(path, IDENTITY)
        assert path.read_bytes() == junk


def test_results_of_tasks_are_there_again_after_the_process_is_gone(tmp_path: Path) -> None:
    found = [TaskResult(0, 3, 8, 100), TaskResult(1, 0, 7, 90, unended=5)]
    with RecordFile(tmp_path / "out.answers", IDENTITY) as records:
        for one in found:
            records.add(asdict(one))
    with RecordFile(tmp_path / "out.answers", IDENTITY) as records:
        assert [read_result(one) for one in records.records()] == found


def test_a_folder_in_the_place_of_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        RecordFile(tmp_path, IDENTITY)
