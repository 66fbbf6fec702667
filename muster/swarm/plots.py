"""The plots of a swarm's report, each an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from muster.charts import BAD, GOOD, INK, STYLE, lines_behind, svg_text, title
from muster.constants import TOKEN
from muster.swarm.summary import HELD_OUT, HELD_OUT_LENGTH_ERROR, LENGTH, LENGTH_ERROR, REWARD, Facts, paid


def draw(axes: Axes, facts: Facts, which: str) -> None:
    """Draw one plot, by its name in PLOTS."""
    PLOTS[which](axes, facts)
    title(axes, which)


def _by_step(axes: Axes, facts: Facts, metric: str, label: str, colour: str) -> None:
    points = [(one.step, one.metrics[metric]) for one in facts.updates if metric in one.metrics]
    steps, values = zip(*sorted(points), strict=True) if points else ((), ())
    axes.plot(steps, values, color=colour, linewidth=1.6, marker="o", markersize=2.5)
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    lines_behind(axes)


def _reward(axes: Axes, facts: Facts) -> None:
    trained = [one for one in facts.updates if one.step > 0 and REWARD in one.metrics]
    axes.plot([one.step for one in trained], [one.metrics[REWARD] for one in trained], color=GOOD, linewidth=1.6)
    axes.set_xlabel("step")
    axes.set_ylabel("mean reward of the batch")
    lines_behind(axes)


def _held_out(axes: Axes, facts: Facts) -> None:
    _by_step(axes, facts, HELD_OUT, "score on unseen tasks", INK)
    axes.set_ylim(0, 1)


def _length(axes: Axes, facts: Facts) -> None:
    _by_step(axes, facts, LENGTH, "mean completion, tokens", INK)


def _budget_missed(axes: Axes, facts: Facts) -> None:
    """How well the announced thinking budget is kept: what the length part of the advantage is for."""
    for metric, label, colour in ((LENGTH_ERROR, "batches", GOOD), (HELD_OUT_LENGTH_ERROR, "unseen tasks", INK)):
        points = sorted((one.step, 100 * one.metrics[metric]) for one in facts.updates if metric in one.metrics)
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.6, marker="o", markersize=2.5, label=label)
            axes.legend(frameon=False, fontsize=8)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("step")
    axes.set_ylabel("mean distance, % of the budget")
    lines_behind(axes)


def window(facts: Facts) -> list[tuple[float, float]]:
    """Pay waiting in the reward window over time: (minutes of chain time since the first commitment, tokens)."""
    changes = [(one.time, one.pay) for one in facts.committed] + [(one.time, -one.amount) for one in facts.settled]
    if not changes:
        return []
    start, total, points = min(time for time, _ in changes), 0, []
    for time, change in sorted(changes, key=lambda change: change[0]):
        total += change
        points.append(((time - start) / 60, total / TOKEN))
    return points


def _window(axes: Axes, facts: Facts) -> None:
    points = window(facts)
    ended = max((one.time for one in facts.committed), default=0)
    start = min((one.time for one in facts.committed), default=0)
    # The window is a day long and the run minutes: what comes after the run is drawn right behind it.
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


def _earned(axes: Axes, facts: Facts) -> None:
    workers = [who for who in facts.participants if who.role == "worker"]
    names = [who.name for who in workers]
    earned = [paid(facts.settled, node=who.node) / TOKEN for who in workers]
    voided = [
        sum(one.amount for one in facts.settled if one.voided and one.node == who.node) / TOKEN for who in workers
    ]
    axes.barh(names, earned, color=GOOD, label="paid")
    axes.barh(names, voided, left=earned, color=BAD, label="voided")
    axes.invert_yaxis()
    axes.set_xlabel("tokens")
    axes.legend(frameon=False, fontsize=8, loc="lower right")


PLOTS: Final = {
    "Reward": _reward,
    "Held-out score": _held_out,
    "Length": _length,
    "Thinking budget missed by": _budget_missed,
    "Reward window": _window,
    "Who earned what": _earned,
}


def svg(facts: Facts, which: str) -> str:
    """One plot as an SVG element, to stand in an HTML page."""
    with rc_context(STYLE):
        figure = Figure(figsize=(5.2, 2.9), layout="constrained")
        draw(figure.subplots(), facts, which)
        return svg_text(figure)


def picture(
    facts: Facts, names: Sequence[str] = ("Reward", "Held-out score", "Reward window", "Who earned what")
) -> str:
    """Several plots in one SVG file: the picture of a run."""
    with rc_context(STYLE):
        figure = Figure(figsize=(9.6, 5.4), layout="constrained", facecolor="white")
        for axes, name in zip(figure.subplots(2, 2).flat, names, strict=True):
            draw(axes, facts, name)
        return svg_text(figure)
