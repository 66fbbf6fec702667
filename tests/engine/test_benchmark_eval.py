"""muster eval with a benchmark and a real engine: killed in the middle, it ends in the result of one that was not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.samples.models import SMALL, write_model
from testbed.samples.published_rows import GSM8K
from testbed.waiting import BOUND, wait_until

SAMPLES = 16
"""Of an item: a CPU decodes two items at a time, so that records come in four batches."""


@pytest.mark.slow
def test_an_evaluation_that_is_killed_goes_on_to_the_same_result(tmp_path: Path) -> None:
    write_model(tmp_path / "small", SMALL, seed=3)
    (tmp_path / "gsm8k.jsonl").write_text("".join(json.dumps(row) + "\n" for row in GSM8K))
    command = [sys.executable, "-m", "muster", "eval", "../small", "gsm8k", "--data", "../gsm8k.jsonl"]
    command += ["--samples", str(SAMPLES), "--max-tokens", "48", "--temperature", "1", "--out", "result.json", "--json"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()

    # 1. One that is left alone.
    subprocess.run(command, cwd=whole, check=True, timeout=BOUND, capture_output=True)

    # 2. One that is killed after its first records, and started again.
    process = subprocess.Popen(command, cwd=broken, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    records = broken / "result.items.jsonl"

    def has_begun() -> bool:
        assert process.poll() is None
        return records.exists() and records.read_bytes().count(b"\n") >= 2

    wait_until(has_begun, "an item is recorded")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (broken / "result.json").exists()
    known = records.read_bytes().count(b"\n") - 1
    assert 1 <= known < len(GSM8K)
    done = subprocess.run(command, cwd=broken, check=True, timeout=BOUND, capture_output=True, text=True)
    assert f"{known} of 8 tasks were answered before" in done.stderr

    # 3. Both end alike, to the last token.
    assert records.read_bytes() == (whole / "result.items.jsonl").read_bytes()
    assert (broken / "result.json").read_bytes() == (whole / "result.json").read_bytes()
    result = json.loads((whole / "result.json").read_text())
    texts = [one["text"] for line in records.read_text().splitlines()[1:] for one in json.loads(line)["samples"]]
    assert (result["items"], len(texts)) == (len(GSM8K), SAMPLES * len(GSM8K))
    assert len(set(texts)) > len(GSM8K)
