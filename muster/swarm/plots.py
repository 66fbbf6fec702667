"""Draw the plots of a swarm's report, each as an SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from muster.constants import TOKEN
from muster.protocol.metric_names import HELD_OUT, HELD_OUT_LENGTH_ERROR, LENGTH, LENGTH_ERROR, REWARD
from muster.swarm.summary import SwarmFacts, claims

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


def svg_text(figure: Figure) -> str:
    """Return the figure as an SVG element, equal bytes for equal figures. Draw it under `rc_context(STYLE)`."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "muster"})
    return re.sub(r"^.*?(?=<svg)", "", buffer.getvalue(), flags=re.DOTALL)


def draw(axes: Axes, facts: SwarmFacts, which: str) -> None:
    """Draw one plot, by its name in PLOTS."""
    PLOTS[which](axes, facts)
    axes.set_title(which, loc="left", fontsize=10, fontweight="bold")


def _by_step(metrics: Mapping[str, str], label: str, top: float | None = None) -> Callable[[Axes, SwarmFacts], None]:
    """Return a plot of some metrics over the steps, from zero up: {metric: its label}."""

    def plot(axes: Axes, facts: SwarmFacts) -> None:
        for (metric, name), colour in zip(metrics.items(), (GOOD, INK), strict=False):
            points = [(one.step, one.metrics[metric]) for one in facts.updates if metric in one.metrics]
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.4, marker="o", markersize=2, label=name)
        if axes.has_data() and len(metrics) > 1:
            axes.legend(frameon=False, fontsize=8)
        axes.set_ylim(0, top)
        axes.set_xlabel("step")
        axes.set_ylabel(label)
        lines_behind(axes)

    return plot


def window(facts: SwarmFacts) -> list[tuple[float, float]]:
    """Return the pay in the reward window over time: (minutes of chain time since the first commitment, tokens)."""
    changes = [(one.time, one.amount) for one in facts.committed] + [(one.time, -one.amount) for one in facts.settled]
    if not changes:
        return []
    start, total, points = min(time for time, _ in changes), 0, []
    for time, change in sorted(changes, key=lambda change: change[0]):
        total += change
        points.append(((time - start) / 60, total / TOKEN))
    return points


def _window(axes: Axes, facts: SwarmFacts) -> None:
    points = window(facts)
    ended = max((one.time for one in facts.committed), default=0)
    start = min((one.time for one in facts.committed), default=0)
    # The window lasts a day and the run minutes: payments after the run are drawn right behind it.
    last = (ended - start) / 60
    squeezed = [(min(minute, last * 1.08 + 0.1), value) for minute, value in points]
    if squeezed:
        axes.step(*zip(*squeezed, strict=True), where="post", color=GOOD, linewidth=1.6)
    for one in facts.settled:
        if one.voided:
            minute = (one.time - start) / 60
            axes.axvline(minute, color=BAD, linewidth=1, linestyle="--")
            axes.annotate("voided", (minute, 0), xytext=(3, 4), textcoords="offset points", color=BAD, fontsize=8)
    axes.set_xlabel("minutes of chain time (claims 24 h later, at the right edge)")
    axes.set_ylabel("tokens reserved")
    lines_behind(axes)


def _earned(axes: Axes, facts: SwarmFacts) -> None:
    rows = claims(facts)
    names, earned = [row["name"] for row in rows], [row["paid"] / TOKEN for row in rows]
    axes.barh(names, earned, color=GOOD, label="paid")
    axes.barh(names, [row["voided"] / TOKEN for row in rows], left=earned, color=BAD, label="voided")
    axes.invert_yaxis()
    axes.set_xlabel("tokens")
    axes.legend(frameon=False, fontsize=8, loc="lower right")


PLOTS: Final = {
    "Reward": _by_step({REWARD: "batch"}, "mean reward of the batch"),
    "Held-out score": _by_step({HELD_OUT: "unseen tasks"}, "score on unseen tasks", top=1),
    "Length": _by_step({LENGTH: "mean"}, "mean completion, tokens"),
    "Thinking budget missed by": _by_step(
        {LENGTH_ERROR: "batches", HELD_OUT_LENGTH_ERROR: "unseen tasks"}, "mean distance over budget"
    ),
    "Reward window": _window,
    "Who earned what": _earned,
}


def svg(facts: SwarmFacts, which: str) -> str:
    """Draw one plot as an SVG element of an HTML page."""
    with rc_context(STYLE):
        figure = Figure(figsize=(5.2, 2.9), layout="constrained")
        draw(figure.subplots(), facts, which)
        return svg_text(figure)


def picture(
    facts: SwarmFacts, names: Sequence[str] = ("Reward", "Held-out score", "Reward window", "Who earned what")
) -> str:
    """Draw several plots of a run in one SVG file."""
    with rc_context(STYLE):
        figure = Figure(figsize=(9.6, 5.4), layout="constrained", facecolor="white")
        for axes, name in zip(figure.subplots(2, 2).flat, names, strict=True):
            draw(axes, facts, name)
        return svg_text(figure)
