"""Where a step's numbers go: a line of JSON, Prometheus, and Weights & Biases if the owner asks for it."""

from __future__ import annotations

import importlib
import queue
import secrets
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from muster import telemetry
from muster.errors import ConfigError, StorageError
from muster.files import write_durably
from muster.messages import StepReport
from muster.settings import TrainerSettings

MAX_WAITING: Final = 1000
"""Steps whose numbers wait for Weights & Biases."""
FINISH_SECONDS: Final = 60.0
"""Longest that it may take to send what is left."""

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
    (WANDB_API_KEY, or WANDB_MODE=offline). A guest: whatever becomes of it, training neither waits nor ends for it."""

    def __init__(self, options: TrainerSettings, run: int) -> None:
        """Begin. Blocks. Raises ConfigError when it is not installed, or refuses this key."""
        try:
            wandb = importlib.import_module("wandb")
        except ImportError as error:
            raise ConfigError(
                "trainer.wandb_project is set, but Weights & Biases is not installed",
                hint="pip install wandb, or unset trainer.wandb_project",
            ) from error
        self._waiting: queue.Queue[Mapping[str, float] | None] = queue.Queue(MAX_WAITING)
        self._sender: threading.Thread | None = None
        try:
            began = wandb.init(
                project=options.wandb_project,
                name=f"run-{run}",
                dir=str(options.state_dir),
                id=_wandb_id(options.state_dir),
                resume="allow",
                config=options.model_dump(mode="json"),
                # Logs and code are the owner's own.
                settings=wandb.Settings(console="off", disable_git=True, finish_timeout=FINISH_SECONDS),
            )
        except (wandb.errors.UsageError, wandb.errors.AuthenticationError) as error:
            raise ConfigError(
                f"Weights & Biases does not begin a run: {error}",
                hint="wandb login, set WANDB_MODE=offline, or unset trainer.wandb_project",
            ) from error
        except wandb.Error as error:
            log.warning("Weights & Biases cannot be reached; training goes on without it", error=str(error))
            return
        began.define_metric("*", step_metric="step")
        self._sender = threading.Thread(target=self._send_all, args=(began,), name="wandb", daemon=True)
        self._sender.start()

    def send(self, values: Mapping[str, float]) -> None:
        """Hand over a step's numbers; they are dropped where too many wait."""
        if self._sender is not None and self._sender.is_alive():
            with suppress(queue.Full):
                self._waiting.put_nowait(values)

    def close(self) -> None:
        """Wait until what is on its way is sent, or for twice FINISH_SECONDS."""
        if self._sender is not None and self._sender.is_alive():
            with suppress(queue.Full):
                self._waiting.put(None, timeout=FINISH_SECONDS)
            self._sender.join(FINISH_SECONDS)
            if self._sender.is_alive():
                log.warning("Weights & Biases does not end; it is left behind")

    def _send_all(self, run: Any) -> None:
        """Send what comes until None does. Ends early when it is lost."""
        try:
            while (values := self._waiting.get()) is not None:
                run.log(values)
            run.finish()
        except Exception as error:  # noqa: BLE001 (what its client raises then is not documented)
            log.warning("Weights & Biases is lost; training goes on without it", error=str(error))


def _wandb_id(folder: Path) -> str:
    """The same in every life of a trainer, and another for every state folder."""
    path = folder / "wandb-id"
    if not path.exists():
        write_durably(path, secrets.token_hex(8).encode())
    return path.read_text()
