"""A trainer's metrics: a line for each report, and what goes to Prometheus."""

from __future__ import annotations

import json
from pathlib import Path

from muster.protocol.messages import StepReport
from muster.runtime import telemetry
from trainer.metrics import Metrics


def report(step: int, **metrics: float | None) -> StepReport:
    return StepReport(run=1, step=step, metrics=metrics, stages={"update": 2.5})


def written(folder: Path, *reports: StepReport) -> Path:
    metrics = Metrics(folder)
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


def test_a_line_has_no_lists_of_files(tmp_path: Path) -> None:
    path = written(tmp_path, report(0, reward=0.5).model_copy(update={"batch": ["0x" + "00" * 32]}))
    assert set(json.loads(path.read_text())) == {"run", "step", "metrics", "finished", "stages"}
