"""Read the trainer's `metrics.jsonl` and draw it, for `muster trainer plot`, in the style of all charts."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict, ValidationError

from muster.errors import CheckError, UsageError
from muster.swarm.summary import StepMetrics

INK, GRID, GOOD, BAD, QUIET = "#1f2937", "#e5e7eb", "#0f766e", "#b91c1c", "#9ca3af"
STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "muster",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
}


def lines_behind(axes: Axes) -> None:
    """Draw horizontal lines to read values by."""
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=10, fontweight="bold")


def svg_text(figure: Figure) -> str:
    """Return the figure as an SVG element, equal bytes for equal figures. Draw it under `rc_context(STYLE)`."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "muster"})
    return re.sub(r"^.*?(?=<svg)", "", buffer.getvalue(), flags=re.DOTALL)


MAX_LINE: Final = 1 << 20
"""Characters of one line; the trainer's have about two thousand."""


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore")

    step: int
    metrics: dict[str, float | None]
    stages: dict[str, float] = {}


def read_steps(path: Path) -> list[StepMetrics]:
    """Return the steps of a metrics.jsonl in order; later lines about the same step replace what earlier ones say.

    Raises UsageError when there is no such file or no step in it, CheckError at a line that the trainer did not write.
    A last line without its end is still being written, and is left out.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="name the trainer's metrics.jsonl") from error
    steps: dict[int, StepMetrics] = {}
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            if len(line) > MAX_LINE:
                raise ValueError("it is too long")
            parsed = _Line.model_validate_json(line)
        except (ValidationError, ValueError) as error:
            raise CheckError(
                f"line {number} of {path} is not a step of the trainer: {str(error).splitlines()[0]}"
            ) from error
        before = steps.get(parsed.step, StepMetrics(parsed.step))
        finite = {name: value for name, value in parsed.metrics.items() if value is not None}
        steps[parsed.step] = StepMetrics(parsed.step, {**before.metrics, **finite}, {**before.stages, **parsed.stages})
    if not steps:
        raise UsageError(f"{path} has no steps yet")
    return [steps[number] for number in sorted(steps)]


def picture(steps: Sequence[StepMetrics], *, alarm: float) -> str:
    """Draw all charts in one SVG; `alarm` is `trainer.mismatch_alarm`."""
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
FROM_ZERO: Final = (0, None)
_SHADES: Final = (GOOD, "#5eead4", QUIET, "#f59e0b", BAD, INK, "#a78bfa")


def line_chart(
    metrics: Mapping[str, str],
    label: str,
    *,
    log: bool = False,
    limits: tuple[float | None, float | None] | None = None,
) -> Callable[[Axes, Sequence[StepMetrics]], None]:
    """Return a chart of some metrics over the steps: {metric: its label}. `limits`: of the vertical axis."""

    def draw(axes: Axes, steps: Sequence[StepMetrics]) -> None:
        for (metric, name), colour in zip(metrics.items(), (GOOD, INK, QUIET), strict=False):
            points = [(one.step, one.metrics[metric]) for one in steps if metric in one.metrics]
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.4, marker="o", markersize=2, label=name)
        if axes.has_data() and len(metrics) > 1:
            axes.legend(frameon=False, fontsize=8)
        if log and any(one.metrics.get(name, 0) > 0 for one in steps for name in metrics):
            axes.set_yscale("log")
        elif limits is not None:
            axes.set_ylim(*limits)
        axes.set_ylabel(label)

    return draw


def _stacked(axes: Axes, rows: Sequence[tuple[int, Mapping[str, float]]], label: str) -> None:
    """Draw bars by step, one part for each name."""
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    floor = [0.0] * len(rows)
    for name, colour in zip(names, _SHADES * (1 + len(names) // len(_SHADES)), strict=False):
        heights = [row.get(name, 0.0) for _, row in rows]
        axes.bar([step for step, _ in rows], heights, bottom=floor, width=0.9, color=colour, label=name)
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    if names:
        axes.legend(frameon=False, fontsize=8)
    axes.set_ylabel(label)


def staleness_shares(step: StepMetrics) -> dict[str, float]:
    """Return the histogram of a batch: {staleness: share of its files}."""
    prefix = "staleness/"
    shares = {name.removeprefix(prefix): value for name, value in step.metrics.items() if name.startswith(prefix)}
    return {name: shares[name] for name in sorted(filter(str.isdigit, shares), key=int)}


CHARTS: Final[dict[str, Callable[[Axes, Sequence[StepMetrics]], None]]] = {
    "Reward": line_chart({"reward": "batch", "held_out/reward": "unseen tasks"}, "mean reward", limits=FROM_ZERO),
    "Completions": line_chart({"completions/mean_length": "mean"}, "tokens", limits=FROM_ZERO),
    "Thinking budget missed by": line_chart(
        {"completions/length_error": "batch", "held_out/length_error": "unseen tasks"},
        "mean distance over budget",
        limits=FROM_ZERO,
    ),
    MISMATCH: line_chart({"mismatch_kl": "KL"}, "nats per token", log=True),
    "Staleness": lambda axes, steps: _stacked(
        axes, [(one.step, shares) for one in steps if (shares := staleness_shares(one))], "share of files"
    ),
    "Groups without a signal": line_chart({"frac_reward_zero_std": "share"}, "share of groups", limits=FROM_ZERO),
    "Gradient and entropy": line_chart(
        {"grad_norm": "gradient norm", "entropy": "entropy, nats"}, "", limits=FROM_ZERO
    ),
    "Where the time went": lambda axes, steps: _stacked(axes, [(one.step, one.stages) for one in steps], "seconds"),
}
