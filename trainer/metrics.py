"""Record a step's numbers: a line of JSON, and Prometheus."""

from __future__ import annotations

from pathlib import Path

from muster.errors import StorageError
from muster.protocol.messages import StepReport
from muster.runtime import telemetry

STEP = telemetry.gauge("trainer_step", "Newest checkpoint that is on chain")
METRIC = telemetry.gauge("trainer_metric", "A number of the newest step, by its name in metrics.jsonl", ("name",))
SECONDS = telemetry.gauge("trainer_stage_seconds", "What the newest step spent on a stage", ("stage",))


class Metrics:
    """Records the numbers of one run's steps."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.jsonl"
        _cut_torn_line(self.path)

    def record(self, report: StepReport) -> None:
        """Record a report's numbers; of two about the same step the later one holds. Blocks.

        Raises StorageError when the disk refuses.
        """
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(report.model_dump_json(exclude={"batch", "dropped", "grades", "refuted"}) + "\n")
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}", hint="is the disk full?") from error
        METRIC.clear()  # a number that this step does not have, such as a staleness, is not shown
        SECONDS.clear()
        STEP.set(report.step)
        for name, value in report.metrics.items():
            if value is not None:
                METRIC.labels(name).set(value)
        for stage, seconds in report.stages.items():
            SECONDS.labels(stage).set(seconds)


def _cut_torn_line(path: Path) -> None:
    """Cut off what a kill left of a line: the next line would be appended to it."""
    if path.exists():
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            path.write_bytes(whole)
