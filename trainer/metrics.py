"""Where a step's numbers go: a line of JSON, Prometheus, and Weights & Biases if the owner asks for it."""

from __future__ import annotations

import importlib
import secrets
from pathlib import Path
from typing import Any

from muster import telemetry
from muster.errors import ConfigError, StorageError
from muster.messages import StepReport
from muster.settings import TrainerSettings

STEP = telemetry.gauge("trainer_step", "Newest checkpoint that is on chain")
METRIC = telemetry.gauge("trainer_metric", "A number of the newest step, by its name in metrics.jsonl", ("name",))
SECONDS = telemetry.gauge("trainer_stage_seconds", "What the newest step spent on a stage", ("stage",))


class Metrics:
    """The numbers of one run's steps, as they come."""

    def __init__(self, options: TrainerSettings, run: int) -> None:
        """Raises ConfigError when Weights & Biases is asked for and not installed."""
        self.path = options.state_dir / "metrics.jsonl"
        _end_last_line(self.path)
        self._wandb = _wandb(options, run)

    def record(self, report: StepReport) -> None:
        """Write a report's numbers down; of two about the same step the later one holds. Blocks."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(report.model_dump_json(exclude={"batch", "dropped"}) + "\n")
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}", hint="is the disk full?") from error
        finite = {name: value for name, value in report.metrics.items() if value is not None}
        STEP.set(report.step)
        for name, value in finite.items():
            METRIC.labels(name).set(value)
        for stage, seconds in report.stages.items():
            SECONDS.labels(stage).set(seconds)
        if self._wandb is not None:
            stages = {f"seconds/{stage}": seconds for stage, seconds in report.stages.items()}
            self._wandb.log({**finite, **stages, "step": report.step})

    def close(self) -> None:
        """Ends when what is on its way is sent."""
        if self._wandb is not None:
            self._wandb.finish()


def _end_last_line(path: Path) -> None:
    """Cut off what a kill left of a line, or the next one would be glued to it."""
    if path.exists():
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            path.write_bytes(whole)


def _wandb(options: TrainerSettings, run: int) -> Any:
    """A run of Weights & Biases that goes on where an earlier life of this trainer left it; its key is its own affair
    (WANDB_API_KEY, or WANDB_MODE=offline)."""
    if not options.wandb_project:
        return None
    try:
        wandb = importlib.import_module("wandb")
    except ImportError as error:
        raise ConfigError(
            "trainer.wandb_project is set, but Weights & Biases is not installed",
            hint="pip install wandb, or unset trainer.wandb_project",
        ) from error
    folder = Path(options.state_dir)
    chosen = options.model_dump(mode="json")
    began = wandb.init(
        project=options.wandb_project,
        name=f"run-{run}",
        dir=str(folder),
        id=_wandb_id(folder),
        resume="allow",
        config=chosen,
    )
    began.define_metric("*", step_metric="step")
    return began


def _wandb_id(folder: Path) -> str:
    """The same in every life of a trainer, and another for every state folder."""
    path = folder / "wandb-id"
    if not path.exists():
        path.write_text(secrets.token_hex(8))
    return path.read_text()
