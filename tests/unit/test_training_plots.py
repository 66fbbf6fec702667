"""A trainer's numbers: written as they come, read back, drawn."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from muster import telemetry
from muster.errors import CheckError, ConfigError, UsageError
from muster.messages import StepReport
from muster.settings import TrainerSettings
from muster.training_plots import CHARTS, Step, picture, read_steps, staleness_shares
from trainer.metrics import Metrics


def report(step: int, **metrics: float | None) -> StepReport:
    return StepReport(run=1, step=step, metrics=metrics, stages={"update": 2.5})


def written(folder: Path, *reports: StepReport) -> Path:
    metrics = Metrics(TrainerSettings(state_dir=folder), 1)
    for one in reports:
        metrics.record(one)
    return metrics.path


def test_what_later_lines_say_of_a_step_holds_and_nothing_is_lost(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        report(0, reward=0.5),
        report(1, reward=0.25, loss=None),
        report(1, **{"reward": 0.25, "held_out/reward": 0.75}),
    )
    assert read_steps(path) == [
        Step(0, {"reward": 0.5}, {"update": 2.5}),
        Step(1, {"reward": 0.25, "held_out/reward": 0.75}, {"update": 2.5}),
    ]


def test_prometheus_has_the_newest_step(tmp_path: Path) -> None:
    written(tmp_path, report(7, reward=0.5, mismatch_kl=0.01), report(8, reward=0.625, mismatch_kl=None))
    assert telemetry.REGISTRY.get_sample_value("muster_trainer_step") == 8
    assert telemetry.REGISTRY.get_sample_value("muster_trainer_metric", {"name": "reward"}) == 0.625
    assert telemetry.REGISTRY.get_sample_value("muster_trainer_stage_seconds", {"stage": "update"}) == 2.5


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, report(0, reward=0.5))
    with path.open("a") as file:
        file.write('{"step": 1, "metr')
    assert [one.step for one in read_steps(path)] == [0]


def test_what_a_kill_left_of_a_line_is_cut_off_before_the_next_is_written(tmp_path: Path) -> None:
    path = written(tmp_path, report(0, reward=0.5))
    with path.open("a") as file:
        file.write('{"step": 1, "metr')
    written(tmp_path, report(1, reward=0.75))
    assert [(one.step, one.metrics) for one in read_steps(path)] == [(0, {"reward": 0.5}), (1, {"reward": 0.75})]


@pytest.mark.parametrize("line", ["{", '{"step": 1}', '{"step": 1, "metrics": {"reward": "a"}}', '"' + "a" * (2 << 20)])
def test_a_line_that_is_no_steps_is_named(tmp_path: Path, line: str) -> None:
    path = written(tmp_path, report(0, reward=0.5))
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(CheckError, match=r"^line 2 of"):
        read_steps(path)


def test_no_file_and_no_steps_are_refused_with_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_steps(tmp_path / "none")
    (tmp_path / "empty").write_text("")
    with pytest.raises(UsageError, match="has no steps yet"):
        read_steps(tmp_path / "empty")


def test_staleness_is_a_histogram_in_order() -> None:
    shares = {"staleness/10": 0.25, "staleness/2": 0.5, "staleness/0": 0.25, "staleness/mean": 3.5, "reward": 1.0}
    assert list(staleness_shares(Step(1, shares)).items()) == [("0", 0.25), ("2", 0.5), ("10", 0.25)]


def test_every_chart_is_drawn_even_of_nothing(tmp_path: Path) -> None:
    full = [
        Step(n, {"reward": 0.1 * n, "mismatch_kl": 0.01, "staleness/0": 0.5, "staleness/1": 0.5}, {"update": 1.0})
        for n in range(4)
    ]
    drawn = picture(full, alarm=0.1)
    assert drawn == picture(full, alarm=0.1)
    assert drawn.startswith("<svg")
    assert all(name in drawn for name in CHARTS)
    assert "alarm" in drawn
    assert picture([Step(0)], alarm=0.1) != drawn


def test_weights_and_biases_without_it_is_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="Weights & Biases is not installed") as caught:
        Metrics(TrainerSettings(state_dir=tmp_path, wandb_project="a"), 1)
    assert "pip install wandb" in caught.value.hint


def test_a_line_has_no_lists_of_files(tmp_path: Path) -> None:
    path = written(tmp_path, report(0, reward=0.5).model_copy(update={"batch": ["0x" + "00" * 32]}))
    assert set(json.loads(path.read_text())) == {"run", "step", "metrics", "finished", "stages"}
