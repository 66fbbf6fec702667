"""A trainer's metrics: a line for each report, and what goes to Prometheus and Weights & Biases."""

from __future__ import annotations

import gc
import json
import os
import struct
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import structlog

from muster.errors import ConfigError
from muster.protocol.messages import StepReport
from muster.runtime import telemetry
from muster.settings.schema import TrainerSettings
from testbed.waiting import BOUND
from trainer.metrics import Metrics


def report(step: int, **metrics: float | None) -> StepReport:
    return StepReport(run=1, step=step, metrics=metrics, stages={"update": 2.5})


def written(folder: Path, *reports: StepReport) -> Path:
    metrics = Metrics(TrainerSettings(state_dir=folder), 1)
    for one in reports:
        metrics.record(one)
    return metrics.path


def test_prometheus_has_the_newest_step(tmp_path: Path) -> None:
    written(tmp_path, report(7, reward=0.5, mismatch_kl=0.01), report(8, reward=0.625, mismatch_kl=None))
    assert telemetry.REGISTRY.get_sample_value("muster_trainer_step") == 8
    assert telemetry.REGISTRY.get_sample_value("muster_trainer_metric", {"name": "reward"}) == 0.625
    assert telemetry.REGISTRY.get_sample_value("muster_trainer_stage_seconds", {"stage": "update"}) == 2.5


def test_partial_line_is_cut_off_before_the_next_write(tmp_path: Path) -> None:
    path = written(tmp_path, report(0, reward=0.5))
    with path.open("a") as file:
        file.write('{"step": 1, "metr')
    written(tmp_path, report(1, reward=0.75))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(one["step"], one["metrics"]) for one in lines] == [(0, {"reward": 0.5}), (1, {"reward": 0.75})]


def test_weights_and_biases_without_it_is_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="Weights & Biases is not installed") as caught:
        Metrics(TrainerSettings(state_dir=tmp_path, wandb_project="a"), 1)
    assert "pip install wandb" in caught.value.hint


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Weights & Biases as it is without an account; the process that it starts is ended."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    yield
    import wandb

    with suppress(OSError):  # it is gone already
        wandb.teardown()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # its client does not wait for a killed process
        gc.collect()


def histories(folder: Path) -> list[tuple[str, str, dict[str, float]]]:
    """Project, run and numbers of every step that W&B's files in a state folder hold, the earlier file first.

    A file is 7 bytes, then records of a checksum (4 bytes), a length (2), a kind (1) and a protobuf; those of a few
    steps are within one block of 32 KiB, so none is split.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        data, at, about = path.read_bytes(), 7, ("", "")
        assert len(data) < 32768
        while at < len(data):
            (size,) = struct.unpack_from("<H", data, at + 4)
            record = Record.FromString(data[at + 7 : at + 7 + size])
            at += 7 + size
            if record.HasField("run"):
                about = record.run.project, record.run.run_id
            if record.HasField("history"):
                items = {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                found.append((*about, {name: value for name, value in items.items() if name[0] != "_"}))
    return found


@pytest.mark.usefixtures("service")
def test_weights_and_biases_gets_one_run_over_several_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    import wandb

    options = TrainerSettings(state_dir=tmp_path, wandb_project="run_fixture")
    with structlog.testing.capture_logs() as said:
        for step in (3, 4):
            metrics = Metrics(options, 7)
            made = StepReport(run=7, step=step, metrics={"reward": step / 8, "kl": None}, stages={"update": 2.0})
            metrics.record(made)
            metrics.close()
            wandb.teardown()  # as when a trainer's process ends: its client's own process ends after its last write
    assert said == []
    (run,) = {run for _, run, _ in histories(tmp_path)}
    assert run == (tmp_path / "wandb-id").read_text()
    assert [(project, numbers) for project, _, numbers in histories(tmp_path)] == [
        ("run_fixture", {"reward": 0.375, "seconds/update": 2, "step": 3}),
        ("run_fixture", {"reward": 0.5, "seconds/update": 2, "step": 4}),
    ]


@pytest.mark.usefixtures("service")
def test_training_goes_on_when_weights_and_biases_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    before = set(psutil.Process().children(recursive=True))
    metrics = Metrics(TrainerSettings(state_dir=tmp_path, wandb_project="run_fixture"), 7)
    helpers = [one for one in psutil.Process().children(recursive=True) if one not in before]
    assert helpers
    for helper in helpers:
        with suppress(psutil.NoSuchProcess):  # one may end with another
            helper.kill()
    assert psutil.wait_procs(helpers, timeout=BOUND)[1] == []
    with structlog.testing.capture_logs() as said:
        for step in range(3):
            metrics.record(report(step, reward=0.5))
        metrics.close()
    assert [line["event"] for line in said] == ["Weights & Biases failed; training continues without it"]
    assert len(metrics.path.read_text().splitlines()) == 3


@pytest.mark.usefixtures("service")
def test_training_ends_when_weights_and_biases_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setattr("trainer.metrics.FINISH_SECONDS", 0.5)
    before = set(psutil.Process().children(recursive=True))
    metrics = Metrics(TrainerSettings(state_dir=tmp_path, wandb_project="run_fixture"), 7)
    helpers = [one for one in psutil.Process().children(recursive=True) if one not in before]
    for helper in helpers:
        helper.suspend()
    try:
        with structlog.testing.capture_logs() as said:
            metrics.record(report(1, reward=0.5))
            metrics.close()
    finally:
        for helper in helpers:
            helper.resume()
    assert [line["event"] for line in said] == ["Weights & Biases does not end; ending without it"]
    assert metrics.wandb is not None
    assert metrics.wandb.sender is not None
    metrics.wandb.sender.join(BOUND)


@pytest.mark.usefixtures("service")
def test_weights_and_biases_without_a_key_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No API key") as caught:
        Metrics(TrainerSettings(state_dir=tmp_path, wandb_project="run_fixture"), 7)
    assert "WANDB_MODE=offline" in caught.value.hint


def test_a_line_has_no_lists_of_files(tmp_path: Path) -> None:
    path = written(tmp_path, report(0, reward=0.5).model_copy(update={"batch": ["0x" + "00" * 32]}))
    assert set(json.loads(path.read_text())) == {"run", "step", "metrics", "finished", "stages"}
