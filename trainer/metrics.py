"""Record a step's numbers: a line of JSON, Prometheus, and Weights & Biases if the owner asks for it."""

from __future__ import annotations

import importlib
import queue
import secrets
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from muster.errors import ConfigError, StorageError
from muster.protocol.messages import StepReport
from muster.runtime import telemetry
from muster.runtime.files import write_durably
from muster.settings.schema import TrainerSettings

MAX_WAITING: Final = 1000
"""Steps whose numbers wait for Weights & Biases."""
FINISH_SECONDS: Final = 60.0
"""Longest wait for Weights & Biases to send what is left."""

log = telemetry.logger("trainer")
STEP = telemetry.gauge("trainer_step", "Newest checkpoint that is on chain")
METRIC = telemetry.gauge("trainer_metric", "A number of the newest step, by its name in metrics.jsonl", ("name",))
SECONDS = telemetry.gauge("trainer_stage_seconds", "What the newest step spent on a stage", ("stage",))


class Metrics:
    """Records the numbers of one run's steps."""

    def __init__(self, options: TrainerSettings, run: int) -> None:
        """Open the file. Raises ConfigError when Weights & Biases is asked for and not installed, or begins no run."""
        self.path = options.state_dir / "metrics.jsonl"
        _cut_torn_line(self.path)
        self.wandb = WeightsAndBiases(options, run) if options.wandb_project else None

    def record(self, report: StepReport) -> None:
        """Record a report's numbers; of two about the same step the later one holds. Blocks.

        Raises StorageError when the disk refuses.
        """
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(report.model_dump_json(exclude={"batch", "dropped", "salt"}) + "\n")
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}", hint="is the disk full?") from error
        METRIC.clear()  # a number that this step does not have, such as a staleness, is not shown
        SECONDS.clear()
        finite = {name: value for name, value in report.metrics.items() if value is not None}
        STEP.set(report.step)
        for name, value in finite.items():
            METRIC.labels(name).set(value)
        for stage, seconds in report.stages.items():
            SECONDS.labels(stage).set(seconds)
        if self.wandb is not None:
            stages = {f"seconds/{stage}": seconds for stage, seconds in report.stages.items()}
            self.wandb.send({**finite, **stages, "step": report.step})

    def close(self) -> None:
        """Wait until everything handed over is sent."""
        if self.wandb is not None:
            self.wandb.close()


def _cut_torn_line(path: Path) -> None:
    """Cut off what a kill left of a line: the next line would be appended to it."""
    if path.exists():
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            path.write_bytes(whole)


class WeightsAndBiases:
    """A run of Weights & Biases, resumed after a restart of the trainer.

    It reads its own key (WANDB_API_KEY, or WANDB_MODE=offline). Training neither waits nor ends when it fails.
    """

    def __init__(self, options: TrainerSettings, run: int) -> None:
        """Begin the run. Blocks. Raises ConfigError when wandb is not installed, or refuses this key."""
        try:
            wandb = importlib.import_module("wandb")
        except ImportError as error:
            raise ConfigError(
                "trainer.wandb_project is set, but Weights & Biases is not installed",
                hint="pip install wandb, or unset trainer.wandb_project",
            ) from error
        self._waiting: queue.Queue[Mapping[str, float] | None] = queue.Queue(MAX_WAITING)
        self.sender: threading.Thread | None = None
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
            log.warning("Weights & Biases cannot be reached; training continues without it", error=str(error))
            return
        began.define_metric("*", step_metric="step")
        self.sender = threading.Thread(target=self._send_all, args=(began,), name="wandb", daemon=True)
        self.sender.start()

    def send(self, values: Mapping[str, float]) -> None:
        """Queue a step's numbers; they are dropped when the queue is full."""
        if self.sender is not None and self.sender.is_alive():
            with suppress(queue.Full):
                self._waiting.put_nowait(values)

    def close(self) -> None:
        """Wait until the queue is sent, for at most twice FINISH_SECONDS."""
        if self.sender is not None and self.sender.is_alive():
            with suppress(queue.Full):
                self._waiting.put(None, timeout=FINISH_SECONDS)
            self.sender.join(FINISH_SECONDS)
            if self.sender.is_alive():
                log.warning("Weights & Biases does not end; ending without it")

    def _send_all(self, run: Any) -> None:
        """Send the queue until None is taken from it. Ends early on any error of wandb's client."""
        try:
            while (values := self._waiting.get()) is not None:
                run.log(values)
            run.finish()
        except Exception as error:  # noqa: BLE001 (its client does not document what it raises)
            log.warning("Weights & Biases failed; training continues without it", error=str(error))


def _wandb_id(folder: Path) -> str:
    """Return the run's id, kept in the state folder: a restart resumes the same run."""
    path = folder / "wandb-id"
    if not path.exists():
        write_durably(path, secrets.token_hex(8).encode())
    return path.read_text()
