"""How a run's training went, from the trainer's `metrics.jsonl`: read, and drawn for `muster trainer plot`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict, ValidationError

from muster.charts import BAD, GOOD, INK, QUIET, STYLE, lines_behind, svg_text, title
from muster.errors import CheckError, UsageError

MAX_LINE: Final = 1 << 20
"""Characters of one line; ours have about two thousand."""


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore")

    step: int
    metrics: dict[str, float | None]
    stages: dict[str, float] = {}


@dataclass(frozen=True)
class Step:
    """What is known of one step; what was not finite is not there."""

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds."""


def read_steps(path: Path) -> list[Step]:
    """The steps of a metrics.jsonl in order; of lines about the same step, what the later ones say holds.

    Raises UsageError when there is no such file or no step in it, CheckError at a line that is none of the trainer's. A
    last line without its end is one that is being written, and left out.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="name the trainer's metrics.jsonl") from error
    steps: dict[int, Step] = {}
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            if len(line) > MAX_LINE:
                raise ValueError("it is too long")
            said = _Line.model_validate_json(line)
        except (ValidationError, ValueError) as error:
            raise CheckError(f"line {number} of {path} is no step's: {str(error).splitlines()[0]}") from error
        before = steps.get(said.step, Step(said.step))
        finite = {name: value for name, value in said.metrics.items() if value is not None}
        steps[said.step] = Step(said.step, {**before.metrics, **finite}, {**before.stages, **said.stages})
    if not steps:
        raise UsageError(f"{path} has no steps yet")
    return [steps[number] for number in sorted(steps)]


def picture(steps: Sequence[Step], *, alarm: float) -> str:
    """All charts in one SVG; `alarm` is `trainer.mismatch_alarm`."""
    with rc_context(STYLE):
        figure = Figure(figsize=(9.6, 10.4), layout="constrained", facecolor="white")
        for axes, (name, draw) in zip(figure.subplots(4, 2).flat, CHARTS.items(), strict=True):
            draw(axes, steps)
            if name == MISMATCH:
                axes.axhline(alarm, color=BAD, linewidth=1, linestyle="--", label="alarm")
                axes.legend(frameon=False, fontsize=8)
            title(axes, name)
            axes.set_xlabel("step")
            lines_behind(axes)
        return svg_text(figure)


# --- Charts


MISMATCH: Final = "Samplers against trainer"
_SHADES: Final = (GOOD, "#5eead4", QUIET, "#f59e0b", BAD, INK, "#a78bfa")


def _lines(metrics: Mapping[str, str], label: str, *, log: bool = False, from_zero: bool = False):
    """A chart of some metrics over the steps: {metric: what it is called}."""

    def draw(axes: Axes, steps: Sequence[Step]) -> None:
        for (metric, name), colour in zip(metrics.items(), (GOOD, INK, QUIET), strict=False):
            points = [(one.step, one.metrics[metric]) for one in steps if metric in one.metrics]
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.4, marker="o", markersize=2, label=name)
        if axes.has_data() and len(metrics) > 1:
            axes.legend(frameon=False, fontsize=8)
        if log and any(one.metrics.get(name, 0) > 0 for one in steps for name in metrics):
            axes.set_yscale("log")
        elif from_zero:
            axes.set_ylim(bottom=0)
        axes.set_ylabel(label)

    return draw


def _stacked(axes: Axes, rows: Sequence[tuple[int, Mapping[str, float]]], label: str) -> None:
    """Bars by step, one part for each name."""
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    floor = [0.0] * len(rows)
    for name, colour in zip(names, _SHADES * (1 + len(names) // len(_SHADES)), strict=False):
        heights = [row.get(name, 0.0) for _, row in rows]
        axes.bar([step for step, _ in rows], heights, bottom=floor, width=0.9, color=colour, label=name)
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    if names:
        axes.legend(frameon=False, fontsize=8)
    axes.set_ylabel(label)


def staleness_shares(step: Step) -> dict[str, float]:
    """The histogram of a batch: {staleness: share of its files}."""
    prefix = "staleness/"
    shares = {name.removeprefix(prefix): value for name, value in step.metrics.items() if name.startswith(prefix)}
    return {name: shares[name] for name in sorted(filter(str.isdigit, shares), key=int)}


def _staleness(axes: Axes, steps: Sequence[Step]) -> None:
    _stacked(axes, [(one.step, shares) for one in steps if (shares := staleness_shares(one))], "share of files")


def _stages(axes: Axes, steps: Sequence[Step]) -> None:
    _stacked(axes, [(one.step, one.stages) for one in steps], "seconds")


CHARTS: Final[dict[str, Callable[[Axes, Sequence[Step]], None]]] = {
    "Reward": _lines({"reward": "batch", "held_out/reward": "unseen tasks"}, "mean reward", from_zero=True),
    "Completions": _lines({"completions/mean_length": "mean"}, "tokens", from_zero=True),
    "Thinking budget missed by": _lines(
        {"completions/length_error": "batch", "held_out/length_error": "unseen tasks"},
        "mean distance over budget",
        from_zero=True,
    ),
    MISMATCH: _lines({"mismatch_kl": "KL"}, "nats per token", log=True),
    "Staleness": _staleness,
    "Groups that taught nothing": _lines({"frac_reward_zero_std": "share"}, "share of groups", from_zero=True),
    "Gradient and entropy": _lines({"grad_norm": "gradient norm", "entropy": "entropy, nats"}, "", from_zero=True),
    "Where the time went": _stages,
}
