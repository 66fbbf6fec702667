"""Where a step's numbers go: a line of JSON, Prometheus, and Weights & Biases if the owner asks for it."""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from muster import telemetry
from muster.errors import ConfigError, StorageError
from muster.messages import StepReport
from muster.settings import TrainerSettings

log = telemetry.logger("trainer")
STEP = telemetry.gauge("trainer_step", "Newest checkpoint that is on chain")
METRIC = telemetry.gauge("trainer_metric", "A number of the newest step, by its name in metrics.jsonl", ("name",))
SECONDS = telemetry.gauge("trainer_stage_seconds", "What the newest step spent on a stage", ("stage",))


class Metrics:
    """The numbers of one run's steps, as they come."""

    def __init__(self, options: TrainerSettings, run: int) -> None:
        """Raises ConfigError when Weights & Biases is asked for and not installed, or begins no run."""
        self.path = options.state_dir / "metrics.jsonl"
        _cut_torn_line(self.path)
        self._wandb = WeightsAndBiases(options, run) if options.wandb_project else None

    def record(self, report: StepReport) -> None:
        """Write a report's numbers down; of two about the same step the later one holds. Blocks.

        Raises StorageError when the disk refuses.
        """
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(report.model_dump_json(exclude={"batch", "dropped"}) + "\n")
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}", hint="is the disk full?") from error
        METRIC.clear()  # what this step does not have, such as a staleness, is not shown
        SECONDS.clear()
        finite = {name: value for name, value in report.metrics.items() if value is not None}
        STEP.set(report.step)
        for name, value in finite.items():
            METRIC.labels(name).set(value)
        for stage, seconds in report.stages.items():
            SECONDS.labels(stage).set(seconds)
        if self._wandb is not None:
            stages = {f"seconds/{stage}": seconds for stage, seconds in report.stages.items()}
            self._wandb.send({**finite, **stages, "step": report.step})

    def close(self) -> None:
        """Ends when what is on its way is sent."""
        if self._wandb is not None:
            self._wandb.close()


def _cut_torn_line(path: Path) -> None:
    """Cut off what a kill left of a line, or the next one would be glued to it."""
    if path.exists():
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            path.write_bytes(whole)


class WeightsAndBiases:
    """A run of Weights & Biases that goes on where an earlier life of this trainer left it; its key is its own affair
    (WANDB_API_KEY, or WANDB_MODE=offline). Training goes on without it once it is lost."""

    def __init__(self, options: TrainerSettings, run: int) -> None:
        """Raises ConfigError when it is not installed, or begins no run."""
        try:
            wandb = importlib.import_module("wandb")
        except ImportError as error:
            raise ConfigError(
                "trainer.wandb_project is set, but Weights & Biases is not installed",
                hint="pip install wandb, or unset trainer.wandb_project",
            ) from error
        self._lost: tuple[type[Exception], ...] = (OSError, wandb.Error)
        """What its client raises when the process beside this one, which sends everything, is gone."""
        try:
            self._run: Any = wandb.init(
                project=options.wandb_project,
                name=f"run-{run}",
                dir=str(options.state_dir),
                id=_wandb_id(options.state_dir),
                resume="allow",
                config=options.model_dump(mode="json"),
                settings=wandb.Settings(console="off", disable_git=True),  # logs and code are the owner's own
            )
        except wandb.Error as error:
            raise ConfigError(
                f"Weights & Biases does not begin a run: {error}",
                hint="wandb login, set WANDB_MODE=offline, or unset trainer.wandb_project",
            ) from error
        self._run.define_metric("*", step_metric="step")

    def send(self, values: Mapping[str, float]) -> None:
        """Hand over a step's numbers."""
        if self._run is not None:
            self._unless_lost(lambda: self._run.log(values))

    def close(self) -> None:
        """Ends when what is on its way is sent."""
        if self._run is not None:
            self._unless_lost(self._run.finish)

    def _unless_lost(self, call: Callable[[], None]) -> None:
        try:
            call()
        except self._lost as error:
            self._run = None
            log.warning("Weights & Biases is lost; training goes on without it", error=str(error))


def _wandb_id(folder: Path) -> str:
    """The same in every life of a trainer, and another for every state folder."""
    path = folder / "wandb-id"
    if not path.exists():
        path.write_text(secrets.token_hex(8))
    return path.read_text()
