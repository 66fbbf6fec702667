"""Probes by their commands: the real engine's rows pass the replay, and rows of another model do not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from muster.console.node import engine_check
from muster.models.numerics import device_kind
from muster.rollouts.parquet import read_rollouts
from muster.verification.judging import judge, measurements
from muster.verification.measured import read_cell
from muster.verification.probes import EngineOptions, ProbeSpec, read_spec, write_document
from muster.verification.profiles import BF16, CPU_FP32, STATISTICS, Profile
from testbed.machine import Machine
from testbed.samples.models import DEMO, write_model
from testbed.samples.probes import small_spec
from testbed.waiting import BOUND


def run(module: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *map(str, paths)]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BOUND, check=False)


def test_replay_accepts_engine_rows(tmp_path: Path) -> None:
    write_model(tmp_path / "model", DEMO)
    spec, rows, report = tmp_path / "spec.json", tmp_path / "rows.parquet", tmp_path / "cell.npz"
    options = EngineOptions(prefix_caching=False, max_sequences=2, cache_bytes=64 << 20)
    wanted = small_spec(Path("model"), BF16, calls=(4, 2), engine=options)
    write_document(wanted, spec)

    done = run("worker.probe", spec, rows)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]
    made = read_rollouts(rows.read_bytes())
    assert [row.seed for row in made] == [request.seed for request in wanted.requests]

    done = run("validator.measure", spec, rows, report)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]
    found = measurements(read_cell(report), BF16)
    assert [judge([row], BF16) for row in found] == [None] * 6
    assert [row.sums.tokens for row in found] == [len(row.completion_tokens) for row in made]
    assert all(0 <= getattr(row, name) <= getattr(BF16, name).reject for row in found for name in STATISTICS)

    # The same rows under other weights: each is found, with what was measured against which limit.
    write_model(tmp_path / "model", DEMO, seed=2)
    assert run("validator.measure", spec, rows, report).returncode == 0
    findings = [judge([row], BF16) for row in measurements(read_cell(report), BF16)]
    assert all(finding is not None and finding.accuse for finding in findings)


def test_probe_names_unreadable_spec(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text("{}")
    done = run("worker.probe", tmp_path / "spec.json", tmp_path / "rows.parquet")
    assert done.returncode == 3
    assert "not a ProbeSpec in " in done.stderr
    assert not (tmp_path / "rows.parquet").exists()


def test_doctor_measures_engine_and_fails_when_rows_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path / "machine", "http://127.0.0.1:1")
    spec = small_spec(write_model(tmp_path / "model", DEMO), CPU_FP32, calls=(8,))
    words = ("doctor", "--engine", "--rows", 8)
    generate, kept = engine_check.run_probe, tmp_path / "kept"

    async def generate_once(module: str, *paths: Path) -> float:
        """The second time the rows of the first, replayed under another model."""
        if module == engine_check.WORKER and kept.exists():
            shutil.copytree(kept, paths[0].parent, dirs_exist_ok=True)
            return 0.0
        if kept.exists() and (kept / "other").exists():
            write_document(read_spec(paths[0]).model_copy(update={"model": kept / "other"}), paths[0])
        seconds = await generate(module, *paths)
        if module == engine_check.WORKER:
            shutil.copytree(paths[0].parent, kept)
        return seconds

    async def spec_of_run(*_: object) -> tuple[str, ProbeSpec, Profile]:
        return "a run", spec, CPU_FP32

    monkeypatch.setattr(engine_check, "run_spec", spec_of_run)
    monkeypatch.setattr(engine_check, "run_probe", generate_once)
    found = machine.json(*words)
    assert (found["rows"], found["rejected"], found["accused"], found["device"]) == (8, 0, 0, device_kind())
    assert found["worst_value"] <= found["rejected_above"]

    write_model(kept / "other", DEMO, seed=2)
    done = machine.type(*words, "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["rejected"] == json.loads(done.stdout)["accused"] == 8
    assert "error: validators would reject 8 of 8 rows of this engine" in done.stderr
    assert "next: do not join with this engine" in done.stderr


def test_doctor_without_a_run_says_what_measures_a_model(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine", "http://127.0.0.1:1")
    found = machine.json("doctor", "--engine", status=5)
    assert "muster model check MODEL" in found["hint"]
